"""Attention over the paged KV cache: softmax(q k scale) v, in blocks of 256 absolute positions merged in ascending order.

Each block keeps its largest score m, sum l of e^(s - m) and weighted values o (Milakov and Gimelshein, 2018; Dao et al., 2022);
blocks are merged as m' = max, l' = l e^(m-m') + l_b e^(m_b-m'), o likewise. A row's sums have the same order whether it comes
alone, in a tile with others, or with its blocks shared among threads, so logits are equal to the last bit in all of them: a
masked position contributes exactly 0, and an empty block exactly nothing.

A tile is up to T rows (token, query head) that share a KV head. Rows of a run are ordered token by token.
"""

from __future__ import annotations

import numpy as np

from ..plan.fields import ATTENTION, indices
from ..runtime.layout import RUN_COUNT, RUN_POSITION, RUN_ROW, RUN_SLOT, RUN_WORDS, STATE_N_RUNS, STATE_RUNS
from ..runtime.memory import field, field_f, load_float, load_s64, store_float, store_s64
from ..runtime.simd import (
    add_f,
    div_f,
    exp_f,
    fma,
    load_f16,
    load_f32,
    max_f,
    mul_f,
    splat_f,
    store_f32,
    sub_f,
    sum_f,
    to_f32,
    top_f,
    zero_f,
)  # fmt: skip
from ..runtime.tile import W1, W4, W8, count_of, tile_fma, tile_store, tile_zero_f
from ..runtime.vec import native, target
from .layout import BLOCK, PAGE, k_address, page_table, share_start, thread_memory, v_address
from .rope import normalize_head, rotate

f4 = np.float32
(
    Q, Q_STRIDE, OUT, OUT_STRIDE, N_HEAD, N_KV, HEAD_DIM, ROPE, ROPE_DIM, NORM, EPS, SCALE, WINDOW, GROUP, BASE,
    PAGE_BYTES, TMP, PARTIAL, SOFTCAP,
) = indices("attention", " ".join(ATTENTION))  # fmt: skip
MASKED = f4(-1e30)
WIDE = W8 if target().width == 8 else W4  # rows of a prefill tile
WIDE_ROWS = target().width if target().width == 8 else 4

# Thread memory of a tile of T rows, at tmp: row records (first and last position + 1, m, l as float64 words), queries
# [head_dim][T], scores [T][256], block sums [T][head_dim], running sums [T][head_dim].
ROW_BYTES = 32
FIRST, LAST = 0, 8  # int64 each; m at 16 and l at 20 are float32 of the running sum, 24 and 28 of the block
M, L, BLOCK_M, BLOCK_L = 16, 20, 24, 28
QUERIES = 8 * ROW_BYTES


@native
def scores_at(T, head_dim):
    return QUERIES + T * head_dim * 4


@native
def block_at(T, head_dim):
    return scores_at(T, head_dim) + T * BLOCK * 4


@native
def running_at(T, head_dim):
    return block_at(T, head_dim) + T * head_dim * 4


@native
def exp_scalar(x):
    """e^x by the vector function, so that every path rounds alike."""
    return top_f(exp_f(splat_f(x)))


@native
def load_queries(T, step, run, kv_head, first, count, tmp, work):
    """Gather rows first .. first+count of a run: normalized, rotated, scaled, interleaved; padding repeats the last."""
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
            store_float(tmp, QUERIES + (d * T + t) * 4, load_float(work, d * 4))
        record = tmp + t * ROW_BYTES
        start = position + 1 - window if window > 0 else 0
        store_s64(record, FIRST, max(start, 0))
        store_s64(record, LAST, position + 1)
        store_float(record, M, MASKED)
        store_float(record, L, f4(0.0))
        for d in range(0, head_dim * 4, 64):
            store_f32(tmp, running_at(T, head_dim) + t * head_dim * 4 + d, zero_f())


