"""F32, F16 and BF16 weights: the product in float32. Packed: for each value of 16 rows one vector, in the file's own type.

Each row keeps four sums, of values 0, 1, 2, 3 modulo 4, added as (s0 + s1) + (s2 + s3): the same order for any token count.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ..plan.fields import indices
from ..runtime.layout import STATE_N, STATE_N_OUT
from ..runtime.memory import field, load_float, load_half, load_u16, load_u32, store_float, store_s32, store_u16
from ..runtime.simd import load_bf16, load_f16, load_f32, to_f32
from ..runtime.tile import W1, W2, W4, count_of, tile_add, tile_fma, tile_zero_f
from ..runtime.vec import F32, native, op, target
from .embed import make_embed
from .layout import share_start, thread_memory
from .matmul import biased, finish, finish_pair, rows_alternate
from .pack import make_pack

(WEIGHTS, H, H_STRIDE, COLS, GROUPS, Y, Y_STRIDE, MODE, ROWS, PRIVATE, TMP, BIAS) = indices(
    "matmul_float", "weights h h_stride cols groups y y_stride mode rows private tmp bias"
)


W_FLOAT = {8: W4, 4: W2, 2: W2}[target().width]  # four sums a token must fit in the registers


def make_group(load, size):
    """group(W, w, h, stride, cols) -> tile: 16 rows of weights of `size` bytes times T tokens of float32."""

    @native
    def group(W, w, h, stride, cols):
        a0 = tile_zero_f(W)
        a1 = tile_zero_f(W)
        a2 = tile_zero_f(W)
        a3 = tile_zero_f(W)
        for k in range(0, cols, 4):
            at = w + k * 16 * size
            x = h + k * 4
            a0 = tile_fma(a0, load(at, 0), x, stride)
            a1 = tile_fma(a1, load(at, 16 * size), x + 4, stride)
            a2 = tile_fma(a2, load(at, 32 * size), x + 8, stride)
            a3 = tile_fma(a3, load(at, 48 * size), x + 12, stride)
        return tile_add(tile_add(a0, a1), tile_add(a2, a3))

    return group


def make_float_matmul(load, size):
    """The matmul kernel for weights of `size` bytes that load(address, offset) reads 16 at a time as float32."""
    group = make_group(load, size)

    @native
    def groups_of(W, w, g0, g1, h, h_stride, cols, m, y, y_stride, mode, tmp, bias):
        """Groups g0..g1 times m tokens: a group meets all its tokens while it is in the cache."""
        n = cols * 16 * size
        each = 2 if rows_alternate(mode) else 1
        for g in range(g0, g1, each):
            for t in range(0, m, count_of(W)):
                x = h + t * h_stride
                out = y + t * y_stride
                acc = biased(group(W, w + g * n, x, h_stride, cols), bias, g)
                if each == 2:
                    up = biased(group(W, w + (g + 1) * n, x, h_stride, cols), bias, g + 1)
                    finish_pair(acc, up, out + g * 32, y_stride, mode, tmp)
                else:
                    finish(W, acc, out + g * 64, y_stride, mode, tmp)

    def matmul_float(step, state, ith, nth):
        m = field(state, STATE_N_OUT) if field(step, ROWS) != 0 else field(state, STATE_N)
        memory = thread_memory(state, ith)
        h = field(step, H)
        if field(step, PRIVATE) != 0:
            h += memory
        mode = field(step, MODE)
        pairs = 2 if rows_alternate(mode) else 1
        groups = field(step, GROUPS) // pairs
        g0 = share_start(groups, ith, nth) * pairs
        g1 = share_start(groups, ith + 1, nth) * pairs
        w = field(step, WEIGHTS)
        cols = field(step, COLS)
        h_stride = field(step, H_STRIDE)
        y = field(step, Y)
        y_stride = field(step, Y_STRIDE)
        tmp = memory + field(step, TMP)
        bias = field(step, BIAS)
        if m == 1:
            groups_of(W1, w, g0, g1, h, h_stride, cols, m, y, y_stride, mode, tmp, bias)
        elif m > 0:
            groups_of(W_FLOAT, w, g0, g1, h, h_stride, cols, m, y, y_stride, mode, tmp, bias)

    return matmul_float


@native
def load_half_vector(address, offset):
    return to_f32(load_f16(address, offset))


def pack_f32(source, w, _s, r):
    for k in range(32):
        store_s32(w, k * 64 + r * 4, np.int32(load_u32(source, k * 4)))


def pack_f16(source, w, _s, r):
    for k in range(32):
        store_u16(w, k * 32 + r * 2, load_u16(source, k * 2))


def decode_f32(source, x, scale):
    for i in range(32):
        store_float(x, i * 4, load_float(source, i * 4) * scale)


def decode_f16(source, x, scale):
    for i in range(32):
        store_float(x, i * 4, load_half(source, i * 2) * scale)


_as_float = op(types.float32, [types.int32], lambda b, v: b.bitcast(v, F32))


def decode_bf16(source, x, scale):
    for i in range(32):
        store_float(x, i * 4, _as_float(np.int32(load_u16(source, i * 2) << 16)) * scale)


KERNELS = {
    "matmul_float.f32": make_float_matmul(load_f32, 4),
    "matmul_float.f16": make_float_matmul(load_half_vector, 2),
    "matmul_float.bf16": make_float_matmul(load_bf16, 2),
    "pack.f32": make_pack(pack_f32, 128, 1, 2048, 0),
    "pack.f16": make_pack(pack_f16, 64, 1, 1024, 0),
    "pack.bf16": make_pack(pack_f16, 64, 1, 1024, 0),
    "embed.f32": make_embed(decode_f32, 128, 32),
    "embed.f16": make_embed(decode_f16, 64, 32),
    "embed.bf16": make_embed(decode_bf16, 64, 32),
}
