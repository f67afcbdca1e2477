"""Q8_0: 32 weights = one f16 scale d and 32 signed bytes; w = d * q. 8.5 bits per weight.

Block of 34 bytes: d (2), qs (32).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise

__all__ = ["Q8_0"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return np.asarray(blocks[:, 2:].view(np.int8).astype(np.float32) * d)


def _round(values: NDArray[Any]) -> NDArray[Any]:
    """Round half away from zero, as C's roundf (np.round goes to even)."""
    size = np.abs(values)
    whole = np.floor(size)
    return np.asarray(np.sign(values) * (whole + np.floor(2 * (size - whole))))


def _encode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = np.abs(blocks).max(axis=1, keepdims=True) / 127
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, 0, 1 / d)
    q = _round(blocks * inverse).astype(np.int8).view(np.uint8)
    return np.concatenate([d.astype(np.float16).view(np.uint8), q], axis=1)


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 34*k) -> float32 (..., 32*k)."""
    return blockwise(_decode, raw, 34)  # type: ignore[return-value]


def quantize(values: Floats) -> Bytes:
    """Float32 (..., 32*k) -> bytes (..., 34*k)."""
    return blockwise(_encode, values, 32)  # type: ignore[return-value]


Q8_0 = Format("Q8_0", 8, 32, 34, dequantize, quantize, native=True)
