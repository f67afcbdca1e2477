"""BF16: the upper half of an IEEE single, one number per block of 2 bytes."""

from __future__ import annotations

import numpy as np

from .format import Bytes, Floats, Format

__all__ = ["BF16"]


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 2*n) -> float32 (..., n)."""
    bits = np.ascontiguousarray(raw).view(np.dtype("<u2")).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)


def quantize(values: Floats) -> Bytes:
    """Float32 (..., n) -> bytes (..., 2*n), rounded to nearest even; NaN becomes quiet."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    quiet = (bits & np.uint32(0xFFFF0000)) | np.uint32(64 << 16)
    bits = np.where((bits & np.uint32(0x7FFFFFFF)) > 0x7F800000, quiet, bits)
    rounded = (bits.astype(np.uint64) + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint64(16)
    return rounded.astype(np.dtype("<u2")).view(np.uint8)


BF16 = Format("BF16", 30, 1, 2, dequantize, quantize, native=True)
