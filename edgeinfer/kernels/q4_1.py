"""Q4_1: w = d q + m. Packed: 256 bytes of nibbles, 16 f16 scales and 16 f16 minima a block."""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_s32, load_u8, load_u16, store_float, store_s32, store_u16
from ..runtime.simd import centred, load_f16, store_f32, to_f32
from ..runtime.tile import slots_of, tile_add_floats, tile_scale, tile_zero_f, tile_zero_i
from ..runtime.vec import native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_with_min, make_matmul
from .pack import make_pack
from .q4_0 import nibble_unpacker, sum_nibbles

unpack_nibbles = nibble_unpacker(centred(0))


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        ask(W, q + b * 256, 4)
        a = sum_nibbles(tile_zero_i(W), q + b * 256, xq + b * 32 * S, S)
        acc = tile_scale(acc, a, to_f32(load_f16(s, b * 64)), xd + b * 4 * S)
        acc = tile_add_floats(acc, to_f32(load_f16(s, b * 64 + 32)), xs + b * 8 * S + 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        unpack_nibbles(q + b * 256, w + b * 512)
        store_f32(d, b * 64, to_f32(load_f16(s, b * 64)))
        store_f32(m, b * 64, to_f32(load_f16(s, b * 64 + 32)))


def pack_block(source, q, s, r):
    for v in range(4):
        store_s32(q, v * 64 + r * 4, load_s32(source, 4 + v * 4))
    store_u16(s, r * 2, load_u16(source, 0))
    store_u16(s, 32 + r * 2, load_u16(source, 2))


def decode_block(source, x, scale):
    d = load_half(source, 0)
    m = load_half(source, 2)
    for i in range(16):
        b = load_u8(source, 4 + i)
        store_float(x, i * 4, (d * np.float32(b & 15) + m) * scale)
        store_float(x, i * 4 + 64, (d * np.float32(b >> 4) + m) * scale)


KERNELS = {
    "matmul.q4_1": make_matmul(dot, unpack, gemm_with_min, 256, 64, straight_tokens=256),
    "pack.q4_1": make_pack(pack_block, 20, 1, 256, 64),
    "embed.q4_1": make_embed(decode_block, 20, 32),
}
