"""MXFP4: w = 2^(e - 128) VALUES[q]. Packed as Q4_0: 256 bytes of nibbles and 16 bytes of exponents a block."""

from __future__ import annotations

from ..formats.mxfp4 import VALUES
from ..runtime.memory import load_power, load_s32, load_u8, store_float, store_s32, store_u8
from ..runtime.simd import from_u8, load_i8, power_of_two, store_f32
from ..runtime.tile import slots_of, tile_scale, tile_start_signed, tile_zero_f
from ..runtime.vec import native
from .embed import make_embed
from .iq4_nl import make_table
from .matmul import gemm_signed, make_matmul
from .pack import make_pack

sums, spread, entry = make_table(VALUES)


@native
def dot(W, q, s, xq, xd, xs, xh, nb):
    S = slots_of(W)
    acc = tile_zero_f(W)
    for b in range(nb):
        a = sums(tile_start_signed(W, xs + b * 4 * S), q + b * 256, xq + b * 32 * S, S)
        acc = tile_scale(acc, a, power_of_two(from_u8(load_i8(s, b * 16))), xd + b * 4 * S)
    return acc


@native
def unpack(q, s, w, d, m, nb):
    for b in range(nb):
        spread(q + b * 256, w + b * 512)
        store_f32(d, b * 64, power_of_two(from_u8(load_i8(s, b * 16))))


def pack_block(source, q, s, r):
    for v in range(4):
        store_s32(q, v * 64 + r * 4, load_s32(source, 1 + v * 4))
    store_u8(s, r, load_u8(source, 0))


def decode_block(source, x, scale):
    d = load_power(source, 0)
    for i in range(16):
        b = load_u8(source, 1 + i)
        store_float(x, i * 4, d * entry(b & 15) * scale)
        store_float(x, i * 4 + 64, d * entry(b >> 4) * scale)


KERNELS = {
    "matmul.mxfp4": make_matmul(dot, unpack, gemm_signed, 256, 16),
    "pack.mxfp4": make_pack(pack_block, 17, 1, 256, 16),
    "embed.mxfp4": make_embed(decode_block, 17, 32),
}
