"""Root-mean-square normalization and the quantization of activations to int8.

h = x * weight / sqrt(mean(x^2) + eps) (Zhang and Sennrich, 2019); then for each block of 32 values
scale = max|h| / 127, q = round(h / scale). A NaN or infinity in a block makes its scale NaN, so that it reaches the logits; the
block's bytes and sums mean nothing then.
Before that h may be multiplied by a constant (Granite) and by the sigmoid of a number of its own (a shared expert's gate).
"""

from __future__ import annotations

import numpy as np

from ..plan.fields import indices
from ..runtime.layout import STATE_N, STATE_N_OUT, STATE_OUT_ROWS
from ..runtime.memory import field, field_f, load_float, store_float, store_s32
from ..runtime.quantize import store_block_of_8
from ..runtime.simd import (
    add_f,
    exp_f,
    first_of_pair,
    fma,
    load_f32,
    mul_f,
    round_product,
    second_of_pair,
    splat_f,
    store_f32,
    store_i8,
    store_quads,
    sum_f,
    sum_pair,
    to_bytes,
    top_f,
    top_magnitude,
    zero_f,
)  # fmt: skip
from ..runtime.tile import W1, W2, W4, W8, slots_of, tile_load, tile_norm
from ..runtime.vec import native, target
from .layout import SLOTS, share_start, slots_for, thread_memory

f4 = np.float32
TOGETHER = target().width == SLOTS  # the registers hold a block of a whole tile; not measured where they do not
LARGEST = np.finfo(np.float32).max
(
    X, X_STRIDE, WEIGHT, COLS, EPS, ACTS, TILE_BYTES, OUT, OUT_STRIDE, ROWS, PRIVATE, TMP, ADD, ADD_STRIDE, ADD_WEIGHT, X_OUT,
    SCALE, GATE, GATE_STRIDE,
) = indices(
    "norm",
    "x x_stride weight cols eps acts tile_bytes out out_stride rows private tmp add add_stride add_weight x_out scale gate "
    "gate_stride",
)  # fmt: skip


@native
def inverse_rms(x, cols, eps):
    """1 / sqrt(mean(x^2) + eps) of cols float32 at x; cols is a multiple of 16."""
    total = zero_f()
    for i in range(0, cols * 4, 64):
        v = load_f32(x, i)
        total = fma(v, v, total)
    return f4(1.0) / np.sqrt(sum_f(total) / f4(cols) + eps)


@native
def quantize_row(W, x, acts, nb, first, last, slot):
    """Blocks first..last of 32 nb floats at x into one slot of W's activation tile.

    W is known when this is compiled: with a number of slots that is not, its counters fill the registers (15 % slower).
    """
    slots = slots_of(W)
    cols = nb * 32
    scales = acts + cols * slots
    sums = scales + nb * 4 * slots
    halves = sums + nb * 8 * slots
    for b in range(first, last):
        v0 = load_f32(x, b * 128)
        v1 = load_f32(x, b * 128 + 64)
        largest = top_magnitude(v0, v1)
        not_finite = largest - largest  # 0, or NaN
        inverse = splat_f(min(f4(127.0) / largest, LARGEST) if largest > f4(0.0) else f4(0.0))
        i0 = round_product(v0, inverse)
        i1 = round_product(v1, inverse)
        if slots == 1:
            store_i8(acts, b * 32, to_bytes(i0))
            store_i8(acts, b * 32 + 16, to_bytes(i1))
        else:
            store_quads(acts, (b * 8 * slots + slot) * 4, 4 * slots, to_bytes(i0))
            store_quads(acts, ((b * 8 + 4) * slots + slot) * 4, 4 * slots, to_bytes(i1))
        at = (b * slots + slot) * 4
        both = sum_pair(i0, i1)
        s0 = first_of_pair(both)
        s1 = second_of_pair(both)
        scale = largest * f4(1.0 / 127.0) + not_finite
        store_float(scales, at, scale)
        at += b * 4 * slots
        store_s32(sums, at, np.int32(-8) * (s0 + s1))
        store_float(sums, at + 4 * slots, f4(s0 + s1) * scale)
        store_s32(halves, (2 * b * slots + slot) * 4, np.int32(-32) * s0)
        store_s32(halves, (2 * b * slots + slots + slot) * 4, np.int32(-32) * s1)


@native
def quantize_tile(x, stride, weight, factors, acts, nb, first, last):
    """Blocks first..last of 8 rows at x to a tile, the same bits as row by row; each normalized first where it has a weight."""
    cols = nb * 32
    scales = acts + cols * SLOTS
    sums = scales + nb * 4 * SLOTS
    halves = sums + nb * 8 * SLOTS
    for b in range(first, last):
        v0 = tile_load(W8, x + b * 128, stride)
        v1 = tile_load(W8, x + b * 128 + 64, stride)
        if weight != 0:
            v0 = tile_norm(v0, factors, load_f32(weight, b * 128))
            v1 = tile_norm(v1, factors, load_f32(weight, b * 128 + 64))
        store_block_of_8(v0, v1, acts + b * 256, scales + b * 32, sums + b * 64, halves + b * 64)


@native
def _sum_row(step, token, out):
    """x plus the normalized other row."""
    x = field(step, X) + token * field(step, X_STRIDE)
    other = field(step, ADD) + token * field(step, ADD_STRIDE)
    weight = field(step, ADD_WEIGHT)
    cols = field(step, COLS)
    r = splat_f(inverse_rms(other, cols, field_f(step, EPS)))
    for i in range(0, cols * 4, 64):
        store_f32(out, i, add_f(load_f32(x, i), mul_f(mul_f(load_f32(other, i), r), load_f32(weight, i))))


