"""Q3_K: blocks of 256 = 16 x 16; w = d (sc - 32) (q - 4) with 6-bit sc and 3-bit q.

Packed, a block of 32: 64 bytes of top bits (bit v of a byte belongs to quad v), 128 bytes of bit pairs as Q2_K; scales, a
block of 256: sc - 32 as i8 [16][16 rows], d f16 [16].
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_u8, load_u16, load_u32, store_float, store_s32, store_u8, store_u16
from ..runtime.simd import bits, from_i8, load_f16, load_i8, load_i32, or_i, store_i32, to_f32
from ..runtime.tile import slots_of, tile_dot, tile_start_eighth, tile_zero_f
from ..runtime.vec import native
from .embed import make_embed
from .halves import add_halves, gemm_halves, unpack_halves
from .layout import ask
from .matmul import make_matmul
from .pack import make_pack
from .q2_k import P0, P1, P2, P3, pack_pairs

T0, T1, T2, T3, T4, T5, T6, T7 = (bits(v, 1, 2) for v in range(8))  # the top bit of quad v, in place


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        sb = s + (b >> 3) * 288
        qb = q + b * 192
        x = xq + b * 32 * S
        ask(W, qb, 3)
        a = tile_start_eighth(W, xh + b * 8 * S)
        c = tile_start_eighth(W, xh + b * 8 * S + 4 * S)
        h = load_i32(qb, 0)
        w = load_i32(qb, 64)
        a = tile_dot(a, or_i(P0(w), T0(h)), x)
        a = tile_dot(a, or_i(P1(w), T1(h)), x + 4 * S)
        a = tile_dot(a, or_i(P2(w), T2(h)), x + 8 * S)
        a = tile_dot(a, or_i(P3(w), T3(h)), x + 12 * S)
        w = load_i32(qb, 128)
        c = tile_dot(c, or_i(P0(w), T4(h)), x + 16 * S)
        c = tile_dot(c, or_i(P1(w), T5(h)), x + 20 * S)
        c = tile_dot(c, or_i(P2(w), T6(h)), x + 24 * S)
        c = tile_dot(c, or_i(P3(w), T7(h)), x + 28 * S)
        i = (b & 7) * 32
        u = from_i8(load_i8(sb, i + 16))
        acc = add_halves(acc, a, c, to_f32(load_f16(sb, 256)), from_i8(load_i8(sb, i)), u, xd + b * 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        sb = s + (b >> 3) * 288
        qb = q + b * 192
        to = w + b * 512
        h = load_i32(qb, 0)
        x = load_i32(qb, 64)
        store_i32(to, 0, or_i(P0(x), T0(h)))
        store_i32(to, 64, or_i(P1(x), T1(h)))
        store_i32(to, 128, or_i(P2(x), T2(h)))
        store_i32(to, 192, or_i(P3(x), T3(h)))
        x = load_i32(qb, 128)
        store_i32(to, 256, or_i(P0(x), T4(h)))
        store_i32(to, 320, or_i(P1(x), T5(h)))
        store_i32(to, 384, or_i(P2(x), T6(h)))
        store_i32(to, 448, or_i(P3(x), T7(h)))
        i = (b & 7) * 32
        u = from_i8(load_i8(sb, i + 16))
        unpack_halves(d + b * 64, m + b * 128, to_f32(load_f16(sb, 256)), from_i8(load_i8(sb, i)), u)


@native
def scale(source, j):
    """sc - 32 of sub-block j of a file block."""
    low = (load_u8(source, 96 + (j & 7)) >> (j >> 3) * 4) & 15
    return (low | ((load_u8(source, 104 + (j & 3)) >> (j >> 2) * 2) & 3) << 4) - 32


def pack_block(source, q, s, r):
    pack_pairs(source + 32, q + 64, r, 192)
    for b in range(8):
        word = 0
        for v in range(8):
            word |= ((load_u32(source, v * 4) >> b) & 0x01010101) << v
        store_s32(q, b * 192 + r * 4, np.int32(word))
    for j in range(16):
        store_u8(s, j * 16 + r, scale(source, j))
    store_u16(s, 256 + r * 2, load_u16(source, 108))


def decode_block(source, x, factor):
    d = load_half(source, 108)
    for j in range(16):
        sc = d * np.float32(scale(source, j))
        b = j >> 1
        for i in range(16):
            at = (j & 1) * 16 + i
            q = (load_u8(source, 32 + (b >> 2) * 32 + at) >> ((b & 3) * 2)) & 3
            q |= ((load_u8(source, at) >> b) & 1) << 2
            store_float(x, (j * 16 + i) * 4, sc * np.float32(q - 4) * factor)


KERNELS = {
    "matmul.q3_k": make_matmul(dot, unpack, gemm_halves(tile_start_eighth), 192, 36),
    "pack.q3_k": make_pack(pack_block, 110, 8, 1536, 288),
    "embed.q3_k": make_embed(decode_block, 110, 256),
}
