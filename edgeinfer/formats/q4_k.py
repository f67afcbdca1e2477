"""Q4_K: 256 weights in 8 sub-blocks of 32; w = d * sc[s] * q - dmin * m[s]. 4.5 bits per weight.

Block of 144 bytes: d f16 (2), dmin f16 (2), scales (12), qs (128). sc and m are 6-bit numbers, packed as
`scale_min` says; each 32 bytes of qs hold sub-block 2j in their low halves and 2j+1 in their high halves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["Q4_K", "scale_min"]


def scale_min(packed: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Unpack (n, 12) bytes into the 6-bit scales and minimums, both uint8 (n, 8).

    Bytes 0-3 hold sc 0-3 and, in their top two bits, the top of sc 4-7; bytes 4-7 hold the same of m;
    bytes 8-11 hold the low four bits of sc 4-7 (low half) and of m 4-7 (high half).
    """
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([a & np.uint8(63), (c & np.uint8(15)) | ((a >> np.uint8(2)) & np.uint8(48))], axis=-1)
    mins = np.concatenate([b & np.uint8(63), (c >> np.uint8(4)) | ((b >> np.uint8(2)) & np.uint8(48))], axis=-1)
    return scales, mins


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    dmin = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    scales, mins = scale_min(blocks[:, 4:16])
    q = nibbles(blocks[:, 16:], 32).reshape(-1, 8, 32).astype(np.float32)
    values = (d * scales.astype(np.float32))[:, :, None] * q - (dmin * mins.astype(np.float32))[:, :, None]
    return np.asarray(values.reshape(-1, 256))


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 144*k) -> float32 (..., 256*k)."""
    return blockwise(_decode, raw, 144)  # type: ignore[return-value]


Q4_K = Format("Q4_K", 12, 256, 144, dequantize, native=True)