@native
def block_scores(W, step, table, kv_head, tmp, start, stop):
    """scores[t][p - block start] = q[t] . k[p] for p in start .. stop, both multiples of 32."""
    T = count_of(W)
    head_dim = field(step, HEAD_DIM)
    queries = tmp + QUERIES
    scores = tmp + scores_at(T, head_dim)
    for p in range(start, stop, 32):
        k = k_address(field(step, BASE), field(step, PAGE_BYTES), table, kv_head, head_dim, p)
        a = tile_zero_f(W)
        b = tile_zero_f(W)
        other = k + head_dim * 32
        for d in range(head_dim):
            a = tile_fma(a, to_f32(load_f16(k, d * 32)), queries + d * T * 4, 4)
            b = tile_fma(b, to_f32(load_f16(other, d * 32)), queries + d * T * 4, 4)
        tile_store(a, scores + (p & (BLOCK - 1)) * 4, BLOCK * 4)
        tile_store(b, scores + (p & (BLOCK - 1)) * 4 + 64, BLOCK * 4)


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
def block_softmax(T, head_dim, tmp, start, stop):
    """Scores to weights e^(s - m), 0 where a row may not look; m and l of the block into the rows' records."""
    base = start & ~(BLOCK - 1)
    for t in range(T):
        record = tmp + t * ROW_BYTES
        s = tmp + scores_at(T, head_dim) + t * BLOCK * 4
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
def block_values(W, step, table, kv_head, tmp, start, stop):
    """o[t] = sum over positions, ascending, of weight[t][p] v[p]; the dimensions go 32 at a time."""
    T = count_of(W)
    head_dim = field(step, HEAD_DIM)
    n_kv = field(step, N_KV)
    weights = tmp + scores_at(T, head_dim)
    sums = tmp + block_at(T, head_dim)
    lo = stop
    hi = start
    for t in range(T):
        lo = min(lo, load_s64(tmp + t * ROW_BYTES, FIRST))
        hi = max(hi, load_s64(tmp + t * ROW_BYTES, LAST))
    lo = max(lo, start)
    hi = min(hi, stop)
    base = start & ~(BLOCK - 1)
    d = 0
    while d < head_dim:
        a = tile_zero_f(W)
        b = tile_zero_f(W)
        two = d + 16 < head_dim
        p = lo
        while p < hi:
            until = min(hi, (p & ~(PAGE - 1)) + PAGE)
            v = v_address(field(step, BASE), field(step, PAGE_BYTES), table, n_kv, kv_head, head_dim, p) + d * 2
            if two:
                while p < until:
                    a = tile_fma(a, to_f32(load_f16(v, 0)), weights + (p - base) * 4, BLOCK * 4)
                    b = tile_fma(b, to_f32(load_f16(v, 32)), weights + (p - base) * 4, BLOCK * 4)
                    v += head_dim * 2
                    p += 1
            else:
                while p < until:
                    a = tile_fma(a, to_f32(load_f16(v, 0)), weights + (p - base) * 4, BLOCK * 4)
                    v += head_dim * 2
                    p += 1
        tile_store(a, sums + d * 4, head_dim * 4)
        if two:
            tile_store(b, sums + d * 4 + 64, head_dim * 4)
        d += 32


@native
def attend_block(W, step, table, kv_head, tmp, start, stop):
    """One block of positions start .. stop for all rows of a tile; leaves its m, l and o in the tile's memory."""
    T = count_of(W)
    head_dim = field(step, HEAD_DIM)
    block_scores(W, step, table, kv_head, tmp, start, stop)
    cap = field_f(step, SOFTCAP)
    if cap > f4(0.0):
        cap_scores(tmp + scores_at(T, head_dim), T, start, stop, cap)
    block_softmax(T, head_dim, tmp, start, stop)
    block_values(W, step, table, kv_head, tmp, start, stop)


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


