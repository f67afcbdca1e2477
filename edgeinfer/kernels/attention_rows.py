"""The rows of an attention tile: where they stand in thread memory, their queries, their softmax and the merging of blocks.

Thread memory of a sweep of tiles of T rows, from `tmp`: a slot for each tile and KV head (row records, queries [head_dim][T],
running sums [T][head_dim]), then for each head of the tile at hand scores [T][256] and block sums [T][head_dim]; all float32
but the records.
"""

from __future__ import annotations

import numpy as np

from ..plan.fields import ATTENTION, SWEEP_HEADS, SWEEP_SLOTS, indices
from ..runtime.layout import RUN_POSITION, RUN_ROW
from ..runtime.memory import field, field_f, load_float, load_s64, store_float, store_s64
from ..runtime.simd import (
    add_f,
    div_f,
    exp_f,
    fma,
    load_f32,
    max_f,
    mul_f,
    splat_f,
    store_f32,
    sub_f,
    sum_f,
    top_f,
    zero_f,
)  # fmt: skip
from ..runtime.vec import native
from .layout import BLOCK
from .rope import normalize_head, rotate

f4 = np.float32
(
    Q, Q_STRIDE, OUT, OUT_STRIDE, N_HEAD, N_KV, HEAD_DIM, ROPE, ROPE_DIM, NORM, EPS, SCALE, WINDOW, GROUP, BASE,
    PAGE_STRIDE, TMP, PARTIAL, SOFTCAP,
) = indices("attention", " ".join(ATTENTION))  # fmt: skip
MASKED = f4(-1e30)

ROW_BYTES = 32
FIRST, LAST = (
    0,
    8,
)  # the row's first and last + 1 position, int64 each; then float32 of the running sum and of the block
M, L, BLOCK_M, BLOCK_L = 16, 20, 24, 28
QUERIES = 8 * ROW_BYTES


@native
def slot_at(T, tmp, slot, head_dim):
    return tmp + slot * (QUERIES + 2 * T * head_dim * 4)


@native
def running_at(T, head_dim):
    """Of a slot: its running sums."""
    return QUERIES + T * head_dim * 4


@native
def scores_at(T, tmp, head, head_dim):
    return slot_at(T, tmp, SWEEP_SLOTS, head_dim) + head * T * (BLOCK + head_dim) * 4


@native
def sums_at(T, tmp, head, head_dim):
    return scores_at(T, tmp, head, head_dim) + T * BLOCK * 4


@native
def work_at(tmp, head_dim):
    """head_dim float32 behind the memory of the widest sweep."""
    return scores_at(8, tmp, SWEEP_HEADS, head_dim)


@native
def partial_at(step, kv_head, block, blocks, group, row):
    """Of one token: what a block gives a row of a KV head: m, l, then o, in (16 + head_dim) floats."""
    size = (16 + field(step, HEAD_DIM)) * 4
    return field(step, PARTIAL) + ((kv_head * blocks + block) * group + row) * size


@native
def exp_scalar(x):
    """e^x by the vector function, so that every path rounds alike."""
    return top_f(exp_f(splat_f(x)))


@native
def load_queries(T, step, run, kv_head, first, count, slot, work):
    """Gather rows first .. first+count of a run into a slot: normalized, rotated, scaled, interleaved; padded with the last."""
    head_dim = field(step, HEAD_DIM)
    group = field(step, N_HEAD) // field(step, N_KV)
    scale = splat_f(field_f(step, SCALE))
    window = field(step, WINDOW)
    for t in range(T):
        row = first + min(t, count - 1)
        token = row // group
        head = kv_head * group + row % group
        position = field(run, RUN_POSITION) + token
        q = field(step, Q) + (field(run, RUN_ROW) + token) * field(step, Q_STRIDE) + head * head_dim * 4
        normalize_head(q, field(step, NORM), work, head_dim, field_f(step, EPS))
        rotate(work, field(step, ROPE) + position * field(step, ROPE_DIM) * 4, field(step, ROPE_DIM))
        for d in range(0, head_dim * 4, 64):
            store_f32(work, d, mul_f(load_f32(work, d), scale))
        for d in range(head_dim):
            store_float(slot, QUERIES + (d * T + t) * 4, load_float(work, d * 4))
        record = slot + t * ROW_BYTES
        start = position + 1 - window if window > 0 else 0
        store_s64(record, FIRST, max(start, 0))
        store_s64(record, LAST, position + 1)
        store_float(record, M, MASKED)
        store_float(record, L, f4(0.0))
        for d in range(0, head_dim * 4, 64):
            store_f32(slot, running_at(T, head_dim) + t * head_dim * 4 + d, zero_f())


