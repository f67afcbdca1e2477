"""Q5_0: 32 weights = one f16 scale d and 32 5-bit numbers; w = d * (q - 16). 5.5 bits per weight.

Block of 22 bytes: d (2), qh (4), qs (16); bit i of qh is the top bit of weight i, qs is laid out as in Q4_0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["Q5_0"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    high = np.unpackbits(blocks[:, 2:6], axis=-1, bitorder="little")
    q = (nibbles(blocks[:, 6:], 16) | (high << np.uint8(4))).astype(np.int8) - np.int8(16)
    return np.asarray(d * q.astype(np.float32))


def _encode(blocks: NDArray[Any]) -> NDArray[Any]:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    d = largest / -16
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, 0, 1 / d)
    q = np.trunc(blocks * inverse + np.float32(16.5), dtype=np.float32).astype(np.uint8).clip(0, 31)
    packed = (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))
    high = np.packbits(q >> np.uint8(4), axis=-1, bitorder="little")
    return np.concatenate([d.astype(np.float16).view(np.uint8), high, packed], axis=-1)


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 22*k) -> float32 (..., 32*k)."""
    return blockwise(_decode, raw, 22)  # type: ignore[return-value]


def quantize(values: Floats) -> Bytes:
    """Float32 (..., 32*k) -> bytes (..., 22*k); the weight largest in size becomes q = 0."""
    return blockwise(_encode, values, 32)  # type: ignore[return-value]


Q5_0 = Format("Q5_0", 6, 32, 22, dequantize, quantize, native=True)
