"""IQ4_XS: blocks of 256 = 8 x 32; w = d (sc - 32) VALUES[q] with 6-bit sc.

Packed, a block of 256: 8 x 256 bytes of nibbles as Q4_0; scales: sc - 32 as i8 [8][16 rows], d f16 [16].
"""

from __future__ import annotations

import numpy as np

from ..formats.iq4_nl import VALUES
from ..runtime.memory import load_half, load_s32, load_u8, load_u16, store_float, store_s32, store_u8, store_u16
from ..runtime.simd import from_i8, load_f16, load_i8, mul_f, to_f32, to_float
from ..runtime.vec import native
from .embed import make_embed
from .iq4_nl import make_table
from .matmul import gemm_signed, make_matmul
from .pack import make_pack


@native
def scale_of(s, b):
    """d (sc - 32) of block b of the row."""
    sb = s + (b >> 3) * 160
    return mul_f(to_f32(load_f16(sb, 128)), to_float(from_i8(load_i8(sb, (b & 7) * 16))))


dot, unpack, entry = make_table(VALUES, scale_of)


@native
def scale(source, j):
    """sc - 32 of sub-block j of a file block."""
    low = (load_u8(source, 4 + (j >> 1)) >> ((j & 1) * 4)) & 15
    return (low | ((load_u16(source, 2) >> (2 * j)) & 3) << 4) - 32


def pack_block(source, q, s, r):
    for j in range(8):
        for v in range(4):
            store_s32(q, j * 256 + v * 64 + r * 4, load_s32(source, 8 + j * 16 + v * 4))
        store_u8(s, j * 16 + r, scale(source, j))
    store_u16(s, 128 + r * 2, load_u16(source, 0))


def decode_block(source, x, factor):
    d = load_half(source, 0)
    for j in range(8):
        sc = d * np.float32(scale(source, j))
        for i in range(16):
            b = load_u8(source, 8 + j * 16 + i)
            store_float(x, (j * 32 + i) * 4, sc * entry(b & 15) * factor)
            store_float(x, (j * 32 + i) * 4 + 64, sc * entry(b >> 4) * factor)


KERNELS = {
    "matmul.iq4_xs": make_matmul(dot, unpack, gemm_signed, 256, 20),
    "pack.iq4_xs": make_pack(pack_block, 136, 8, 2048, 160),
    "embed.iq4_xs": make_embed(decode_block, 136, 256),
}
