"""What is asked of a row of logits: the largest, the k largest, whether all are finite; and the final soft cap.

The first and the third are asked of every row, so a step answers them on all threads. Of the k largest a record of words
asks: address of the row, n, k, address of int64 ids (k), address of float32 values (k).
"""

from __future__ import annotations

import numpy as np

from ..plan.fields import SCAN_BLOCK, SCAN_WORDS, indices
from ..runtime.layout import STATE_N_OUT
from ..runtime.memory import field, field_f, load_float, load_s64, store_float, store_s64
from ..runtime.simd import add_f, div_f, exp_f, fma, load_f32, max_f, mul_f, splat_f, store_f32, sum_f, top_f, zero_f
from ..runtime.vec import native
from .layout import share_start

f4 = np.float32
ROW, COUNT, TOP, IDS, VALUES = range(5)
X, X_STRIDE, COLS, CAP = indices("softcap", "x x_stride cols cap")
M_FOUND, M_FOUND_STRIDE, M_BLOCKS, M_OUT, M_OUT_STRIDE = indices(
    "scan_merge", "found found_stride blocks out out_stride"
)
S_X, S_X_STRIDE, S_COLS, S_OUT, S_OUT_STRIDE = indices("scan", "x x_stride cols out out_stride")


@native
def _all_finite(total):
    """Whether a sum of x * 0 says that no x was NaN or infinite."""
    return f4(1.0) if total == f4(0.0) else f4(0.0)


def scan(step, state, ith, nth):
    """Of each SCAN_BLOCK logits of a row: where the first of the largest is, what it is, and 1 when all are finite."""
    cols = field(step, S_COLS)
    blocks = (cols + SCAN_BLOCK - 1) // SCAN_BLOCK
    units = field(state, STATE_N_OUT) * blocks
    for unit in range(share_start(units, ith, nth), share_start(units, ith + 1, nth)):
        block = unit % blocks
        x = field(step, S_X) + unit // blocks * field(step, S_X_STRIDE) + block * SCAN_BLOCK * 4
        out = field(step, S_OUT) + unit // blocks * field(step, S_OUT_STRIDE) + block * SCAN_WORDS * 4
        n = min(SCAN_BLOCK, cols - block * SCAN_BLOCK)
        zero = zero_f()
        total = zero_f()
        top = f4(-np.inf)
        at = 0
        for part in range(0, n & ~15, 256):
            best = load_f32(x, part * 4)
            for i in range(part * 4, min(part + 256, n & ~15) * 4, 64):
                v = load_f32(x, i)
                best = max_f(v, best)
                total = fma(v, zero, total)  # x * 0 is NaN for NaN and infinities
            if top_f(best) > top:
                top = top_f(best)
                at = part
        rest = sum_f(total)
        if top > f4(-np.inf):
            while load_float(x, at * 4) != top:
                at += 1
        for i in range(n & ~15, n):
            v = load_float(x, i * 4)
            rest += v * f4(0.0)
            if v > top:
                top = v
                at = i
        store_float(out, 0, f4(at))
        store_float(out, 4, top)
        store_float(out, 8, _all_finite(rest))


def scan_merge(step, state, ith, nth):
    """Of each row that wants logits: the block of the first of the largest, its place in the block, 1 if all are finite."""
    blocks = field(step, M_BLOCKS)
    n = field(state, STATE_N_OUT)
    for t in range(share_start(n, ith, nth), share_start(n, ith + 1, nth)):
        found = field(step, M_FOUND) + t * field(step, M_FOUND_STRIDE)
        out = field(step, M_OUT) + t * field(step, M_OUT_STRIDE)
        best = 0
        top = load_float(found, 4)
        finite = load_float(found, 8)
        for b in range(1, blocks):
            at = found + b * SCAN_WORDS * 4
            if load_float(at, 4) > top:
                top = load_float(at, 4)
                best = b
            finite *= load_float(at, 8)
        store_float(out, 0, f4(best))
        store_float(out, 4, load_float(found, best * SCAN_WORDS * 4))
        store_float(out, 8, finite)


@native
def _less(a, ia, b, ib):
    """Whether (a, ia) ranks behind (b, ib): smaller value, or equal value and higher id."""
    return a < b or (a == b and ia > ib)


@native
def _sift(ids, values, n, at):
    """Let the entry at `at` sink in a heap whose root ranks last."""
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and _less(
            load_float(values, child * 4 + 4),
            load_s64(ids, child * 8 + 8),
            load_float(values, child * 4),
            load_s64(ids, child * 8),
        ):
            child += 1
        v = load_float(values, at * 4)
        i = load_s64(ids, at * 8)
        w = load_float(values, child * 4)
        j = load_s64(ids, child * 8)
        if not _less(w, j, v, i):
            break
        store_float(values, at * 4, w)
        store_s64(ids, at * 8, j)
        store_float(values, child * 4, v)
        store_s64(ids, child * 8, i)
        at = child


def top_k(record, _state, _ith, _nth):
    """The k largest logits, descending, equal ones by ascending id: a heap of k whose root is the one to beat."""
    row = field(record, ROW)
    n = field(record, COUNT)
    k = field(record, TOP)
    ids = field(record, IDS)
    values = field(record, VALUES)
    for i in range(k):
        store_s64(ids, i * 8, i)
        store_float(values, i * 4, load_float(row, i * 4))
    for i in range(k // 2, -1, -1):
        _sift(ids, values, k, i)
    at = k
    while at < n:
        floor = load_float(values, 0)
        if at & 15 == 0 and at + 16 <= n and top_f(load_f32(row, at * 4)) <= floor:
            at += 16  # 16 at once that cannot enter
            continue
        v = load_float(row, at * 4)
        if v > floor:
            store_float(values, 0, v)
            store_s64(ids, 0, at)
            _sift(ids, values, k, 0)
        at += 1
    for end in range(k - 1, 0, -1):
        v = load_float(values, 0)
        i = load_s64(ids, 0)
        store_float(values, 0, load_float(values, end * 4))
        store_s64(ids, 0, load_s64(ids, end * 8))
        store_float(values, end * 4, v)
        store_s64(ids, end * 8, i)
        _sift(ids, values, end, 0)


def softcap(step, state, ith, nth):
    """x = cap tanh(x / cap) in place, on the rows that want logits (Gemma 2)."""
    cols = field(step, COLS)
    cap = field_f(step, CAP)
    vectors = (cols + 15) // 16
    for t in range(field(state, STATE_N_OUT)):
        x = field(step, X) + t * field(step, X_STRIDE)
        for i in range(share_start(vectors, ith, nth) * 64, share_start(vectors, ith + 1, nth) * 64, 64):
            e = exp_f(mul_f(load_f32(x, i), splat_f(f4(2.0) / cap)))
            one = splat_f(f4(1.0))
            store_f32(x, i, mul_f(splat_f(cap), add_f(one, div_f(splat_f(f4(-2.0)), add_f(one, e)))))


KERNELS = {"scan": scan, "scan_merge": scan_merge, "logits.top_k": top_k, "softcap": softcap}
