"""Q2_K: blocks of 256 = 16 x 16; w = d sc q - dmin mn with 4-bit sc and mn.

Packed, a block of 32: 128 bytes of bit pairs (vector 0: quads 0-3, vector 1: quads 4-7); scales, a block of 256: sc | mn << 4
as u8 [16][16 rows], d f16 [16], dmin f16 [16].
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_u8, load_u16, load_u32, store_float, store_s32, store_u8, store_u16
from ..runtime.simd import (
    bits,
    from_u8,
    high_nibble,
    load_f16,
    load_i8,
    load_i32,
    low_nibble,
    mul_f,
    mul_i,
    splat_f,
    store_f32,
    store_i32,
    to_f32,
    to_float,
)  # fmt: skip
from ..runtime.tile import (
    slots_of,
    tile_add_times_i,
    tile_dot,
    tile_scale,
    tile_start,
    tile_times_i,
    tile_zero_f,
    tile_zero_i,
)  # fmt: skip
from ..runtime.vec import inner, native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_two_minima, make_matmul
from .pack import make_pack

P0, P1, P2, P3 = (bits(2 * v, 3) for v in range(4))  # the bit pair of quad v
SHARE = np.float32(1 / 32)  # the minimum is subtracted, and the activation side carries -32 x the sum of half a block


@inner
def half_sum(acc, q, x, S):
    """acc += 16 two-bit values of 16 rows times 16 activations of T tokens."""
    w = load_i32(q, 0)
    acc = tile_dot(acc, P0(w), x)
    acc = tile_dot(acc, P1(w), x + 4 * S)
    acc = tile_dot(acc, P2(w), x + 8 * S)
    return tile_dot(acc, P3(w), x + 12 * S)


@native
def both(s, b, half):
    """sc | mn << 4 of a half of block b of the row, as int32."""
    return from_u8(load_i8(s, (b >> 3) * 320 + (b & 7) * 32 + half * 16))


@native
def min_of(s, b, half):
    """dmin mn / 32 of a half of block b."""
    dmin = to_f32(load_f16(s, (b >> 3) * 320 + 288))
    return mul_f(mul_f(dmin, splat_f(SHARE)), to_float(high_nibble(both(s, b, half))))


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        x = xq + b * 32 * S
        h = xh + b * 8 * S
        ask(W, q + b * 128, 2)
        a = half_sum(tile_zero_i(W), q + b * 128, x, S)
        c = half_sum(tile_zero_i(W), q + b * 128 + 64, x + 16 * S, S)
        a = tile_times_i(a, low_nibble(both(s, b, 0)))
        a = tile_add_times_i(a, c, low_nibble(both(s, b, 1)))
        acc = tile_scale(acc, a, to_f32(load_f16(s, (b >> 3) * 320 + 256)), xd + b * 4 * S)
        acc = tile_scale(acc, tile_start(W, h), min_of(s, b, 0), xd + b * 4 * S)
        acc = tile_scale(acc, tile_start(W, h + 4 * S), min_of(s, b, 1), xd + b * 4 * S)
    return acc


@native
def spread(q, sc, w):
    """Half a packed block to 256 bytes, times its scale: at most 3 x 15, so four bytes are scaled by one multiplication."""
    x = load_i32(q, 0)
    store_i32(w, 0, mul_i(P0(x), sc))
    store_i32(w, 64, mul_i(P1(x), sc))
    store_i32(w, 128, mul_i(P2(x), sc))
    store_i32(w, 192, mul_i(P3(x), sc))


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        for half in range(2):
            spread(q + b * 128 + half * 64, low_nibble(both(s, b, half)), w + b * 512 + half * 256)
            store_f32(m, b * 128 + half * 64, min_of(s, b, half))
        store_f32(d, b * 64, to_f32(load_f16(s, (b >> 3) * 320 + 256)))


@native
def pack_pairs(source, q, r, block_bytes):
    """64 bytes of the file's bit pairs to 8 blocks of 32, for row r."""
    for b in range(8):
        for half in range(2):
            word = 0
            for v in range(4):
                pairs = load_u32(source, (b >> 2) * 32 + half * 16 + v * 4) >> (2 * (b & 3))
                word |= (pairs & 0x03030303) << (2 * v)
            store_s32(q, b * block_bytes + half * 64 + r * 4, np.int32(word))


def pack_block(source, q, s, r):
    pack_pairs(source + 16, q, r, 128)
    for j in range(16):
        store_u8(s, j * 16 + r, load_u8(source, j))
    store_u16(s, 256 + r * 2, load_u16(source, 80))
    store_u16(s, 288 + r * 2, load_u16(source, 82))


def decode_block(source, x, scale):
    d = load_half(source, 80)
    dmin = load_half(source, 82)
    for j in range(16):
        pair = load_u8(source, j)
        sc = d * np.float32(pair & 15)
        mn = dmin * np.float32(pair >> 4)
        for i in range(16):
            q = (load_u8(source, 16 + (j >> 3) * 32 + (j & 1) * 16 + i) >> ((j >> 1 & 3) * 2)) & 3
            store_float(x, (j * 16 + i) * 4, (sc * np.float32(q) - mn) * scale)


KERNELS = {
    "matmul.q2_k": make_matmul(dot, unpack, gemm_two_minima, 128, 40),
    "pack.q2_k": make_pack(pack_block, 84, 8, 1024, 320),
    "embed.q2_k": make_embed(decode_block, 84, 256),
}
