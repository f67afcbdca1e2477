"""Q6_K: 256 weights in 16 sub-blocks of 16; w = d * sc[s] * (q - 32), q of 6 bits. 6.5625 bits per weight.

Block of 210 bytes: ql (128), qh (64), scales int8 (16), d f16 (2). Each half of the block (128 weights) takes 64 bytes
of ql (low halves: weights 0-63, high halves: 64-127) and 32 of qh (bit pair p: weights 32p to 32p+31).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Bytes, Floats, Format, blockwise, nibbles

__all__ = ["Q6_K"]


def _decode(blocks: NDArray[Any]) -> NDArray[Any]:
    low = nibbles(blocks[:, :128], 64).reshape(-1, 8, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (pairs & np.uint8(3)).reshape(-1, 8, 32)
    q = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    d = blocks[:, 208:].copy().view(np.float16).astype(np.float32)
    scales = d * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return np.asarray((scales[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256))


def dequantize(raw: Bytes) -> Floats:
    """Bytes (..., 210*k) -> float32 (..., 256*k)."""
    return blockwise(_decode, raw, 210)  # type: ignore[return-value]


Q6_K = Format("Q6_K", 14, 256, 210, dequantize, native=True)
