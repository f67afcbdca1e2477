"""Q4_1: 32 weights = one f16 scale d, one f16 minimum m and 32 4-bit numbers; w = d * q + m. 5 bits per weight.

Block of 20 bytes: d (2), m (2), qs (16); byte i holds weight i in its low half and weight i+16 in its high half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["Q4_1"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    m = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    return np.asarray(d * nibbles(blocks[:, 4:], 16).astype(np.float32) + m)


def _encode(blocks: NDArray[Any]) -> NDArray[Any]:
    low = blocks.min(axis=-1, keepdims=True)
    d = (blocks.max(axis=-1, keepdims=True) - low) / 15
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, 0, 1 / d)
    q = np.trunc((blocks - low) * inverse + np.float32(0.5), dtype=np.float32).astype(np.uint8).clip(0, 15)
    packed = q[:, :16] | (q[:, 16:] << np.uint8(4))
    return np.concatenate([d.astype(np.float16).view(np.uint8), low.astype(np.float16).view(np.uint8), packed], axis=-1)


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 20*k) -> float32 (..., 32*k)."""
    return blockwise(_decode, raw, 20)  # type: ignore[return-value]


def quantize(values: Floats) -> Bytes:
    """Float32 (..., 32*k) -> bytes (..., 20*k); the smallest weight becomes q = 0."""
    return blockwise(_encode, values, 32)  # type: ignore[return-value]


Q4_1 = Format("Q4_1", 3, 32, 20, dequantize, quantize, native=True)
