"""Q2_K: 256 weights in 16 sub-blocks of 16; w = d * sc[s] * q - dmin * m[s], q of 2 bits. 2.625 bits per weight.

Block of 84 bytes: scales (16, low half sc, high half m), qs (64), d f16 (2), dmin f16 (2). Each 32 bytes of qs hold 128
weights (`bit_pairs`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise

__all__ = ["Q2_K", "bit_pairs"]


def bit_pairs(packed: Bytes) -> Bytes:
    """Unpack 2-bit numbers (n, m) -> (n, 4*m): each 32 bytes give their bit pairs 0, then 1, 2 and 3."""
    parts = packed.reshape(len(packed), -1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (parts & np.uint8(3)).reshape(len(packed), -1)


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, 80:82].copy().view(np.float16).astype(np.float32)
    dmin = blocks[:, 82:84].copy().view(np.float16).astype(np.float32)
    scales = d * (blocks[:, :16] & np.uint8(15)).astype(np.float32)
    mins = dmin * (blocks[:, :16] >> np.uint8(4)).astype(np.float32)
    q = bit_pairs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    return np.asarray((scales[:, :, None] * q - mins[:, :, None]).reshape(-1, 256))


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 84*k) -> float32 (..., 256*k)."""
    return blockwise(_decode, raw, 84)  # type: ignore[return-value]


Q2_K = Format("Q2_K", 10, 256, 84, dequantize, native=True)
