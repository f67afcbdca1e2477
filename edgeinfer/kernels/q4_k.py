"""Q4_K: blocks of 256 = 8 x 32; w = d sc q - dmin mn with 6-bit sc and mn.

Packed: 2048 bytes of nibbles (four pairs of sub-blocks: low nibbles the even one, high the odd one) and 320 bytes of scales:
sc u8 [8][16 rows], mn u8 [8][16], d f16 [16], dmin f16 [16].
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_s32, load_u8, load_u16, store_float, store_s32, store_u8, store_u16
from ..runtime.simd import (
    from_u8,
    high_nibble,
    load_f16,
    load_i8,
    load_i32,
    low_nibble,
    mul_f,
    splat_f,
    store_f32,
    store_i32,
    to_f32,
    to_float,
)  # fmt: skip
from ..runtime.tile import slots_of, tile_add_floats, tile_dot_pair, tile_scale, tile_zero_f, tile_zero_i
from ..runtime.vec import inner, native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_with_min, make_matmul
from .pack import make_pack

MINUS = np.float32(-1)


@native
def scale_and_min(scales, j):
    """The 6-bit scale and minimum of sub-block j from the file's 12 packed bytes, as scale | minimum << 8."""
    if j < 4:
        return (load_u8(scales, j) & 63) | (load_u8(scales, j + 4) & 63) << 8
    high = load_u8(scales, j + 4)
    sc = (high & 15) | (load_u8(scales, j - 4) >> 6) << 4
    return sc | ((high >> 4) | (load_u8(scales, j) >> 6) << 4) << 8


@native
def pack_scales(source, s, r):
    """d, dmin and the 12 bytes of 6-bit scales of one file block, for row r."""
    for j in range(8):
        both = scale_and_min(source + 4, j)
        store_u8(s, j * 16 + r, both & 255)
        store_u8(s, 128 + j * 16 + r, both >> 8)
    store_u16(s, 256 + r * 2, load_u16(source, 0))
    store_u16(s, 288 + r * 2, load_u16(source, 2))


@native
def scale_of(s, j):
    """d sc of sub-block j."""
    return mul_f(to_f32(load_f16(s, 256)), to_float(from_u8(load_i8(s, j * 16))))


@native
def min_of(s, j):
    """-dmin mn of sub-block j."""
    return mul_f(mul_f(to_f32(load_f16(s, 288)), splat_f(MINUS)), to_float(from_u8(load_i8(s, 128 + j * 16))))


@inner
def add_block(acc, a, S, s, j, xd, xs):
    """acc += the integer sums `a` of sub-block j, scaled, less the minimum."""
    acc = tile_scale(acc, a, scale_of(s, j), xd)
    return tile_add_floats(acc, min_of(s, j), xs + 4 * S)


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for B in range(nb // 8):
        sb = s + B * 320
        for p in range(4):
            qb = q + B * 2048 + p * 512
            b = B * 8 + 2 * p
            x0 = xq + b * 32 * S
            x1 = x0 + 32 * S
            ask(W, qb, 8)
            a0 = tile_zero_i(W)
            a1 = tile_zero_i(W)
            for v in range(0, 8, 2):
                w = load_i32(qb, v * 64)
                y = load_i32(qb, v * 64 + 64)
                a0 = tile_dot_pair(a0, low_nibble(w), x0 + v * 4 * S, low_nibble(y), x0 + (v + 1) * 4 * S)
                a1 = tile_dot_pair(a1, high_nibble(w), x1 + v * 4 * S, high_nibble(y), x1 + (v + 1) * 4 * S)
            acc = add_block(acc, a0, S, sb, 2 * p, xd + b * 4 * S, xs + b * 8 * S)
            acc = add_block(acc, a1, S, sb, 2 * p + 1, xd + (b + 1) * 4 * S, xs + (b + 1) * 8 * S)
    return acc


@native
def unpack_scales(s, d, m):
    """8 scales and 8 minima of 16 rows as float32."""
    for j in range(8):
        store_f32(d, j * 64, scale_of(s, j))
        store_f32(m, j * 64, min_of(s, j))


@native
def unpack(q, s, w, d, m, nb):
    for B in range(nb // 8):
        unpack_scales(s + B * 320, d + B * 512, m + B * 512)
        for p in range(4):
            to = w + (B * 8 + 2 * p) * 512
            for v in range(8):
                x = load_i32(q, B * 2048 + p * 512 + v * 64)
                store_i32(to, v * 64, low_nibble(x))
                store_i32(to, 512 + v * 64, high_nibble(x))


def pack_block(source, q, s, r):
    for i in range(32):
        store_s32(q, i * 64 + r * 4, load_s32(source, 16 + i * 4))
    pack_scales(source, s, r)


def decode_block(source, x, scale):
    d = load_half(source, 0)
    dmin = load_half(source, 2)
    for j in range(8):
        both = scale_and_min(source + 4, j)
        sc = d * np.float32(both & 255)
        mn = dmin * np.float32(both >> 8)
        for i in range(32):
            q = (load_u8(source, 16 + (j >> 1) * 32 + i) >> ((j & 1) * 4)) & 15
            store_float(x, (j * 32 + i) * 4, (sc * np.float32(q) - mn) * scale)


KERNELS = {
    "matmul.q4_k": make_matmul(dot, unpack, gemm_with_min, 256, 40, straight_tokens=256),
    "pack.q4_k": make_pack(pack_block, 144, 8, 2048, 320),
    "embed.q4_k": make_embed(decode_block, 144, 256),
}
