"""IQ4_NL: 32 weights = one f16 scale d and 32 4-bit indices into a fixed table; w = d * VALUES[q]. 4.5 bits per weight.

Block of 18 bytes: d (2), qs (16, as in Q4_0). The table is denser around zero, as weights are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["IQ4_NL", "VALUES"]

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # GGML's, part of the format


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return np.asarray(d * np.array(VALUES, np.float32)[nibbles(blocks[:, 2:], 16)])


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 18*k) -> float32 (..., 32*k)."""
    return blockwise(_decode, raw, 18)  # type: ignore[return-value]


IQ4_NL = Format("IQ4_NL", 20, 32, 18, dequantize, native=True)
