"""Mixture of experts (Shazeer et al., 2017): which experts a token takes, and the products with their weights.

The experts' matrices are packed one after the other, so expert e begins at group e x groups. A token meets its experts one by
one, in the order of their rank, by the same dot product as a dense layer of that format: a token's result depends on nothing
but the token. Tokens are not gathered by expert, so a prompt is read at the speed of single tokens here.
"""

from __future__ import annotations

import numpy as np

from ..plan.fields import EXPERTS, indices
from ..plan.packing import PACKED_BYTES
from ..runtime.layout import STATE_N
from ..runtime.memory import field, field_f, load_float, load_s32, load_u8, store_float, store_s32, store_u8
from ..runtime.simd import exp_f, load_bf16, load_f32, splat_f, top_f
from ..runtime.tile import W1, slots_of, tile_add_scaled, tile_load, tile_store, tile_zero_f
from ..runtime.vec import Width, native
from .floats import load_half_vector, make_group
from .layout import SLOTS, share_start, thread_memory
from .matmul import SILU, finish_pair

f4 = np.float32
W1_OF_2, W1_OF_4, W1_OF_8 = Width(1, 2), Width(1, 4), Width(1, SLOTS)  # one token of a tile that holds more

(LOGITS, LOGITS_STRIDE, N_EXPERT, K, NORMALIZE, SCALE, OUT, OUT_STRIDE, PRIVATE, TMP) = indices(
    "route", "logits logits_stride n_expert k normalize scale out out_stride private tmp"
)
(
    QUANTS, SCALES, ACTS, TILE_BYTES, COLS, GROUPS, Y, Y_STRIDE, ROUTE, ROUTE_STRIDE, E_K, E_PRIVATE, E_TMP,
) = indices("experts_up", " ".join(EXPERTS))  # fmt: skip
LEAST_SUM = f4(6.103515625e-5)  # the smallest normal f16, which llama.cpp puts under the sum of the weights


# ---- which experts ------------------------------------------------------------------------------------------------------


@native
def _exp(x):
    return top_f(exp_f(splat_f(x)))


@native
def route_token(logits, n_expert, k, normalize, scale, out, marks):
    """The k largest of n_expert logits, the lowest number among equals; their weights are softmax over all logits."""
    largest = load_float(logits, 0)
    for e in range(1, n_expert):
        largest = max(largest, load_float(logits, e * 4))
    total = f4(0.0)
    for e in range(n_expert):
        store_u8(marks, e, 0)
        total += _exp(load_float(logits, e * 4) - largest)
    chosen = f4(0.0)
    for j in range(k):
        best = -1
        value = f4(0.0)
        for e in range(n_expert):
            x = load_float(logits, e * 4)
            # The first that is left is taken whatever it is, so that a NaN gives a NaN and no wild address.
            if load_u8(marks, e) == 0 and (best < 0 or x > value):
                best = e
                value = x
        store_u8(marks, best, 1)
        weight = _exp(value - largest) / total
        chosen += weight
        store_s32(out, j * 4, np.int32(best))
        store_float(out, (k + j) * 4, weight)
    if normalize != 0:
        scale /= max(chosen, LEAST_SUM)
    for j in range(k):
        store_float(out, (k + j) * 4, load_float(out, (k + j) * 4) * scale)


def route(step, state, ith, nth):
    """Of every token; with one token every thread does it for itself and no barrier is needed."""
    n = field(state, STATE_N)
    memory = thread_memory(state, ith)
    out = field(step, OUT)
    start = 0
    stop = n
    if field(step, PRIVATE) != 0:
        out += memory
    else:
        start = share_start(n, ith, nth)
        stop = share_start(n, ith + 1, nth)
    for t in range(start, stop):
        route_token(
            field(step, LOGITS) + t * field(step, LOGITS_STRIDE),
            field(step, N_EXPERT),
            field(step, K),
            field(step, NORMALIZE),
            field_f(step, SCALE),
            out + t * field(step, OUT_STRIDE),
            memory + field(step, TMP),
        )


# ---- products -----------------------------------------------------------------------------------------------------------


