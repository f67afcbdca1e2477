"""Rows of the token table, dequantized straight from the mapped file: only the pages of tokens in use are ever read."""

from __future__ import annotations

from ..plan.fields import indices
from ..runtime.layout import STATE_IDS, STATE_N
from ..runtime.memory import field, field_f
from ..runtime.vec import native
from .layout import share_start

TABLE, ROW_BYTES, X, X_STRIDE, COLS, SCALE = indices("embed", "table row_bytes x x_stride cols scale")


def make_embed(decode_block, file_bytes, values):
    """The embed kernel of a format: decode_block(source, x, scale) writes `values` float32 of one file block."""
    inner = native(decode_block)

    def embed(step, state, ith, nth):
        n = field(state, STATE_N)
        ids = field(state, STATE_IDS)
        blocks = field(step, COLS) // values
        scale = field_f(step, SCALE)
        for t in range(share_start(n, ith, nth), share_start(n, ith + 1, nth)):
            row = field(step, TABLE) + field(ids, t) * field(step, ROW_BYTES)
            x = field(step, X) + t * field(step, X_STRIDE)
            for b in range(blocks):
                inner(row + b * file_bytes, x + b * values * 4, scale)

    return embed
