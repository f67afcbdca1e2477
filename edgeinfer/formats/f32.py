"""F32: IEEE single precision, one number per block of 4 bytes."""

from __future__ import annotations

import numpy as np

from .format import Bytes, Floats, Format

__all__ = ["F32"]


def dequantize(raw: Bytes) -> Floats:
    """View bytes (..., 4*n) as float32 (..., n)."""
    return np.ascontiguousarray(raw).view(np.dtype("<f4"))


def quantize(values: Floats) -> Bytes:
    """View float32 (..., n) as bytes (..., 4*n)."""
    return np.ascontiguousarray(values, np.dtype("<f4")).view(np.uint8)


F32 = Format("F32", 0, 1, 4, dequantize, quantize, native=True)
