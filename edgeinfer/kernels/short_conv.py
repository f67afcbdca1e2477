"""The gated short convolution of LFM2: bx = b x; out = c * (sum over j of weight[j] bx[t - width + 1 + j]), channel by channel.

What a token needs of the tokens before it, the last width - 1 values of bx, stands in the pages of its sequence: in the page
of position p, slot p modulo `ring`, float32 (ring, cols). So a full page holds the state at its end, and a sequence can be
continued from there by whoever shares the page. A thread takes whole channels, and walks all tokens in order.
"""

from __future__ import annotations

from ..plan.fields import indices
from ..runtime.layout import RUN_COUNT, RUN_POSITION, RUN_ROW, RUN_SLOT, RUN_WORDS, STATE_N_RUNS, STATE_RUNS
from ..runtime.memory import field
from ..runtime.simd import fma, load_f32, mul_f, store_f32, zero_f
from ..runtime.vec import native
from .layout import page_address, page_table, share_start, thread_memory

(X, X_STRIDE, OUT, OUT_STRIDE, COLS, WIDTH, WEIGHT, GROUP, BASE, PAGE_STRIDE, RING, TMP) = indices(
    "short_conv", "x x_stride out out_stride cols width weight group base page_stride ring tmp"
)


@native
def slot_address(step, table, position):
    """Where bx of a position stands."""
    page = page_address(field(step, BASE), field(step, PAGE_STRIDE), table, position)
    return page + position % field(step, RING) * field(step, COLS) * 4


@native
def convolve(step, state, run, channel, past):
    """One run, 16 channels from byte `channel` of a row on; past holds the width - 1 values before the token, oldest first."""
    cols = field(step, COLS) * 4
    before = field(step, WIDTH) - 1
    weight = field(step, WEIGHT) + channel
    table = page_table(state, field(run, RUN_SLOT), field(step, GROUP))
    first = field(run, RUN_POSITION)
    for j in range(before):
        position = first - before + j
        value = zero_f()
        if position >= 0:
            value = load_f32(slot_address(step, table, position), channel)
        store_f32(past, j * 64, value)
    for t in range(field(run, RUN_COUNT)):
        row = field(step, X) + (field(run, RUN_ROW) + t) * field(step, X_STRIDE) + channel
        bx = mul_f(load_f32(row, 0), load_f32(row, 2 * cols))
        total = zero_f()
        for j in range(before):
            total = fma(load_f32(past, j * 64), load_f32(weight, j * cols), total)
        total = fma(bx, load_f32(weight, before * cols), total)
        out = field(step, OUT) + (field(run, RUN_ROW) + t) * field(step, OUT_STRIDE) + channel
        store_f32(out, 0, mul_f(load_f32(row, cols), total))
        for j in range(before - 1):
            store_f32(past, j * 64, load_f32(past, j * 64 + 64))
        store_f32(past, (before - 1) * 64, bx)
        store_f32(slot_address(step, table, first + t), channel, bx)


def short_conv(step, state, ith, nth):
    """Channels are shared among the threads; x holds b, c and x side by side."""
    past = thread_memory(state, ith) + field(step, TMP)
    groups = field(step, COLS) // 16
    for g in range(share_start(groups, ith, nth), share_start(groups, ith + 1, nth)):
        for r in range(field(state, STATE_N_RUNS)):
            convolve(step, state, field(state, STATE_RUNS) + r * RUN_WORDS * 8, g * 64, past)


KERNELS = {"short_conv": short_conv}
