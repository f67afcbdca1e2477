"""A sweep: several tiles of rows and KV heads that go through the blocks of an attention together.

Keys of all its heads are read page by page, then their values: a page holds the keys of its heads side by side, and the
prefetchers of a CPU need pieces longer than one head's 8 KiB (measured: 11 GB/s head by head, 24 GB/s page by page). And a
block that is read once serves all tiles from the caches.
"""

from __future__ import annotations

from ..plan.fields import SWEEP_HEADS
from ..runtime.layout import RUN_ROW, RUN_SLOT
from ..runtime.memory import field, field_f, load_float, load_s64, store_float
from ..runtime.simd import load_f32, store_f32, zero_f
from ..runtime.tile import W1, W3, W4, W8, count_of, tile_fma, tile_load, tile_store
from ..runtime.vec import native, target
from .attention_rows import (
    BASE,
    BLOCK_L,
    BLOCK_M,
    FIRST,
    GROUP,
    HEAD_DIM,
    LAST,
    N_HEAD,
    N_KV,
    OUT,
    OUT_STRIDE,
    PAGE_STRIDE,
    QUERIES,
    ROW_BYTES,
    SOFTCAP,
    L,
    M,
    block_range,
    block_softmax,
    cap_scores,
    f4,
    finish_row,
    load_queries,
    merge,
    partial_at,
    running_at,
    scores_at,
    slot_at,
    sums_at,
)  # fmt: skip
from .layout import BLOCK, PAGE, page_address, page_table

WIDE = W8 if target().width == 8 else W4  # rows of a prefill tile
ROOM = target().name.startswith("avx512")  # for sixteen sums and four values in registers
WIDE_ROWS = target().width if target().width == 8 else 4


def make_sweep(kv):
    """The sweep of a KV type: sweep_rows(step, state, run, first, count, h0, h1, b0, b1, blocks, tmp, work)."""
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

    return sweep_rows
