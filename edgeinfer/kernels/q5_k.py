"""Q5_K: Q4_K with a fifth bit.

Packed, a block of 256: 512 bytes of fifth bits (vector v: quad v; bit j: sub-block j), each vector followed by the one of the
first pair's nibbles that needs it; 1536 bytes of nibbles; scales as Q4_K. So lines ascend as they are read (see `q6_k`).
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_s32, load_u8, store_float, store_s32
from ..runtime.simd import bits, high_nibble, load_i32, low_nibble, or_i, store_i32
from ..runtime.tile import slots_of, tile_dot_pair, tile_zero_f, tile_zero_i
from ..runtime.vec import inner, native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_with_min, make_matmul
from .pack import make_pack
from .q4_k import add_block, pack_scales, scale_and_min, unpack_scales

HIGH = 128  # bytes from one vector of fifth bits to the next


def _pair(low_bit, high_bit, p):
    """The dot and unpack of sub-blocks 2p and 2p+1; the bit numbers are constants of the code."""
    first, step = (
        (64, HIGH) if p == 0 else (512 + p * 512, 64)
    )  # nibbles of the first pair stand between the fifth bits

    @inner
    def sums(W, q, x0, x1, S):
        a0 = tile_zero_i(W)
        a1 = tile_zero_i(W)
        for v in range(0, 8, 2):
            at = v * 4 * S
            h = load_i32(q, v * HIGH)
            w = load_i32(q, first + v * step)
            g = load_i32(q, (v + 1) * HIGH)
            y = load_i32(q, first + (v + 1) * step)
            low, high = or_i(low_nibble(w), low_bit(h)), or_i(high_nibble(w), high_bit(h))
            a0 = tile_dot_pair(a0, low, x0 + at, or_i(low_nibble(y), low_bit(g)), x0 + at + 4 * S)
            a1 = tile_dot_pair(a1, high, x1 + at, or_i(high_nibble(y), high_bit(g)), x1 + at + 4 * S)
        return a0, a1

    @native
    def spread(q, w):
        for v in range(8):
            h = load_i32(q, v * HIGH)
            x = load_i32(q, first + v * step)
            store_i32(w, p * 1024 + v * 64, or_i(low_nibble(x), low_bit(h)))
            store_i32(w, p * 1024 + 512 + v * 64, or_i(high_nibble(x), high_bit(h)))

    return sums, spread


_pairs = [_pair(bits(2 * p, 1, 4), bits(2 * p + 1, 1, 4), p) for p in range(4)]
(sums0, spread0), (sums1, spread1), (sums2, spread2), (sums3, spread3) = _pairs


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for B in range(nb // 8):
        sb = s + B * 320
        qb = q + B * 2560
        x = xq + B * 256 * S
        d = xd + B * 32 * S
        m = xs + B * 64 * S
        ask(W, qb, 10)
        a0, a1 = sums0(W, qb, x, x + 32 * S, S)
        acc = add_block(acc, a0, S, sb, 0, d, m)
        acc = add_block(acc, a1, S, sb, 1, d + 4 * S, m + 8 * S)
        ask(W, qb + 640, 10)
        a0, a1 = sums1(W, qb, x + 64 * S, x + 96 * S, S)
        acc = add_block(acc, a0, S, sb, 2, d + 8 * S, m + 16 * S)
        acc = add_block(acc, a1, S, sb, 3, d + 12 * S, m + 24 * S)
        ask(W, qb + 1280, 10)
        a0, a1 = sums2(W, qb, x + 128 * S, x + 160 * S, S)
        acc = add_block(acc, a0, S, sb, 4, d + 16 * S, m + 32 * S)
        acc = add_block(acc, a1, S, sb, 5, d + 20 * S, m + 40 * S)
        ask(W, qb + 1920, 10)
        a0, a1 = sums3(W, qb, x + 192 * S, x + 224 * S, S)
        acc = add_block(acc, a0, S, sb, 6, d + 24 * S, m + 48 * S)
        acc = add_block(acc, a1, S, sb, 7, d + 28 * S, m + 56 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for B in range(nb // 8):
        unpack_scales(s + B * 320, d + B * 512, m + B * 512)
        qb = q + B * 2560
        to = w + B * 4096
        spread0(qb, to)
        spread1(qb, to)
        spread2(qb, to)
        spread3(qb, to)


def pack_block(source, q, s, r):
    for v in range(8):
        store_s32(q, v * HIGH + r * 4, load_s32(source, 16 + v * 4))
        store_s32(q, v * HIGH + 64 + r * 4, load_s32(source, 48 + v * 4))
    for i in range(8, 32):
        store_s32(q, 512 + i * 64 + r * 4, load_s32(source, 48 + i * 4))
    pack_scales(source, s, r)


def decode_block(source, x, scale):
    d = load_half(source, 0)
    dmin = load_half(source, 2)
    for j in range(8):
        both = scale_and_min(source + 4, j)
        sc = d * np.float32(both & 255)
        mn = dmin * np.float32(both >> 8)
        for i in range(32):
            q = (load_u8(source, 48 + (j >> 1) * 32 + i) >> ((j & 1) * 4)) & 15
            q |= ((load_u8(source, 16 + i) >> j) & 1) << 4
            store_float(x, (j * 32 + i) * 4, (sc * np.float32(q) - mn) * scale)


KERNELS = {
    "matmul.q5_k": make_matmul(dot, unpack, gemm_with_min, 320, 40),
    "pack.q5_k": make_pack(pack_block, 176, 8, 2560, 320),
    "embed.q5_k": make_embed(decode_block, 176, 256),
}
