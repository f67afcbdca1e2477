"""MXFP4: 32 weights = a power of two and 32 4-bit floats (OCP Microscaling Formats 1.0). 4.25 bits per weight.

Block of 17 bytes: e (1), qs (16, as in Q4_0); w = 2^(e - 128) * VALUES[q]. VALUES are twice the E2M1 numbers, so that they
are whole. e = 255, which the standard calls NaN, is 2^127 in GGML and here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["MXFP4", "VALUES"]

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _power(e: NDArray[Any]) -> NDArray[Any]:
    """2^(e - 128) as float32, exact: the two least are subnormal."""
    return np.ldexp(np.float32(1), e.astype(np.int32) - 128).astype(np.float32)


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(_power(blocks[:, :1]) * np.array(VALUES, np.float32)[nibbles(blocks[:, 1:], 16)])


def _encode(blocks: NDArray[Any]) -> NDArray[Any]:
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        e = np.where(largest > 0, np.floor(np.log2(largest)) - 2 + 127, 0).astype(np.int32).astype(np.uint8)
    error = np.abs(_power(e)[:, :, None] * np.array(VALUES, np.float32) - blocks[:, :, None])
    q = error.argmin(axis=-1).astype(np.uint8)
    return np.concatenate([e, q[:, :16] | (q[:, 16:] << np.uint8(4))], axis=-1)


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 17*k) -> float32 (..., 32*k); infinite where the largest powers meet the largest numbers."""
    with np.errstate(over="ignore"):
        return blockwise(_decode, raw, 17)  # type: ignore[return-value]


def quantize(values: Floats) -> Bytes:
    """Float32 (..., 32*k) -> bytes (..., 17*k), as GGML does: the exponent of the largest number less that of 4."""
    return blockwise(_encode, values, 32)  # type: ignore[return-value]


MXFP4 = Format("MXFP4", 39, 32, 17, dequantize, quantize, native=True)
