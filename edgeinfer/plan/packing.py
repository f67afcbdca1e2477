"""How large a packed matrix is, and which file row goes where. The layouts themselves are in `kernels/`.

16 rows x 32 values take these bytes in the two streams; the sum is the file's own size, but for Q3_K (+3.6 %), Q4_K and
Q5_K (+2.8 %) and IQ4_XS (+1.5 %), whose 6-bit scales take a byte each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from .program import Matrix, Part

__all__ = [
    "CONV_RING", "KV_PAGE", "KV_TYPES", "PACKED_BYTES", "conv_page_bytes", "kv_page_bytes", "packed_bytes", "row_order",
]  # fmt: skip

PACKED_BYTES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "f32": (2048, 0), "f16": (1024, 0), "bf16": (1024, 0),
        "q4_0": (256, 32), "q4_1": (256, 64), "q5_0": (320, 32), "q5_1": (320, 64), "q8_0": (512, 32),
        "q2_k": (128, 40), "q3_k": (192, 36), "q4_k": (256, 40), "q5_k": (320, 40), "q6_k": (384, 36),
        "iq4_nl": (256, 32), "iq4_xs": (256, 20), "mxfp4": (256, 16),
    }
)  # fmt: skip


KV_PAGE = 64  # positions of a KV page
# Bytes that 32 dimensions of a key or value take, by KV type.
KV_TYPES: Mapping[str, int] = MappingProxyType({"f16": 64, "q8_0": 34, "q4_0": 18})


def kv_page_bytes(kv_type: str, n_head_kv: int, head_dim: int) -> int:
    """Bytes of one layer's KV page: keys and values of 64 positions. f16 takes any head size, the others multiples of 32."""
    return KV_PAGE * n_head_kv * 2 * (head_dim * KV_TYPES[kv_type] // 32)


CONV_RING = 16  # positions of a page that a short convolution remembers, the last ones


def conv_page_bytes(n_embd: int) -> int:
    """Bytes of one short convolution's page: float32 (CONV_RING, n_embd)."""
    return CONV_RING * n_embd * 4


def packed_bytes(matrix: Matrix) -> tuple[int, int]:
    """Bytes of the quants and of the scales of a packed matrix."""
    quants, scales = PACKED_BYTES[matrix.format]
    blocks = matrix.groups * (matrix.cols // 32)
    return blocks * quants, blocks * scales


def _order(part: Part) -> NDArray[np.int64]:
    """The file row that stands at each row of a part."""
    rows = np.arange(part.first, part.first + part.n_rows, dtype=np.int64)
    if not part.pair_heads:
        return rows
    heads = rows.reshape(part.pair_heads, -1).copy()
    turned = heads[:, : part.pair_dim].copy()
    half = part.pair_dim // 2
    heads[:, :half] = turned[:, 0::2]
    heads[:, half : part.pair_dim] = turned[:, 1::2]
    return heads.reshape(-1)


def row_order(matrix: Matrix) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each packed row: the number of its part and the row in it, both -1 for padding. Shape (groups * 16,) each."""
    lists = [(np.full(part.n_rows, i, np.int64), _order(part)) for i, part in enumerate(matrix.parts)]
    if matrix.alternate:
        padded = [(_pad(a), _pad(b)) for a, b in lists]
        which = np.stack([a.reshape(-1, 16) for a, _ in padded], 1).reshape(-1)
        rows = np.stack([b.reshape(-1, 16) for _, b in padded], 1).reshape(-1)
        return which, rows
    return _pad(np.concatenate([a for a, _ in lists])), _pad(np.concatenate([b for _, b in lists]))


def _pad(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([rows, np.full(-len(rows) % 16, -1, np.int64)])
