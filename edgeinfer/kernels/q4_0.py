"""Q4_0: w = d (q - 8). Packed: 256 bytes of nibbles (low: values 0-15, high: 16-31) and 16 f16 scales a block."""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_s32, load_u8, load_u16, store_float, store_s32, store_u16
from ..runtime.simd import centred, high_nibble, load_f16, load_i32, low_nibble, store_f32, store_i32, to_f32
from ..runtime.tile import slots_of, tile_dot_pair, tile_scale, tile_start, tile_zero_f
from ..runtime.vec import inner, native
from .embed import make_embed
from .layout import ask
from .matmul import ALWAYS, gemm_4bit, make_matmul
from .pack import make_pack


@inner
def sum_nibbles(acc, q, x, slots):
    """acc += 32 nibbles of 16 rows times 32 activations of T tokens."""
    for v in range(4):
        w = load_i32(q, v * 64)
        acc = tile_dot_pair(acc, low_nibble(w), x + v * 4 * slots, high_nibble(w), x + (v + 4) * 4 * slots)
    return acc


def nibble_unpacker(change):
    """A function that unpacks 256 bytes of nibbles to 512 bytes, change(vector) of each."""

    @native
    def run(q, w):
        for v in range(4):
            x = load_i32(q, v * 64)
            store_i32(w, v * 64, change(low_nibble(x)))
            store_i32(w, 256 + v * 64, change(high_nibble(x)))

    return run


unpack_nibbles = nibble_unpacker(centred(8))


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        ask(W, q + b * 256, 4)
        a = sum_nibbles(tile_start(W, xs + b * 8 * S), q + b * 256, xq + b * 32 * S, S)
        acc = tile_scale(acc, a, to_f32(load_f16(s, b * 32)), xd + b * 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        unpack_nibbles(q + b * 256, w + b * 512)
        store_f32(d, b * 64, to_f32(load_f16(s, b * 32)))


def pack_block(source, q, s, r):
    for v in range(4):
        store_s32(q, v * 64 + r * 4, load_s32(source, 2 + v * 4))
    store_u16(s, r * 2, load_u16(source, 0))


def decode_block(source, x, scale):
    d = load_half(source, 0)
    for i in range(16):
        b = load_u8(source, 2 + i)
        store_float(x, i * 4, d * np.float32((b & 15) - 8) * scale)
        store_float(x, i * 4 + 64, d * np.float32((b >> 4) - 8) * scale)


KERNELS = {
    "matmul.q4_0": make_matmul(dot, unpack, gemm_4bit, 256, 32, straight_tokens=ALWAYS),
    "pack.q4_0": make_pack(pack_block, 18, 1, 256, 32),
    "embed.q4_0": make_embed(decode_block, 18, 32),
}
