"""Q5_1: w = d q + m with five-bit q. Packed as Q5_0, with 16 f16 minima beside the scales."""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_u8, load_u16, load_u32, store_float, store_u16
from ..runtime.simd import centred, load_f16, store_f32, to_f32
from ..runtime.tile import slots_of, tile_add_floats, tile_scale, tile_zero_f, tile_zero_i
from ..runtime.vec import native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_with_min, make_matmul
from .pack import make_pack
from .q5_0 import five_unpacker, pack_five, sum_five

unpack_five = five_unpacker(centred(0))


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        ask(W, q + b * 320, 5)
        a = sum_five(tile_zero_i(W), q + b * 320, xq + b * 32 * S, S)
        acc = tile_scale(acc, a, to_f32(load_f16(s, b * 64)), xd + b * 4 * S)
        acc = tile_add_floats(acc, to_f32(load_f16(s, b * 64 + 32)), xs + b * 8 * S + 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        unpack_five(q + b * 320, w + b * 512)
        store_f32(d, b * 64, to_f32(load_f16(s, b * 64)))
        store_f32(m, b * 64, to_f32(load_f16(s, b * 64 + 32)))


def pack_block(source, q, s, r):
    pack_five(q, r, load_u32(source, 4), source + 8)
    store_u16(s, r * 2, load_u16(source, 0))
    store_u16(s, 32 + r * 2, load_u16(source, 2))


def decode_block(source, x, scale):
    d = load_half(source, 0)
    m = load_half(source, 2)
    high = load_u32(source, 4)
    for i in range(16):
        b = load_u8(source, 8 + i)
        low = (b & 15) | ((high >> i) & 1) << 4
        top = (b >> 4) | ((high >> (i + 16)) & 1) << 4
        store_float(x, i * 4, (d * np.float32(low) + m) * scale)
        store_float(x, i * 4 + 64, (d * np.float32(top) + m) * scale)


KERNELS = {
    "matmul.q5_1": make_matmul(dot, unpack, gemm_with_min, 320, 64),
    "pack.q5_1": make_pack(pack_block, 24, 1, 320, 64),
    "embed.q5_1": make_embed(decode_block, 24, 32),
}