def quantized_row(dot, quant_bytes, scale_bytes):
    """row(W, step, acts, t, block, expert group) -> tile: 16 rows times one token's int8 values from a block on."""

    @native
    def row(W, step, acts, t, block, nb, all_blocks, group):
        slots = slots_of(W)
        q = field(step, QUANTS) + group * nb * quant_bytes
        s = field(step, SCALES) + group * nb * scale_bytes
        tile = acts + t // slots * field(step, TILE_BYTES) + t % slots * 4
        xd = tile + all_blocks * 32 * slots
        xs = xd + all_blocks * 4 * slots
        xh = xs + all_blocks * 8 * slots
        at = block * 4 * slots
        return dot(W, q, s, tile + at * 8, xd + at, xs + 2 * at, xh + 2 * at, nb)

    return row


def float_row(group_of, size):
    """The same for float weights and float32 rows, TILE_BYTES apart."""

    @native
    def row(W, step, acts, t, block, nb, all_blocks, group):
        w = field(step, QUANTS) + group * nb * 32 * 16 * size
        return group_of(W, w, acts + t * field(step, TILE_BYTES) + block * 128, 0, nb * 32)

    return row


def of_tokens(product):
    """The kernel of a product: where its operands are, with one token in each thread's own memory, and how tiles hold it."""

    def kernel(step, state, ith, nth):
        n = field(state, STATE_N)
        memory = thread_memory(state, ith)
        acts = field(step, ACTS)
        route = field(step, ROUTE)
        if field(step, E_PRIVATE) != 0:
            acts += memory
            route += memory
        if n == 1:
            product(W1, step, acts, route, ith, nth, n, memory + field(step, E_TMP))
        elif n == 2:
            product(W1_OF_2, step, acts, route, ith, nth, n, memory + field(step, E_TMP))
        elif n <= 4:
            product(W1_OF_4, step, acts, route, ith, nth, n, memory + field(step, E_TMP))
        else:
            product(W1_OF_8, step, acts, route, ith, nth, n, memory + field(step, E_TMP))

    return kernel


def make_experts(row):
    """The two kernels of a format."""

    @native
    def up(W, step, acts, route, ith, nth, n, tmp):
        """Units of (rank, 16 rows of gate and up) are shared among the threads."""
        nb = field(step, COLS) // 32
        groups = field(step, GROUPS)
        pairs = groups // 2
        k = field(step, E_K)
        for unit in range(share_start(k * pairs, ith, nth), share_start(k * pairs, ith + 1, nth)):
            j = unit // pairs
            pair = unit % pairs
            for t in range(n):
                group = load_s32(route + t * field(step, ROUTE_STRIDE), j * 4) * groups + pair * 2
                y = field(step, Y) + t * field(step, Y_STRIDE) + unit * 64
                gate = row(W, step, acts, t, 0, nb, nb, group)
                other = row(W, step, acts, t, 0, nb, nb, group + 1)
                finish_pair(gate, other, y, 0, SILU, tmp)

    @native
    def down(W, step, acts, route, ith, nth, n, tmp):
        """Rows are shared among the threads; a row adds its experts in the order of their rank."""
        nb = field(step, COLS) // 32
        groups = field(step, GROUPS)
        k = field(step, E_K)
        for g in range(share_start(groups, ith, nth), share_start(groups, ith + 1, nth)):
            for t in range(n):
                chosen = route + t * field(step, ROUTE_STRIDE)
                total = tile_zero_f(W)
                for j in range(k):
                    group = load_s32(chosen, j * 4) * groups + g
                    acc = row(W, step, acts, t, j * nb, nb, k * nb, group)
                    total = tile_add_scaled(total, acc, splat_f(load_float(chosen, (k + j) * 4)))
                y = field(step, Y) + t * field(step, Y_STRIDE) + g * 64
                total = tile_add_scaled(total, tile_load(W, y, 0), splat_f(f4(1.0)))
                tile_store(total, y, 0)

    return of_tokens(up), of_tokens(down)


def experts_kernels(formats):
    """Kernels for quantized formats, given as name -> dot product, and for the float formats."""
    rows = {name: quantized_row(dot, *PACKED_BYTES[name]) for name, dot in formats.items()}
    rows["f32"] = float_row(make_group(load_f32, 4), 4)
    rows["f16"] = float_row(make_group(load_half_vector, 2), 2)
    rows["bf16"] = float_row(make_group(load_bf16, 2), 2)
    found = {"route": route}
    for name, row in rows.items():
        found[f"experts_up.{name}"], found[f"experts_down.{name}"] = make_experts(row)
    return found
