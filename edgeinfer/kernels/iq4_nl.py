"""IQ4_NL: w = d VALUES[q]. Packed as Q4_0: 256 bytes of nibbles (low: values 0-15, high: 16-31) and 16 f16 scales a block."""

from __future__ import annotations

import numpy as np

from ..formats.iq4_nl import VALUES
from ..runtime.memory import load_half, load_u8, store_float
from ..runtime.simd import high_nibble, load_f16, load_i32, lookup, low_nibble, store_f32, to_f32
from ..runtime.tile import slots_of, tile_dot_signed, tile_scale, tile_start_signed, tile_zero_f
from ..runtime.vec import inner, native
from .embed import make_embed
from .layout import ask
from .matmul import gemm_signed, make_matmul
from .pack import make_pack
from .q4_0 import nibble_unpacker, pack_block


def make_table(values, scale_of):
    """What a format needs whose nibbles look up one of 16 signed bytes: dot, unpack, entry.

    scale_of(s, b) is the scale of block b of 16 rows, f32x16; entry(i) the table's value i as float32.
    """
    find = lookup(values)
    low, high = (sum((v & 255) << (8 * i) for i, v in enumerate(half)) for half in (values[:8], values[8:]))
    words = tuple(np.uint64(word).astype(np.int64) for word in (low, high))

    @inner
    def sums(acc, q, x, slots):
        """acc + 32 values of 16 rows times 32 activations of T tokens."""
        for v in range(4):
            w = load_i32(q, v * 64)
            acc = tile_dot_signed(acc, find(low_nibble(w)), x + v * 4 * slots)
            acc = tile_dot_signed(acc, find(high_nibble(w)), x + (v + 4) * 4 * slots)
        return acc

    spread = nibble_unpacker(find)  # in the form of the signed product

    @native
    def entry(i):
        word = words[0] if i < 8 else words[1]
        return np.float32((((word >> ((i & 7) * 8)) & 255) ^ 128) - 128)

    @native
    def dot(W, q, s, xq, xd, xs, xh, nb):
        S = slots_of(W)
        acc = tile_zero_f(W)
        for b in range(nb):
            ask(W, q + b * 256, 4)
            a = sums(tile_start_signed(W, xs + b * 8 * S), q + b * 256, xq + b * 32 * S, S)
            acc = tile_scale(acc, a, scale_of(s, b), xd + b * 4 * S)
        return acc

    @native
    def unpack(q, s, w, d, m, nb):
        for b in range(nb):
            spread(q + b * 256, w + b * 512)
            store_f32(d, b * 64, scale_of(s, b))

    return dot, unpack, entry


@native
def scale_of(s, b):
    return to_f32(load_f16(s, b * 32))


dot, unpack, entry = make_table(VALUES, scale_of)


def decode_block(source, x, scale):
    d = load_half(source, 0)
    for i in range(16):
        b = load_u8(source, 2 + i)
        store_float(x, i * 4, d * entry(b & 15) * scale)
        store_float(x, i * 4 + 64, d * entry(b >> 4) * scale)


KERNELS = {
    "matmul.iq4_nl": make_matmul(dot, unpack, gemm_signed, 256, 32),
    "pack.iq4_nl": make_pack(pack_block, 18, 1, 256, 32),
    "embed.iq4_nl": make_embed(decode_block, 18, 32),
}
