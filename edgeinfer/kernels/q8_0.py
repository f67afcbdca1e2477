"""Q8_0: w = d q. Packed: 512 bytes in the form of the signed product and 16 f16 scales a block."""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_s8, load_s32, load_u16, store_float, store_s32, store_u16
from ..runtime.simd import load_f16, signed_form, store_f32, to_f32
from ..runtime.tile import rows_f16, slots_of, tile_scale, tile_start_signed, tile_zero_f
from ..runtime.vec import native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_signed, make_matmul, sum_signed
from .pack import make_pack


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        ask(W, q + b * 512, 8, 8)  # four tokens still wait for memory, as one does
        a = sum_signed(tile_start_signed(W, xs + b * 8 * S), W, q + b * 512, xq + b * 32 * S, S)
        acc = tile_scale(acc, a, rows_f16(W, s, b * 32), xd + b * 4 * S)
    return acc


@native
def unpack_scales(q, s, w, d, m, nb):
    for b in range(nb):
        store_f32(d, b * 64, to_f32(load_f16(s, b * 32)))


def pack_block(source, q, s, r):
    for v in range(8):
        store_s32(q, v * 64 + r * 4, signed_form(load_s32(source, 2 + v * 4)))
    store_u16(s, r * 2, load_u16(source, 0))


def decode_block(source, x, scale):
    d = load_half(source, 0)
    for i in range(32):
        store_float(x, i * 4, d * np.float32(load_s8(source, 2 + i)) * scale)


KERNELS = {
    "matmul.q8_0": make_matmul(dot, unpack_scales, gemm_signed, 512, 32, bytes_already=True),
    "pack.q8_0": make_pack(pack_block, 34, 1, 512, 32),
    "embed.q8_0": make_embed(decode_block, 34, 32),
}
