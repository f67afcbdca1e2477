"""Q4_0: 32 weights = one f16 scale d and 32 4-bit numbers; w = d * (q - 8). 4.5 bits per weight.

Block of 18 bytes: d (2), qs (16); byte i holds weight i in its low half and weight i+16 in its high half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["Q4_0"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    q = nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8)
    return np.asarray(d * q.astype(np.float32))


def _encode(blocks: NDArray[Any]) -> NDArray[Any]:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    d = largest / -8
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, 0, 1 / d)
    q = np.trunc(blocks * inverse + np.float32(8.5), dtype=np.float32).astype(np.uint8).clip(0, 15)
    packed = q[:, :16] | (q[:, 16:] << np.uint8(4))
    return np.concatenate([d.astype(np.float16).view(np.uint8), packed], axis=-1)


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 18*k) -> float32 (..., 32*k)."""
    return blockwise(_decode, raw, 18)  # type: ignore[return-value]


def quantize(values: Floats) -> Bytes:
    """Float32 (..., 32*k) -> bytes (..., 18*k); the weight largest in size becomes q = 0."""
    return blockwise(_encode, values, 32)  # type: ignore[return-value]


Q4_0 = Format("Q4_0", 2, 32, 18, dequantize, quantize, native=True)
