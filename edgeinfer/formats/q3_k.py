"""Q3_K: 256 weights in 16 sub-blocks of 16; w = d * (sc[s] - 32) * (q - 4), q of 3 bits, sc of 6. 3.4375 bits per weight.

Block of 110 bytes: hmask (32), qs (64, as in Q2_K), scales (12), d f16 (2). Bit b of hmask[i] is the top bit of weight i of
the 32 weights 32b to 32b+31.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise
from .q2_k import bit_pairs

__all__ = ["Q3_K"]


def _scales(packed: NDArray[Any]) -> NDArray[Any]:
    """Unpack (n, 12) bytes into 6-bit scales less 32, int8 (n, 16).

    Bytes 0-7 hold the low four bits of sc 0-7 (low half) and of sc 8-15 (high half); bit pair p of bytes 8-11 the top two
    of sc 4p to 4p+3.
    """
    low = np.concatenate([packed[:, :8] & np.uint8(15), packed[:, :8] >> np.uint8(4)], axis=-1)
    top = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & np.uint8(3)
    return np.asarray((low | (top.reshape(-1, 16) << np.uint8(4))).astype(np.int8) - np.int8(32))


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, 108:].copy().view(np.float16).astype(np.float32)
    scales = d * _scales(blocks[:, 96:108]).astype(np.float32)
    top = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & np.uint8(1)
    q = (bit_pairs(blocks[:, 32:96]) | (top.reshape(-1, 256) << np.uint8(2))).astype(np.int8) - np.int8(4)
    return np.asarray((scales[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256))


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 110*k) -> float32 (..., 256*k)."""
    return blockwise(_decode, raw, 110)  # type: ignore[return-value]


Q3_K = Format("Q3_K", 11, 256, 110, dequantize, native=True)
