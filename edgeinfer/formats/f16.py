"""F16: IEEE half precision, one number per block of 2 bytes."""

from __future__ import annotations

import numpy as np

from .format import Bytes, Floats, Format

__all__ = ["F16"]


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 2*n) -> float32 (..., n)."""
    return np.ascontiguousarray(raw).view(np.dtype("<f2")).astype(np.float32)


def quantize(values: Floats) -> Bytes:
    """Float32 (..., n) -> bytes (..., 2*n), rounded to nearest even."""
    return np.ascontiguousarray(values).astype(np.dtype("<f2")).view(np.uint8)


F16 = Format("F16", 1, 1, 2, dequantize, quantize, native=True)
