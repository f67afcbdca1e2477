"""Packing of file rows into groups of 16: the one driver that every format's pack kernel uses.

The step's fields: address of the row addresses (int64 (groups, 16), 0 for a padding row), quants, scales, 32-value
blocks per row, groups. Padding rows are left as the zeroed memory they are, so their scale is 0.
"""

from __future__ import annotations

from ..plan.fields import indices
from ..runtime.memory import field
from ..runtime.vec import native
from .layout import share_start

PACK_ROWS, PACK_QUANTS, PACK_SCALES, PACK_BLOCKS, PACK_GROUPS = indices("pack", "rows quants scales blocks groups")


def make_pack(pack_block, file_bytes, blocks, quant_bytes, scale_bytes):
    """The pack kernel of a format whose file block holds 32 x blocks values in file_bytes.

    pack_block(source, quants, scales, row) places one file block of row 0..15; quant_bytes and scale_bytes are what 16 rows of
    such a block take in the two streams.
    """
    inner = native(pack_block)

    def pack(record, _state, ith, nth):
        rows = field(record, PACK_ROWS)
        quants = field(record, PACK_QUANTS)
        scales = field(record, PACK_SCALES)
        n = field(record, PACK_BLOCKS) // blocks
        groups = field(record, PACK_GROUPS)
        for g in range(share_start(groups, ith, nth), share_start(groups, ith + 1, nth)):
            for r in range(16):
                source = field(rows, g * 16 + r)
                if source != 0:
                    for b in range(n):
                        i = g * n + b
                        inner(source + b * file_bytes, quants + i * quant_bytes, scales + i * scale_bytes, r)

    return pack
