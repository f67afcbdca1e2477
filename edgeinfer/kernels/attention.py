"""Attention over the paged KV cache: softmax(q k scale) v, in blocks of 256 absolute positions merged in ascending order.

Each block keeps its largest score m, sum l of e^(s - m) and weighted values o (Milakov and Gimelshein, 2018; Dao et al., 2022);
blocks are merged as m' = max, l' = l e^(m-m') + l_b e^(m_b-m'), o likewise. A row's sums have the same order whether it comes
alone, in a tile with others, or with its blocks shared among threads, so logits are equal to the last bit in all of them: a
masked position contributes exactly 0, and an empty block exactly nothing.

A tile is up to T rows (token, query head) that share a KV head. Rows of a run are ordered token by token. How keys and values
are stored is a KV type's business (`kv_f16`, `kv_q8_0`, `kv_q4_0`); the kernels are made for each.
"""

from __future__ import annotations

from ..plan.fields import SWEEP_HEADS, SWEEP_SLOTS
from ..runtime.layout import RUN_COUNT, RUN_POSITION, RUN_WORDS, STATE_N_RUNS, STATE_RUNS
from ..runtime.memory import field, load_float, store_float
from ..runtime.simd import store_f32, zero_f
from ..runtime.vec import native
from . import kv_f16, kv_q4_0, kv_q8_0
from .attention_rows import (
    HEAD_DIM,
    MASKED,
    N_HEAD,
    N_KV,
    OUT,
    TMP,
    WINDOW,
    L,
    M,
    f4,
    finish_row,
    merge,
    partial_at,
    work_at,
)  # fmt: skip
from .attention_sweep import WIDE_ROWS, make_sweep
from .layout import BLOCK, share_start, thread_memory


@native
def seen(step, run, group, first, count):
    """The first and last + 1 position that rows first .. first+count of a run see."""
    last = field(run, RUN_POSITION) + (first + count - 1) // group + 1
    window = field(step, WINDOW)
    start = field(run, RUN_POSITION) + first // group + 1 - window if window > 0 else 0
    return max(start, 0), last


@native
def blocks_seen(step, run, group, first, count):
    """The number of blocks in which those positions lie."""
    lo, hi = seen(step, run, group, first, count)
    return (hi + BLOCK - 1) // BLOCK - lo // BLOCK


def make_attention(kv):
    """The two attention kernels for a KV type: for any batch, and for one token with its blocks shared out."""
    sweep_rows = make_sweep(kv)

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
                lo, hi = seen(step, run, group, row, count)
                b1 = (hi + BLOCK - 1) // BLOCK
                for h in range(h0, h1, heads):
                    sweep_rows(step, state, run, row, count, h, min(h + heads, h1), lo // BLOCK, b1, 0, tmp, work)

    @native
    def weight(step, run, group):
        """The blocks that the tiles of a run see, counted for each tile."""
        rows = field(run, RUN_COUNT) * group
        total = 0
        for first in range(0, rows, WIDE_ROWS):
            total += blocks_seen(step, run, group, first, min(WIDE_ROWS, rows - first))
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
                        tile += blocks_seen(step, run, group, row, min(WIDE_ROWS, rows - row))
                sweep_tiles(step, state, run, 0, rows, whole, h, tmp, work)
                sweep_tiles(step, state, run, first, stop, h, min(h + 1, n_kv), tmp, work)
                whole = h + 1

    def attention_part(step, state, ith, nth):
        """One token: each thread takes a share of (block, KV head) units, those of a block side by side."""
        n_kv = field(step, N_KV)
        group = field(step, N_HEAD) // n_kv
        run = field(state, STATE_RUNS)
        blocks = blocks_seen(step, run, group, 0, 1)
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
    blocks = blocks_seen(step, run, group, 0, 1)
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
