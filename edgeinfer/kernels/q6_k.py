"""Q6_K: blocks of 256 = 16 x 16; w = d sc (q - 32) with signed 8-bit sc.

Packed a block of 32: 128 bytes of upper bits (vector 0: quads 0-3, vector 1: quads 4-7, two bits each), 256 bytes of low
nibbles (low: quads 0-3, high: quads 4-7); scales a block of 256: sc i8 [16][16 rows], d f16 [16]. What is read first stands
first: with the upper bits behind the nibbles the CPU did not fetch ahead, and one token took twice as long.
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_s8, load_u8, load_u16, store_float, store_u8, store_u16
from ..runtime.simd import (
    bits,
    from_i8,
    high_nibble,
    load_f16,
    load_i8,
    load_i32,
    low_nibble,
    or_i,
    store_i32,
    to_f32,
)  # fmt: skip
from ..runtime.tile import slots_of, tile_dot_pair, tile_start, tile_zero_f
from ..runtime.vec import native
from .embed import make_embed
from .halves import add_halves, gemm_halves, unpack_halves
from .layout import ask
from .matmul import make_matmul
from .pack import make_pack

U0, U1, U2, U3 = (bits(2 * v, 3, 4) for v in range(4))  # the upper two bits of quad v, in place


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        sb = s + (b >> 3) * 288
        qb = q + b * 384
        x = xq + b * 32 * S
        ask(W, qb, 6)
        a = tile_start(W, xh + b * 8 * S)
        c = tile_start(W, xh + b * 8 * S + 4 * S)
        h0 = load_i32(qb, 0)
        h1 = load_i32(qb, 64)
        w = load_i32(qb, 128)
        y = load_i32(qb, 192)
        a = tile_dot_pair(a, or_i(low_nibble(w), U0(h0)), x, or_i(low_nibble(y), U1(h0)), x + 4 * S)
        c = tile_dot_pair(c, or_i(high_nibble(w), U0(h1)), x + 16 * S, or_i(high_nibble(y), U1(h1)), x + 20 * S)
        w = load_i32(qb, 256)
        y = load_i32(qb, 320)
        a = tile_dot_pair(a, or_i(low_nibble(w), U2(h0)), x + 8 * S, or_i(low_nibble(y), U3(h0)), x + 12 * S)
        c = tile_dot_pair(c, or_i(high_nibble(w), U2(h1)), x + 24 * S, or_i(high_nibble(y), U3(h1)), x + 28 * S)
        i = (b & 7) * 32
        u = from_i8(load_i8(sb, i + 16))
        acc = add_halves(acc, a, c, to_f32(load_f16(sb, 256)), from_i8(load_i8(sb, i)), u, xd + b * 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        sb = s + (b >> 3) * 288
        qb = q + b * 384
        to = w + b * 512
        h0 = load_i32(qb, 0)
        h1 = load_i32(qb, 64)
        x = load_i32(qb, 128)
        store_i32(to, 0, or_i(low_nibble(x), U0(h0)))
        store_i32(to, 256, or_i(high_nibble(x), U0(h1)))
        x = load_i32(qb, 192)
        store_i32(to, 64, or_i(low_nibble(x), U1(h0)))
        store_i32(to, 320, or_i(high_nibble(x), U1(h1)))
        x = load_i32(qb, 256)
        store_i32(to, 128, or_i(low_nibble(x), U2(h0)))
        store_i32(to, 384, or_i(high_nibble(x), U2(h1)))
        x = load_i32(qb, 320)
        store_i32(to, 192, or_i(low_nibble(x), U3(h0)))
        store_i32(to, 448, or_i(high_nibble(x), U3(h1)))
        i = (b & 7) * 32
        u = from_i8(load_i8(sb, i + 16))
        unpack_halves(d + b * 64, m + b * 128, to_f32(load_f16(sb, 256)), from_i8(load_i8(sb, i)), u)


@native
def value(source, b, i):
    """The 6-bit value i of the file block's sub-block b of 32."""
    half = b >> 2
    f = b & 3
    low = (load_u8(source, half * 64 + (f & 1) * 32 + i) >> ((f >> 1) * 4)) & 15
    return low | ((load_u8(source, 128 + half * 32 + i) >> (2 * f)) & 3) << 4


def pack_block(source, q, s, r):
    for b in range(8):
        qb = q + b * 384 + r * 4
        for v in range(4):
            for i in range(4):
                low = value(source, b, v * 4 + i)
                top = value(source, b, 16 + v * 4 + i)
                store_u8(qb, 128 + v * 64 + i, (low & 15) | (top & 15) << 4)
        for i in range(4):
            h0 = 0
            h1 = 0
            for v in range(4):
                h0 |= (value(source, b, v * 4 + i) >> 4) << (2 * v)
                h1 |= (value(source, b, 16 + v * 4 + i) >> 4) << (2 * v)
            store_u8(qb, i, h0)
            store_u8(qb, 64 + i, h1)
    for j in range(16):
        store_u8(s, j * 16 + r, load_u8(source, 192 + j))
    store_u16(s, 256 + r * 2, load_u16(source, 208))


def decode_block(source, x, scale):
    d = load_half(source, 208)
    for b in range(8):
        for i in range(32):
            sc = np.float32(load_s8(source, 192 + b * 2 + (i >> 4)))
            store_float(x, (b * 32 + i) * 4, d * sc * np.float32(value(source, b, i) - 32) * scale)


KERNELS = {
    "matmul.q6_k": make_matmul(dot, unpack, gemm_halves(tile_start), 384, 36, straight_tokens=128),
    "pack.q6_k": make_pack(pack_block, 210, 8, 3072, 288),
    "embed.q6_k": make_embed(decode_block, 210, 256),
}