@native
def cap_scores(scores, T, start, stop, cap):
    """s = cap tanh(s / cap) (Gemma 2)."""
    for t in range(T):
        for i in range((start & (BLOCK - 1)) * 4, (start & (BLOCK - 1)) * 4 + (stop - start) * 4, 64):
            x = load_f32(scores, t * BLOCK * 4 + i)
            e = exp_f(mul_f(x, splat_f(f4(2.0) / cap)))
            one = splat_f(f4(1.0))
            # tanh(y) = 1 - 2 / (1 + e^2y)
            part = splat_f(f4(-2.0))
            store_f32(scores, t * BLOCK * 4 + i, mul_f(splat_f(cap), add_f(one, div_f(part, add_f(one, e)))))


@native
def block_softmax(T, records, scores, start, stop):
    """Scores to weights e^(s - m), 0 where a row may not look; m and l of the block into the rows' records."""
    base = start & ~(BLOCK - 1)
    for t in range(T):
        record = records + t * ROW_BYTES
        s = scores + t * BLOCK * 4
        lo = max(load_s64(record, FIRST), start)
        hi = min(load_s64(record, LAST), stop)
        if lo >= hi:
            for p in range(start - base, stop - base, 16):
                store_f32(s, p * 4, zero_f())
            store_float(record, BLOCK_M, MASKED)
            store_float(record, BLOCK_L, f4(0.0))
            continue
        for p in range(start, lo):
            store_float(s, (p - base) * 4, MASKED)
        for p in range(hi, stop):
            store_float(s, (p - base) * 4, MASKED)
        largest = splat_f(MASKED)
        for p in range(start - base, stop - base, 16):
            largest = max_f(largest, load_f32(s, p * 4))
        m = top_f(largest)
        total = zero_f()
        for p in range(start - base, stop - base, 16):
            e = exp_f(sub_f(load_f32(s, p * 4), splat_f(m)))
            total = add_f(total, e)
            store_f32(s, p * 4, e)
        store_float(record, BLOCK_M, m)
        store_float(record, BLOCK_L, sum_f(total))


@native
def merge(m, total, o, block_m, block_l, block_o, head_dim, record):
    """Add a block to the running sums; m and l of the result go into the record."""
    top = max(m, block_m)
    a = exp_scalar(m - top)
    b = exp_scalar(block_m - top)
    store_float(record, M, top)
    store_float(record, L, total * a + block_l * b)
    va = splat_f(a)
    vb = splat_f(b)
    for d in range(0, head_dim * 4, 64):
        store_f32(o, d, fma(load_f32(o, d), va, mul_f(load_f32(block_o, d), vb)))


@native
def block_range(lo, hi, block):
    """The part of a block that rows within lo .. hi look at, widened to multiples of 32."""
    start = max(block * BLOCK, lo & ~31)
    stop = min(block * BLOCK + BLOCK, (hi + 31) & ~31)
    return start, stop


@native
def finish_row(o, total, out, head_dim):
    """out = o / total."""
    inverse = splat_f(f4(1.0) / total)
    for d in range(0, head_dim * 4, 64):
        store_f32(out, d, mul_f(load_f32(o, d), inverse))
