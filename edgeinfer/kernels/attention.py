"""Attention over the paged KV cache: softmax(q k scale) v, in blocks of 256 absolute positions merged in ascending order.

Each block keeps its largest score m, sum l of e^(s - m) and weighted values o (Milakov and Gimelshein, 2018; Dao et al., 2022);
blocks are merged as m' = max, l' = l e^(m-m') + l_b e^(m_b-m'), o likewise. A row's sums have the same order whether it comes
alone, in a tile with others, or with its blocks shared among threads, so logits are equal to the last bit in all of them: a
masked position contributes exactly 0, and an empty block exactly nothing.

A tile is up to T rows (token, query head) that share a KV head. Rows of a run are ordered token by token. How keys and values
are stored is a KV type's business (`kv_f16`, `kv_q8_0`, `kv_q4_0`); the kernels are made for each.

A sweep takes several tiles and KV heads through the blocks together. Keys of all its heads are read page by page, then their
values: a page holds the keys of its heads side by side, and the prefetchers of a CPU need pieces longer than one head's 8 KiB
(measured: 11 GB/s head by head, 24 GB/s page by page). And a block that is read once serves all tiles from the caches.
"""

from __future__ import annotations

from ..plan.fields import SWEEP_HEADS, SWEEP_SLOTS
from ..runtime.layout import RUN_COUNT, RUN_POSITION, RUN_ROW, RUN_SLOT, RUN_WORDS, STATE_N_RUNS, STATE_RUNS
from ..runtime.memory import field, field_f, load_float, load_s64, store_float
from ..runtime.simd import load_f32, store_f32, zero_f
from ..runtime.tile import W1, W3, W4, W8, count_of, tile_fma, tile_load, tile_store
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
    WINDOW,
    L,
    M,
    block_range,
    block_softmax,
    cap_scores,
    f4,
    finish_row,
    load_queries,
    merge,
    running_at,
    scores_at,
    slot_at,
    sums_at,
    visible,
    work_at,
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


@native
def tile_blocks(step, run, group, first, count):
    """The first and last + 1 position that rows first .. first+count of a run see."""
    last = field(run, RUN_POSITION) + (first + count - 1) // group + 1
    window = field(step, WINDOW)
    start = field(run, RUN_POSITION) + first // group + 1 - window if window > 0 else 0
    return max(start, 0), last