@native
def _plain(step):
    """Whether nothing but bytes of the normalized row is wanted."""
    return (
        field(step, OUT) == 0 and field(step, GATE) == 0 and field_f(step, SCALE) == f4(1.0) and field(step, ROWS) == 0
    )


@native
def _tile(step, token, acts, tmp, first, last):
    """The tile of the 8 tokens from `token` on, columns first..last."""
    cols = field(step, COLS)
    stride = field(step, X_STRIDE)
    x = field(step, X) + token * stride
    if field(step, ADD) != 0:
        x = field(step, X_OUT) + token * stride
        for t in range(SLOTS):
            _sum_row(step, token + t, x + t * stride)
    if field(step, WEIGHT) != 0:
        for t in range(SLOTS):
            store_float(tmp, t * 4, inverse_rms(x + t * stride, cols, field_f(step, EPS)))
    quantize_tile(x, stride, field(step, WEIGHT), tmp, acts, cols // 32, first // 32, last // 32)


@native
def _row(step, source, target, acts, slots, slot, tmp, first, last):
    """One token: add and normalize into tmp, then write float32 and int8 of columns first..last, a multiple of 16."""
    start = first * 4
    end = last * 4
    cols = field(step, COLS)
    eps = field_f(step, EPS)
    x = field(step, X) + source * field(step, X_STRIDE)
    work = tmp
    if field(step, ADD) != 0:
        out = field(step, X_OUT) + source * field(step, X_STRIDE)
        _sum_row(step, source, work)  # others may not have written their columns of `out` yet
        for i in range(start, end, 64):
            store_f32(out, i, load_f32(work, i))
        x = work
    weight = field(step, WEIGHT)
    if weight != 0:
        r = splat_f(inverse_rms(x, cols, eps))
        for i in range(start, end, 64):
            store_f32(work, i, mul_f(mul_f(load_f32(x, i), r), load_f32(weight, i)))
        x = work
    factor = field_f(step, SCALE)
    if field(step, GATE) != 0:
        gate = load_float(field(step, GATE) + source * field(step, GATE_STRIDE), 0)
        factor *= f4(1.0) / (f4(1.0) + top_f(exp_f(splat_f(-gate))))
    if factor != f4(1.0):
        for i in range(start, end, 64):
            store_f32(work, i, mul_f(load_f32(x, i), splat_f(factor)))
        x = work
    if acts != 0:
        if slots == 1:
            quantize_row(W1, x, acts, cols // 32, first // 32, last // 32, slot)
        elif slots == 2:
            quantize_row(W2, x, acts, cols // 32, first // 32, last // 32, slot)
        elif slots == 4:
            quantize_row(W4, x, acts, cols // 32, first // 32, last // 32, slot)
        else:
            quantize_row(W8, x, acts, cols // 32, first // 32, last // 32, slot)
    out = field(step, OUT)
    if out != 0:
        out += target * field(step, OUT_STRIDE)
        if field(step, PRIVATE) != 0:
            out += tmp - field(step, TMP)
        for i in range(start, end, 64):
            store_f32(out, i, load_f32(x, i))


@native
def _tokens(step, rows, tile, m, slots, tmp, first, last):
    """The tokens of a tile, of m tokens in all, columns first..last: together where the tile is full and nothing forbids it."""
    acts = field(step, ACTS)
    target = acts + tile * field(step, TILE_BYTES) if acts != 0 else 0
    start = tile * SLOTS
    stop = min(m, start + SLOTS)
    # A sum is read back from where it was written, so this thread must have written all of it.
    adds_a_part = field(step, ADD) != 0 and last - first < field(step, COLS)
    if TOGETHER and acts != 0 and stop - start == SLOTS and not adds_a_part and _plain(step):
        _tile(step, start, target, tmp, first, last)
    else:
        for t in range(start, stop):
            _row(step, field(rows, t) if field(step, ROWS) != 0 else t, t, target, slots, t % SLOTS, tmp, first, last)


def norm(step, state, ith, nth):
    """Rows to normalized int8 activations; with one token every thread does it for itself and no barrier is needed.

    Tokens of one tile lie so close together that threads would write to the same cache lines (8 tokens on two threads: twice
    as slow as on one; 9: four times): each thread takes whole tiles, or some columns of all tokens where few tiles cannot be
    shared evenly.
    """
    cols = field(step, COLS)
    only_out = field(step, ROWS)
    m = field(state, STATE_N_OUT) if only_out != 0 else field(state, STATE_N)
    rows = field(state, STATE_OUT_ROWS)
    memory = thread_memory(state, ith)
    tmp = memory + field(step, TMP)
    acts = field(step, ACTS)
    slots = slots_for(m)
    tiles = (m + SLOTS - 1) // SLOTS
    if field(step, PRIVATE) != 0:
        if acts != 0:
            acts += memory
        for t in range(m):
            _row(step, field(rows, t) if only_out != 0 else t, t, acts, slots, 0, tmp, 0, cols)
    elif acts != 0 and nth > 1 and tiles < 4 * nth and tiles % nth != 0:
        first = share_start(cols // 32, ith, nth) * 32
        last = share_start(cols // 32, ith + 1, nth) * 32
        for tile in range(tiles):
            _tokens(step, rows, tile, m, slots, tmp, first, last)
    else:
        for tile in range(share_start(tiles, ith, nth), share_start(tiles, ith + 1, nth)):
            _tokens(step, rows, tile, m, slots, tmp, 0, cols)


KERNELS = {"norm": norm}
