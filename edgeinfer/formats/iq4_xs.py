"""IQ4_XS: 256 weights in 8 sub-blocks of 32; w = d * (sc[s] - 32) * VALUES[q], sc of 6 bits. 4.25 bits per weight.

Block of 136 bytes: d f16 (2), scales_h (2), scales_l (4), qs (128: 16 bytes a sub-block, as in IQ4_NL). Half bytes of
scales_l are the low four bits of sc 0-7, bit pairs of scales_h the top two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles
from .iq4_nl import VALUES

__all__ = ["IQ4_XS"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    low = nibbles(blocks[:, 4:8], 1)
    top = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    scales = (low | (top.reshape(-1, 8) << np.uint8(4))).astype(np.int8) - np.int8(32)
    values = np.array(VALUES, np.float32)[nibbles(blocks[:, 8:], 16)].reshape(-1, 8, 32)
    return np.asarray(((d * scales.astype(np.float32))[:, :, None] * values).reshape(-1, 256))


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 136*k) -> float32 (..., 256*k)."""
    return blockwise(_decode, raw, 136)  # type: ignore[return-value]


IQ4_XS = Format("IQ4_XS", 23, 256, 136, dequantize, native=True)