def make_attention(kv):
    """The two attention kernels for a KV type: for any batch, and for one token with its blocks shared out."""
    head_bytes, key_scores, value_at, fetch_value = kv.head_bytes, kv.key_scores, kv.value_at, kv.fetch_value

    @native
    def page_values(W, values, weights, sums, lo, hi, head_dim, ahead):
        """sums[t] += sum over positions lo .. hi of a page, ascending, of weight[t][p] v[p]; some dimensions at a time.

        The same part of the page at `ahead` is asked for meanwhile.
        """
        T = count_of(W)
        d = 0
        if T <= 4 and ROOM:
            while d + 48 < head_dim:
                to = sums + d * 4
                a = tile_load(W, to, head_dim * 4)
                b = tile_load(W, to + 64, head_dim * 4)
                c = tile_load(W, to + 128, head_dim * 4)
                e = tile_load(W, to + 192, head_dim * 4)
                for p in range(lo, hi):
                    w = weights + p * 4
                    fetch_value(ahead, p, d, head_dim)
                    fetch_value(ahead, p, d + 32, head_dim)
                    a = tile_fma(a, value_at(values, p, d, head_dim), w, BLOCK * 4)
                    b = tile_fma(b, value_at(values, p, d + 16, head_dim), w, BLOCK * 4)
                    c = tile_fma(c, value_at(values, p, d + 32, head_dim), w, BLOCK * 4)
                    e = tile_fma(e, value_at(values, p, d + 48, head_dim), w, BLOCK * 4)
                tile_store(a, to, head_dim * 4)
                tile_store(b, to + 64, head_dim * 4)
                tile_store(c, to + 128, head_dim * 4)
                tile_store(e, to + 192, head_dim * 4)
                d += 64
        while d + 16 < head_dim:
            to = sums + d * 4
            a = tile_load(W, to, head_dim * 4)
            b = tile_load(W, to + 64, head_dim * 4)
            for p in range(lo, hi):
                w = weights + p * 4
                fetch_value(ahead, p, d, head_dim)
                a = tile_fma(a, value_at(values, p, d, head_dim), w, BLOCK * 4)
                b = tile_fma(b, value_at(values, p, d + 16, head_dim), w, BLOCK * 4)
            tile_store(a, to, head_dim * 4)
            tile_store(b, to + 64, head_dim * 4)
            d += 32
        if d < head_dim:
            to = sums + d * 4
            a = tile_load(W, to, head_dim * 4)
            for p in range(lo, hi):
                a = tile_fma(a, value_at(values, p, d, head_dim), weights + p * 4, BLOCK * 4)
            tile_store(a, to, head_dim * 4)

    @native
    def keys_of(step, table, p):
        """The address of the keys of all heads in the page that holds position p."""
        return page_address(field(step, BASE), field(step, PAGE_STRIDE), table, p)

    @native
    def values_of(step, table, p):
        """The address of the values of all heads in the page that holds position p."""
        return keys_of(step, table, p) + field(step, N_KV) * head_bytes(field(step, HEAD_DIM))

    @native
    def attend_block(W, step, table, tmp, slot, tiles, h0, h1, start, stop):
        """Positions start .. stop, of one block, for a tile of heads h0 .. h1; leaves each head's m, l and o in its memory.

        `slot` is the tile's first slot; the next head's stands `tiles` slots further. While one page is worked on, the next
        one that will be read is asked for: three times faster at 4,096 positions than without both measures.
        """
        T = count_of(W)
        head_dim = field(step, HEAD_DIM)
        size = head_bytes(head_dim)
        base = start & ~(BLOCK - 1)
        p = start
        while p < stop:  # both are multiples of 32
            until = min(stop, (p & ~(PAGE - 1)) + PAGE)
            keys = keys_of(step, table, p)
            ahead = keys_of(step, table, until) if until < stop else values_of(step, table, start)
            for h in range(h0, h1):
                queries = slot_at(T, tmp, slot + (h - h0) * tiles, head_dim) + QUERIES
                scores = scores_at(T, tmp, h - h0, head_dim)
                for at in range(p, until, 32):
                    x, y = at & (PAGE - 1), scores + (at - base) * 4
                    a, b = key_scores(W, keys + h * size, x, queries, head_dim, ahead + h * size)
                    tile_store(a, y, BLOCK * 4)
                    tile_store(b, y + 64, BLOCK * 4)
            p = until
        cap = field_f(step, SOFTCAP)
        lo = stop
        hi = start
        first = slot_at(T, tmp, slot, head_dim)
        for t in range(T):
            lo = min(lo, load_s64(first, t * ROW_BYTES + FIRST))
            hi = max(hi, load_s64(first, t * ROW_BYTES + LAST))
        end = hi
        lo = max(lo, start)
        hi = min(hi, stop)
        for h in range(h0, h1):
            records = slot_at(T, tmp, slot + (h - h0) * tiles, head_dim)
            scores = scores_at(T, tmp, h - h0, head_dim)
            if cap > f4(0.0):
                cap_scores(scores, T, start, stop, cap)
            block_softmax(T, records, scores, start, stop)
            sums = sums_at(T, tmp, h - h0, head_dim)
            for d in range(0, T * head_dim * 4, 64):
                store_f32(sums, d, zero_f())
        p = lo
        while p < hi:
            until = min(hi, (p & ~(PAGE - 1)) + PAGE)
            values = values_of(step, table, p)
            ahead = values
            if until < hi:
                ahead = values_of(step, table, until)
            elif until < end:
                ahead = keys_of(step, table, until)
            at = p & (PAGE - 1)
            for h in range(h0, h1):
                weights = scores_at(T, tmp, h - h0, head_dim) + (p - at - base) * 4
                sums = sums_at(T, tmp, h - h0, head_dim)
                page_values(W, values + h * size, weights, sums, at, at + until - p, head_dim, ahead + h * size)
            p = until

    @native
    def sweep(W, step, state, run, first, count, h0, h1, b0, b1, blocks, tmp, work):
        """Blocks b0 .. b1 for rows first .. first+count of a run, in whole tiles but for the last, and KV heads h0 .. h1.

        With `blocks` (how many one token sees) each block's results go to the partial ones, b0 counted from the first
        visible block; without, all blocks are merged and their results go to `out`.
        """
        T = count_of(W)
        head_dim = field(step, HEAD_DIM)
        group = field(step, N_HEAD) // field(step, N_KV)
        tiles = (count + T - 1) // T
        table = page_table(state, field(run, RUN_SLOT), field(step, GROUP))
        for h in range(h0, h1):
            for i in range(tiles):
                slot = slot_at(T, tmp, (h - h0) * tiles + i, head_dim)
                load_queries(T, step, run, h, first + i * T, min(T, count - i * T), slot, work)
        origin = 0
        if blocks > 0:
            origin = load_s64(slot_at(T, tmp, 0, head_dim), FIRST) // BLOCK
        for b in range(b0, b1):
            for i in range(tiles):
                slot = slot_at(T, tmp, i, head_dim)
                lo = load_s64(slot, FIRST)
                hi = load_s64(slot + (T - 1) * ROW_BYTES, LAST)
                start, stop = block_range(lo, hi, origin + b)
                if start >= stop:
                    continue
                attend_block(W, step, table, tmp, i, tiles, h0, h1, start, stop)
                for h in range(h0, h1):
                    slot = slot_at(T, tmp, (h - h0) * tiles + i, head_dim)
                    sums = sums_at(T, tmp, h - h0, head_dim)
                    for t in range(min(T, count - i * T)):
                        record = slot + t * ROW_BYTES
                        block_m = load_float(record, BLOCK_M)
                        block_l = load_float(record, BLOCK_L)
                        block_o = sums + t * head_dim * 4
                        if blocks > 0:
                            to = partial_at(step, h, b, blocks, group, first + i * T + t)
                            store_float(to, 0, block_m)
                            store_float(to, 4, block_l)
                            for d in range(0, head_dim * 4, 64):
                                store_f32(to, 64 + d, load_f32(block_o, d))
                        else:
                            o = slot + running_at(T, head_dim) + t * head_dim * 4
                            merge(
                                load_float(record, M), load_float(record, L), o, block_m, block_l, block_o, head_dim, record
                            )  # fmt: skip
        if blocks > 0:
            return
        for h in range(h0, h1):
            for i in range(count):
                slot = slot_at(T, tmp, (h - h0) * tiles + i // T, head_dim)
                row = first + i
                token = field(run, RUN_ROW) + row // group
                out = field(step, OUT) + token * field(step, OUT_STRIDE) + (h * group + row % group) * head_dim * 4
                o = slot + running_at(T, head_dim) + i % T * head_dim * 4
                finish_row(o, load_float(slot, i % T * ROW_BYTES + L), out, head_dim)

    @native
    def sweep_rows(step, state, run, first, count, h0, h1, b0, b1, blocks, tmp, work):
        """A sweep with the narrowest tile that holds the rows; at most SWEEP_HEADS heads at a time."""
        for h in range(h0, h1, SWEEP_HEADS):
            h2 = min(h + SWEEP_HEADS, h1)
            if count == 1:
                sweep(W1, step, state, run, first, count, h, h2, b0, b1, blocks, tmp, work)
            elif count <= 3:
                sweep(W3, step, state, run, first, count, h, h2, b0, b1, blocks, tmp, work)
            elif count == 4:
                sweep(W4, step, state, run, first, count, h, h2, b0, b1, blocks, tmp, work)
            else:
                sweep(WIDE, step, state, run, first, count, h, h2, b0, b1, blocks, tmp, work)

    @native
    def sweep_tiles(step, state, run, first, stop, h0, h1, tmp, work):
        """All blocks that rows first .. stop of a run see, first being a tile's, for heads h0 .. h1."""
        if first >= stop or h0 >= h1:
            return
        group = field(step, N_HEAD) // field(step, N_KV)
        rest = (stop - first) % WIDE_ROWS
        whole = stop - rest if rest <= 4 else stop  # a narrower tile takes few rows
        for part in range(2):
            if part == 1:
                first, whole = whole, stop
            # Many tiles share what is read of one head; one tile alone reads all heads, whose pieces of a page are longer.
            heads = max(1, min(SWEEP_HEADS, SWEEP_SLOTS * WIDE_ROWS // max(1, whole - first)))
            many = SWEEP_SLOTS // heads * WIDE_ROWS
            for row in range(first, whole, many):
                count = min(many, whole - row)
                lo, hi = tile_blocks(step, run, group, row, count)
                b1 = (hi + BLOCK - 1) // BLOCK
                for h in range(h0, h1, heads):
                    sweep_rows(step, state, run, row, count, h, min(h + heads, h1), lo // BLOCK, b1, 0, tmp, work)

    @native
    def tile_weight(step, run, group, first, rows):
        """The blocks that a tile sees."""
        lo, hi = tile_blocks(step, run, group, first, min(WIDE_ROWS, rows - first))
        return (hi + BLOCK - 1) // BLOCK - lo // BLOCK

    @native
    def weight(step, run, group):
        """The blocks that the tiles of a run see, counted for each tile."""
        rows = field(run, RUN_COUNT) * group
        total = 0
        for first in range(0, rows, WIDE_ROWS):
            total += tile_weight(step, run, group, first, rows)
        return total

    def attention(step, state, ith, nth):
        """Any number of runs. Their heads stand in one row, a head's tiles in order, each as long as the blocks it sees.

        Each thread takes a piece of that row: whole heads together, and at its ends some tiles of a head. A tile belongs to
        the thread in whose piece it begins.
        """
        n_kv = field(step, N_KV)
        group = field(step, N_HEAD) // n_kv
        tmp = thread_memory(state, ith) + field(step, TMP)
        work = work_at(tmp, field(step, HEAD_DIM))
        total = 0
        for r in range(field(state, STATE_N_RUNS)):
            total += n_kv * weight(step, field(state, STATE_RUNS) + r * RUN_WORDS * 8, group)
        begin = share_start(total, ith, nth)
        end = share_start(total, ith + 1, nth)
        at = 0
        for r in range(field(state, STATE_N_RUNS)):
            run = field(state, STATE_RUNS) + r * RUN_WORDS * 8
            rows = field(run, RUN_COUNT) * group
            size = weight(step, run, group)
            whole = 0  # heads from here on wait to be swept together
            for h in range(n_kv + 1):
                first = 0
                stop = 0
                if h < n_kv:
                    if begin <= at and at + size <= end:
                        at += size
                        continue
                    tile = at
                    at += size
                    for row in range(0, rows, WIDE_ROWS):
                        if tile < begin:
                            first = row + WIDE_ROWS
                        if tile < end:
                            stop = min(row + WIDE_ROWS, rows)
                        tile += tile_weight(step, run, group, row, rows)
                sweep_tiles(step, state, run, 0, rows, whole, h, tmp, work)
                sweep_tiles(step, state, run, first, stop, h, min(h + 1, n_kv), tmp, work)
                whole = h + 1

    def attention_part(step, state, ith, nth):
        """One token: each thread takes a share of (block, KV head) units, those of a block side by side."""
        n_kv = field(step, N_KV)
        group = field(step, N_HEAD) // n_kv
        run = field(state, STATE_RUNS)
        _lo, _hi, blocks = visible(step, run)
        tmp = thread_memory(state, ith) + field(step, TMP)
        work = work_at(tmp, field(step, HEAD_DIM))
        unit = share_start(n_kv * blocks, ith, nth)
        stop = share_start(n_kv * blocks, ith + 1, nth)
        while unit < stop:
            b0 = unit // n_kv
            h0 = unit % n_kv
            many = (stop - unit) // n_kv if h0 == 0 else 0  # blocks with all their heads
            h1 = n_kv if many > 0 else min(n_kv, h0 + stop - unit)
            b1 = b0 + max(many, 1)
            for first in range(0, group, WIDE_ROWS):
                count = min(WIDE_ROWS, group - first)
                sweep_rows(step, state, run, first, count, h0, h1, b0, b1, blocks, tmp, work)
            unit += (h1 - h0) * (b1 - b0)

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
