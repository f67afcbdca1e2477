"""Q5_0: w = d (q - 16).

Packed, a block: 64 bytes of fifth bits (bit v of a byte belongs to quad v), 256 bytes of nibbles, 16 f16 scales. What is read
first stands first, or the CPU fetches less ahead: it follows lines that ascend.
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import (
    load_half,
    load_s32,
    load_u8,
    load_u16,
    load_u32,
    store_float,
    store_s32,
    store_u8,
    store_u16,
)
from ..runtime.simd import (
    bits,
    centred,
    high_nibble,
    load_f16,
    load_i32,
    low_nibble,
    or_i,
    store_f32,
    store_i32,
    to_f32,
)
from ..runtime.tile import slots_of, tile_dot_pair, tile_scale, tile_start2, tile_zero_f
from ..runtime.vec import inner, native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_5bit, make_matmul
from .pack import make_pack

B0, B1, B2, B3, B4, B5, B6, B7 = (bits(v, 1, 4) for v in range(8))  # the fifth bit of quad v, in place


@inner
def sum_five(acc, q, x, S):
    """acc += 32 five-bit values of 16 rows times 32 activations of T tokens."""
    h = load_i32(q, 0)
    w = load_i32(q, 64)
    acc = tile_dot_pair(acc, or_i(low_nibble(w), B0(h)), x, or_i(high_nibble(w), B4(h)), x + 16 * S)
    w = load_i32(q, 128)
    acc = tile_dot_pair(acc, or_i(low_nibble(w), B1(h)), x + 4 * S, or_i(high_nibble(w), B5(h)), x + 20 * S)
    w = load_i32(q, 192)
    acc = tile_dot_pair(acc, or_i(low_nibble(w), B2(h)), x + 8 * S, or_i(high_nibble(w), B6(h)), x + 24 * S)
    w = load_i32(q, 256)
    return tile_dot_pair(acc, or_i(low_nibble(w), B3(h)), x + 12 * S, or_i(high_nibble(w), B7(h)), x + 28 * S)


def five_unpacker(change):
    """A function that unpacks one block to 512 bytes, change(vector) of each."""

    @native
    def run(q, w):
        h = load_i32(q, 0)
        x = load_i32(q, 64)
        store_i32(w, 0, change(or_i(low_nibble(x), B0(h))))
        store_i32(w, 256, change(or_i(high_nibble(x), B4(h))))
        x = load_i32(q, 128)
        store_i32(w, 64, change(or_i(low_nibble(x), B1(h))))
        store_i32(w, 320, change(or_i(high_nibble(x), B5(h))))
        x = load_i32(q, 192)
        store_i32(w, 128, change(or_i(low_nibble(x), B2(h))))
        store_i32(w, 384, change(or_i(high_nibble(x), B6(h))))
        x = load_i32(q, 256)
        store_i32(w, 192, change(or_i(low_nibble(x), B3(h))))
        store_i32(w, 448, change(or_i(high_nibble(x), B7(h))))

    return run


unpack_five = five_unpacker(centred(16))


@native
def pack_five(q, r, high, nibbles):
    """16 bytes of nibbles and a 32-bit word of fifth bits, of row r."""
    for v in range(4):
        store_s32(q, 64 + v * 64 + r * 4, load_s32(nibbles, v * 4))
    for i in range(4):
        byte = 0
        for v in range(8):
            byte |= ((high >> (4 * v + i)) & 1) << v
        store_u8(q, r * 4 + i, byte)


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        ask(W, q + b * 320, 5)
        a = sum_five(tile_start2(W, xs + b * 8 * S), q + b * 320, xq + b * 32 * S, S)
        acc = tile_scale(acc, a, to_f32(load_f16(s, b * 32)), xd + b * 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        unpack_five(q + b * 320, w + b * 512)
        store_f32(d, b * 64, to_f32(load_f16(s, b * 32)))


def pack_block(source, q, s, r):
    pack_five(q, r, load_u32(source, 2), source + 6)
    store_u16(s, r * 2, load_u16(source, 0))


def decode_block(source, x, scale):
    d = load_half(source, 0)
    high = load_u32(source, 2)
    for i in range(16):
        b = load_u8(source, 6 + i)
        low = (b & 15) | ((high >> i) & 1) << 4
        top = (b >> 4) | ((high >> (i + 16)) & 1) << 4
        store_float(x, i * 4, d * np.float32(low - 16) * scale)
        store_float(x, i * 4 + 64, d * np.float32(top - 16) * scale)


KERNELS = {
    "matmul.q5_0": make_matmul(dot, unpack, gemm_5bit, 320, 32),
    "pack.q5_0": make_pack(pack_block, 22, 1, 320, 32),
    "embed.q5_0": make_embed(decode_block, 22, 32),
}
