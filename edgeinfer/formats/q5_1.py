"""Q5_1: 32 weights = one f16 scale d, one f16 minimum m and 32 5-bit numbers; w = d * q + m. 6 bits per weight.

Block of 24 bytes: d (2), m (2), qh (4), qs (16); bit i of qh is the top bit of weight i, qs is laid out as in Q4_0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["Q5_1"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    m = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    high = np.unpackbits(blocks[:, 4:8], axis=-1, bitorder="little")
    q = nibbles(blocks[:, 8:], 16) | (high << np.uint8(4))
    return np.asarray(d * q.astype(np.float32) + m)


def _encode(blocks: NDArray[Any]) -> NDArray[Any]:
    low = blocks.min(axis=-1, keepdims=True)
    d = (blocks.max(axis=-1, keepdims=True) - low) / 31
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, 0, 1 / d)
    q = np.trunc((blocks - low) * inverse + np.float32(0.5), dtype=np.float32).astype(np.uint8).clip(0, 31)
    packed = (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))
    high = np.packbits(q >> np.uint8(4), axis=-1, bitorder="little")
    scales = [d.astype(np.float16).view(np.uint8), low.astype(np.float16).view(np.uint8)]
    return np.concatenate([*scales, high, packed], axis=-1)


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 24*k) -> float32 (..., 32*k)."""
    return blockwise(_decode, raw, 24)  # type: ignore[return-value]


def quantize(values: Floats) -> Bytes:
    """Float32 (..., 32*k) -> bytes (..., 24*k); the smallest weight becomes q = 0."""
    return blockwise(_encode, values, 32)  # type: ignore[return-value]


Q5_1 = Format("Q5_1", 7, 32, 24, dequantize, quantize, native=True)