@native
def attend_tile(W, step, state, run, kv_head, first, count, tmp, work):
    """All blocks of rows first .. first+count of a run and KV head, and their results to `out`."""
    T = count_of(W)
    head_dim = field(step, HEAD_DIM)
    group = field(step, N_HEAD) // field(step, N_KV)
    load_queries(T, step, run, kv_head, first, count, tmp, work)
    table = page_table(state, field(run, RUN_SLOT), field(step, GROUP))
    lo = load_s64(tmp, FIRST)
    hi = load_s64(tmp + (T - 1) * ROW_BYTES, LAST)
    for block in range(lo // BLOCK, (hi + BLOCK - 1) // BLOCK):
        start, stop = block_range(lo, hi, block)
        attend_block(W, step, table, kv_head, tmp, start, stop)
        for t in range(count):
            record = tmp + t * ROW_BYTES
            o = tmp + running_at(T, head_dim) + t * head_dim * 4
            block_o = tmp + block_at(T, head_dim) + t * head_dim * 4
            m = load_float(record, M)
            total = load_float(record, L)
            merge(m, total, o, load_float(record, BLOCK_M), load_float(record, BLOCK_L), block_o, head_dim, record)
    for t in range(count):
        row = first + t
        head = kv_head * group + row % group
        token = field(run, RUN_ROW) + row // group
        out = field(step, OUT) + token * field(step, OUT_STRIDE) + head * head_dim * 4
        o = tmp + running_at(T, head_dim) + t * head_dim * 4
        finish_row(o, load_float(tmp + t * ROW_BYTES, L), out, head_dim)


def attention(step, state, ith, nth):
    """Any number of runs; tiles are dealt to the threads in turn, since later tiles see more positions."""
    n_kv = field(step, N_KV)
    group = field(step, N_HEAD) // n_kv
    tmp = thread_memory(state, ith) + field(step, TMP)
    work = tmp + running_at(8, field(step, HEAD_DIM)) + 8 * field(step, HEAD_DIM) * 4
    unit = 0
    for r in range(field(state, STATE_N_RUNS)):
        run = field(state, STATE_RUNS) + r * RUN_WORDS * 8
        rows = field(run, RUN_COUNT) * group
        for first in range(0, rows, WIDE_ROWS):
            count = min(WIDE_ROWS, rows - first)
            for kv_head in range(n_kv):
                if unit % nth == ith:
                    if count == 1:
                        attend_tile(W1, step, state, run, kv_head, first, count, tmp, work)
                    elif count <= 4:
                        attend_tile(W4, step, state, run, kv_head, first, count, tmp, work)
                    else:
                        attend_tile(WIDE, step, state, run, kv_head, first, count, tmp, work)
                unit += 1


# ---- one token: the blocks themselves are shared among the threads --------------------------------------------------------
# Partial results: for each KV head, block and row: m, l, then o, in (16 + head_dim) floats.


@native
def partial_at(step, kv_head, block, blocks, group, row):
    size = (16 + field(step, HEAD_DIM)) * 4
    return field(step, PARTIAL) + ((kv_head * blocks + block) * group + row) * size


@native
def part_rows(W, step, state, run, kv_head, first, count, b0, b1, lo, hi, blocks, tmp, work):
    """Blocks b0 .. b1 (counted from the first visible one) of rows first .. first+count."""
    T = count_of(W)
    head_dim = field(step, HEAD_DIM)
    group = field(step, N_HEAD) // field(step, N_KV)
    load_queries(T, step, run, kv_head, first, count, tmp, work)
    table = page_table(state, field(run, RUN_SLOT), field(step, GROUP))
    for b in range(b0, b1):
        start, stop = block_range(lo, hi, lo // BLOCK + b)
        attend_block(W, step, table, kv_head, tmp, start, stop)
        for t in range(count):
            record = tmp + t * ROW_BYTES
            to = partial_at(step, kv_head, b, blocks, group, first + t)
            store_float(to, 0, load_float(record, BLOCK_M))
            store_float(to, 4, load_float(record, BLOCK_L))
            block_o = tmp + block_at(T, head_dim) + t * head_dim * 4
            for d in range(0, head_dim * 4, 64):
                store_f32(to, 64 + d, load_f32(block_o, d))


@native
def visible(step, run):
    """First and last + 1 position that the run's first token sees, and the number of blocks between."""
    hi = field(run, RUN_POSITION) + 1
    window = field(step, WINDOW)
    lo = max(hi - window, 0) if window > 0 else 0
    return lo, hi, (hi + BLOCK - 1) // BLOCK - lo // BLOCK


def attention_part(step, state, ith, nth):
    """One token: each thread takes a share of (KV head, block) units, side by side so that queries are gathered once."""
    n_kv = field(step, N_KV)
    group = field(step, N_HEAD) // n_kv
    run = field(state, STATE_RUNS)
    lo, hi, blocks = visible(step, run)
    tmp = thread_memory(state, ith) + field(step, TMP)
    work = tmp + running_at(8, field(step, HEAD_DIM)) + 8 * field(step, HEAD_DIM) * 4
    unit = share_start(n_kv * blocks, ith, nth)
    stop = share_start(n_kv * blocks, ith + 1, nth)
    while unit < stop:
        kv_head = unit // blocks
        b0 = unit % blocks
        b1 = min(blocks, b0 + stop - unit)
        for first in range(0, group, 4):
            count = min(4, group - first)
            if count == 1:
                part_rows(W1, step, state, run, kv_head, first, count, b0, b1, lo, hi, blocks, tmp, work)
            else:
                part_rows(W4, step, state, run, kv_head, first, count, b0, b1, lo, hi, blocks, tmp, work)
        unit += b1 - b0


def attention_merge(step, state, ith, nth):
    """One token: add each head's blocks in ascending order."""
    n_head = field(step, N_HEAD)
    head_dim = field(step, HEAD_DIM)
    group = n_head // field(step, N_KV)
    run = field(state, STATE_RUNS)
    _lo, _hi, blocks = visible(step, run)
    record = thread_memory(state, ith) + field(step, TMP)
    o = record + 64
    for head in range(share_start(n_head, ith, nth), share_start(n_head, ith + 1, nth)):
        store_float(record, M, MASKED)
        store_float(record, L, f4(0.0))
        for d in range(0, head_dim * 4, 64):
            store_f32(o, d, zero_f())
        for b in range(blocks):
            p = partial_at(step, head // group, b, blocks, group, head % group)
            merge(
                load_float(record, M),
                load_float(record, L),
                o,
                load_float(p, 0),
                load_float(p, 4),
                p + 64,
                head_dim,
                record,
            )
        finish_row(o, load_float(record, L), field(step, OUT) + head * head_dim * 4, head_dim)


KERNELS = {"attention": attention, "attention_part": attention_part, "attention_merge": attention_merge}
