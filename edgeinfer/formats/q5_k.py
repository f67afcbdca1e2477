"""Q5_K: 256 weights in 8 sub-blocks of 32; w = d * sc[s] * q - dmin * m[s], q of 5 bits. 5.5 bits per weight.

Block of 176 bytes: d f16 (2), dmin f16 (2), scales (12, as in Q4_K), qh (32), qs (128, as in Q4_K);
bit s of qh[i] is the top bit of weight i of sub-block s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles
from .q4_k import scale_min

__all__ = ["Q5_K"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    dmin = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    scales, mins = scale_min(blocks[:, 4:16])
    high = (blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & np.uint8(1)
    q = (nibbles(blocks[:, 48:], 32).reshape(-1, 8, 32) | (high << np.uint8(4))).astype(np.float32)
    values = (d * scales.astype(np.float32))[:, :, None] * q - (dmin * mins.astype(np.float32))[:, :, None]
    return np.asarray(values.reshape(-1, 256))


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 176*k) -> float32 (..., 256*k)."""
    return blockwise(_decode, raw, 176)  # type: ignore[return-value]


Q5_K = Format("Q5_K", 13, 256, 176, dequantize, native=True)
