"""Attention over the paged KV cache: softmax(q k scale) v, in blocks of 256 absolute positions merged in ascending order.

Each block keeps its largest score m, sum l of e^(s - m) and weighted values o (Milakov and Gimelshein, 2018; Dao et al., 2022);
blocks are merged as m' = max, l' = l e^(m-m') + l_b e^(m_b-m'), o likewise. A row's sums have the same order whether it comes
alone, in a tile with others, or with its blocks shared among threads, so logits are equal to the last bit in all of them: a
masked position contributes exactly 0, and an empty block exactly nothing.

A tile is up to T rows (token, query head) that share a KV head. Rows of a run are ordered token by token. How keys and values
are stored is a KV type's business (`kv_f16`, `kv_q8_0`, `kv_q4_0`); the kernels are made for each.
"""

from __future__ import annotations

from ..runtime.layout import RUN_COUNT, RUN_ROW, RUN_SLOT, RUN_WORDS, STATE_N_RUNS, STATE_RUNS
from ..runtime.memory import field, field_f, load_float, load_s64, store_float
from ..runtime.simd import load_f32, store_f32, zero_f
from ..runtime.tile import W1, W3, W4, W8, count_of, tile_fma, tile_store, tile_zero_f
from ..runtime.vec import native, target
from . import kv_f16, kv_q4_0, kv_q8_0
from .attention_rows import (
    BASE,
    BLOCK_L,
    BLOCK_M,
    FIRST,
    GROUP,
    HEAD_DIM,
    LAST,
    MASKED,
    N_HEAD,
    N_KV,
    OUT,
    OUT_STRIDE,
    PAGE_STRIDE,
    PARTIAL,
    QUERIES,
    ROW_BYTES,
    SOFTCAP,
    TMP,
    L,
    M,
    block_at,
    block_range,
    block_softmax,
    cap_scores,
    f4,
    finish_row,
    load_queries,
    merge,
    running_at,
    scores_at,
    visible,
)  # fmt: skip
from .layout import BLOCK, PAGE, page_address, page_table, share_start, thread_memory

WIDE = W8 if target().width == 8 else W4  # rows of a prefill tile
ROOM = target().name.startswith("avx512")  # for sixteen sums and four values in registers
WIDE_ROWS = target().width if target().width == 8 else 4


# ---- one token: the blocks themselves are shared among the threads -------------------------------------------------------
# Partial results: for each KV head, block and row: m, l, then o, in (16 + head_dim) floats.


@native
def partial_at(step, kv_head, block, blocks, group, row):
    size = (16 + field(step, HEAD_DIM)) * 4
    return field(step, PARTIAL) + ((kv_head * blocks + block) * group + row) * size


def make_attention(kv):
    """The two attention kernels for a KV type: for any batch, and for one token with its blocks shared out."""
    head_bytes, key_scores, value_at = kv.head_bytes, kv.key_scores, kv.value_at

    @native
    def block_scores(W, step, table, kv_head, tmp, start, stop):
        """scores[t][p - block start] = q[t] . k[p] for p in start .. stop, both multiples of 32."""
        T = count_of(W)
        head_dim = field(step, HEAD_DIM)
        scores = tmp + scores_at(T, head_dim)
        for p in range(start, stop, 32):
            page = page_address(field(step, BASE), field(step, PAGE_STRIDE), table, p)
            keys = page + kv_head * head_bytes(head_dim)
            a, b = key_scores(W, keys, p & (PAGE - 1), tmp + QUERIES, head_dim)
            tile_store(a, scores + (p & (BLOCK - 1)) * 4, BLOCK * 4)
            tile_store(b, scores + (p & (BLOCK - 1)) * 4 + 64, BLOCK * 4)

    @native
    def block_values(W, step, table, kv_head, tmp, start, stop):
        """o[t] = sum over positions, ascending, of weight[t][p] v[p]; the dimensions go 32 at a time."""
        T = count_of(W)
        head_dim = field(step, HEAD_DIM)
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
        if T <= 4 and ROOM:
            while d + 48 < head_dim:
                a = tile_zero_f(W)
                b = tile_zero_f(W)
                c = tile_zero_f(W)
                e = tile_zero_f(W)
                p = lo
                while p < hi:
                    until = min(hi, (p & ~(PAGE - 1)) + PAGE)
                    page = page_address(field(step, BASE), field(step, PAGE_STRIDE), table, p)
                    values = page + (field(step, N_KV) + kv_head) * head_bytes(head_dim)
                    while p < until:
                        w = weights + (p - base) * 4
                        at = p & (PAGE - 1)
                        a = tile_fma(a, value_at(values, at, d, head_dim), w, BLOCK * 4)
                        b = tile_fma(b, value_at(values, at, d + 16, head_dim), w, BLOCK * 4)
                        c = tile_fma(c, value_at(values, at, d + 32, head_dim), w, BLOCK * 4)
                        e = tile_fma(e, value_at(values, at, d + 48, head_dim), w, BLOCK * 4)
                        p += 1
                tile_store(a, sums + d * 4, head_dim * 4)
                tile_store(b, sums + d * 4 + 64, head_dim * 4)
                tile_store(c, sums + d * 4 + 128, head_dim * 4)
                tile_store(e, sums + d * 4 + 192, head_dim * 4)
                d += 64
        while d < head_dim:
            a = tile_zero_f(W)
            b = tile_zero_f(W)
            two = d + 16 < head_dim
            p = lo
            while p < hi:
                until = min(hi, (p & ~(PAGE - 1)) + PAGE)
                page = page_address(field(step, BASE), field(step, PAGE_STRIDE), table, p)
                values = page + (field(step, N_KV) + kv_head) * head_bytes(head_dim)
                if two:
                    while p < until:
                        a = tile_fma(
                            a, value_at(values, p & (PAGE - 1), d, head_dim), weights + (p - base) * 4, BLOCK * 4
                        )
                        b = tile_fma(
                            b, value_at(values, p & (PAGE - 1), d + 16, head_dim), weights + (p - base) * 4, BLOCK * 4
                        )
                        p += 1
                else:
                    while p < until:
                        a = tile_fma(
                            a, value_at(values, p & (PAGE - 1), d, head_dim), weights + (p - base) * 4, BLOCK * 4
                        )
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
                        elif count <= 3:
                            attend_tile(W3, step, state, run, kv_head, first, count, tmp, work)
                        elif count == 4:
                            attend_tile(W4, step, state, run, kv_head, first, count, tmp, work)
                        else:
                            attend_tile(WIDE, step, state, run, kv_head, first, count, tmp, work)
                    unit += 1

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
                elif count <= 3:
                    part_rows(W3, step, state, run, kv_head, first, count, b0, b1, lo, hi, blocks, tmp, work)
                else:
                    part_rows(W4, step, state, run, kv_head, first, count, b0, b1, lo, hi, blocks, tmp, work)
            unit += b1 - b0

    return attention, attention_part


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


def _kernels():
    found = {"attention_merge": attention_merge}
    for suffix, kv in (("", kv_f16), (".q8_0", kv_q8_0), (".q4_0", kv_q4_0)):
        found[f"attention{suffix}"], found[f"attention_part{suffix}"] = make_attention(kv)
    return found


KERNELS = _kernels()
