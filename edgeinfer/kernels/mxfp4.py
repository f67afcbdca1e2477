"""MXFP4: w = 2^(e - 128) VALUES[q]. Packed as Q4_0: 256 bytes of nibbles and 16 bytes of exponents a block."""

from __future__ import annotations

from ..formats.mxfp4 import VALUES
from ..runtime.memory import load_power, load_s32, load_u8, store_float, store_s32, store_u8
from ..runtime.simd import from_u8, load_i8, power_of_two
from ..runtime.vec import native
from .embed import make_embed
from .iq4_nl import make_table
from .matmul import gemm_signed, make_matmul
from .pack import make_pack


@native
def scale_of(s, b):
    return power_of_two(from_u8(load_i8(s, b * 16)))


dot, unpack, entry = make_table(VALUES, scale_of)


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
