"""The product of packed weights and int8 activations, for every weight format: a format brings `dot` and `unpack`.

Weights stand in groups of 16 rows, four consecutive values of each row in one 64-byte vector, so the integer product
accumulates one row per lane and no sum across lanes is needed. Few tokens read the packed bits straight; more
unpack a group to bytes once and meet all token tiles with it. Each row sums its blocks in the same order with the
same roundings either way, so logits do not depend on how many tokens share a call.
"""

from __future__ import annotations

from ..plan.fields import MODES, indices
from ..runtime.layout import STATE_N, STATE_N_OUT
from ..runtime.memory import field
from ..runtime.simd import gelu_f, load_f32, mul_f, silu_f, store_f32
from ..runtime.tile import (
    NARROW,
    NARROW_OF_8,
    W1,
    W2,
    W2_OF_8,
    W4,
    W4_OF_8,
    W6_OF_8,
    W8,
    count_of,
    narrow,
    rows_f32,
    rows_i32,
    slots_of,
    tile_add,
    tile_add_floats,
    tile_add_vec,
    tile_dot,
    tile_dot_pair,
    tile_dot_signed,
    tile_join,
    tile_load,
    tile_scale,
    tile_scale_words,
    tile_start2_centred,
    tile_start_centred,
    tile_start_signed,
    tile_store,
    tile_zero_f,
    tile_zero_i,
)  # fmt: skip
from ..runtime.vec import inner, native, target
from .layout import SLOTS, ask_part, share_start, thread_memory

(QUANTS, SCALES, ACTS, TILE_BYTES, COLS, GROUPS, Y, Y_STRIDE, MODE, ROWS, PRIVATE, TMP, BIAS) = indices(
    "matmul", "quants scales acts tile_bytes cols groups y y_stride mode rows private tmp bias"
)
ADD, SILU, GELU, INTO = MODES["add"], MODES["silu"], MODES["gelu"], MODES["silu_into"]
W_GEMM = {8: W8, 4: W4_OF_8, 2: W2_OF_8}[target().width]
GEMM_TOKENS = target().width
WIDE = target().dot == "vpdpbusd512"
# What a tile of tokens meets is one function where the registers hold it; a call passes all accumulators through memory, 2 %
# of prefill for SmolLM2's narrow rows. With fewer registers it gained nothing.
fused = inner if WIDE else native
# Up to so many, unpacking costs more than it saves. With AVX-512 a format may say more: there the units that multiply are the
# limit, and those that mask and shift have time (1.5B, 128 tokens: 2 % faster in Q4_0, Q4_K and Q6_K, 48 tokens: 7 %; Q5_0 is
# 2 % slower). With AVX2, at 32, Q4_0 would gain 6 % and Q4_K_M lose 17 %.
STRAIGHT_TOKENS = 32 if WIDE else 16
ALWAYS = 1 << 30
# Unpacked group in thread memory: bytes [nb][8][16][4], then one float32 vector [nb][16] and two of either kind.
BLOCK_BYTES = 512


@native
def join_halves(gate, up, mode):
    """act(gate) * up."""
    return mul_f(silu_f(gate), up) if mode == SILU else mul_f(gelu_f(gate), up)


@native
def rows_alternate(mode):
    """Whether gate and up rows alternate in the matrix."""
    return mode in (SILU, GELU)


@fused
def biased(acc, bias, g):
    """acc plus the bias of group g's rows, where there is one."""
    if bias != 0:
        acc = tile_add_vec(acc, load_f32(bias, g * 64))
    return acc


@fused
def finish(W, acc, y, stride, mode, tmp):
    """Store 16 rows of T tokens, add them to what is there, or join them with the gate rows there."""
    if mode >= INTO:
        tile_store(acc, tmp, 64)
        for t in range(count_of(W)):
            gate = load_f32(y, t * stride)
            store_f32(y, t * stride, join_halves(gate, load_f32(tmp, t * 64), mode - INTO + SILU))
    elif mode == ADD:
        tile_store(tile_add(acc, tile_load(W, y, stride)), y, stride)
    else:
        tile_store(acc, y, stride)


@fused
def finish_pair(gate, up, y, stride, mode, tmp):
    """Join gate and up rows; through memory, which costs little beside the product itself."""
    tile_store(gate, tmp, 64)
    tile_store(up, tmp + 1024, 64)
    for t in range(count_of(gate)):
        store_f32(y, t * stride, join_halves(load_f32(tmp, t * 64), load_f32(tmp, 1024 + t * 64), mode))


# ---- the product with unpacked bytes, by what a block of 32 carries besides them -----------------------------------------


def _sum_bytes(dot):
    @inner
    def run(acc, W, w, x, S):
        """acc += 32 bytes of W's rows times 32 activations of T tokens."""
        for v in range(8):
            acc = dot(acc, rows_i32(W, w, v * 64), x + v * 4 * S)
        return acc

    @inner
    def quad(acc, W, w, x, S, v):
        return dot(acc, rows_i32(W, w, v * 64), x + v * 4 * S)

    @inner
    def unrolled(acc, W, w, x, S):
        acc = quad(quad(quad(quad(acc, W, w, x, S, 0), W, w, x, S, 1), W, w, x, S, 2), W, w, x, S, 3)
        return quad(quad(quad(quad(acc, W, w, x, S, 4), W, w, x, S, 5), W, w, x, S, 6), W, w, x, S, 7)

    return unrolled if narrow() or WIDE else run  # LLVM thinks the loop too long to unroll there


@inner
def _pair(acc, W, w, x, S, v):
    y = x + v * 4 * S
    return tile_dot_pair(acc, rows_i32(W, w, v * 64), y, rows_i32(W, w, v * 64 + 64), y + 4 * S)


@inner
def _sum_pairs(acc, W, w, x, S):
    """The same of weights 0 .. 63, as all unsigned ones are."""
    return _pair(_pair(_pair(_pair(acc, W, w, x, S, 0), W, w, x, S, 2), W, w, x, S, 4), W, w, x, S, 6)


sum_signed = _sum_bytes(tile_dot_signed)
sum_bytes = _sum_bytes(tile_dot) if narrow() else _sum_pairs


def gemm_scaled(start, sums):
    """Blocks with one scale; `start` holds the zero point (Q4_0, Q5_0, IQ4_NL, IQ4_XS, MXFP4)."""

    @native
    def gemm(W, w, d, m, xq, xd, xs, xh, nb):
        acc = tile_zero_f(W)
        for b in range(nb):
            a = sums(start(W, xs + b * 8 * SLOTS), W, w + b * 512, xq + b * 32 * SLOTS, SLOTS)
            acc = tile_scale(acc, a, rows_f32(W, d, b * 64), xd + b * 4 * SLOTS)
        return acc

    return gemm


@native
def gemm_with_min(W, w, d, m, xq, xd, xs, xh, nb):
    """Blocks with a scale and a minimum, which is added (Q4_1, Q5_1, Q4_K, Q5_K)."""
    acc = tile_zero_f(W)
    for b in range(nb):
        a = sum_bytes(tile_zero_i(W), W, w + b * 512, xq + b * 32 * SLOTS, SLOTS)
        acc = tile_scale(acc, a, rows_f32(W, d, b * 64), xd + b * 4 * SLOTS)
        acc = tile_add_floats(acc, rows_f32(W, m, b * 64), xs + b * 8 * SLOTS + 4 * SLOTS)
    return acc


@native
def gemm_two_minima(W, w, d, m, xq, xd, xs, xh, nb):
    """Blocks with a scale, and a minimum for each half, held times 1/32 (Q2_K): m holds two float32 vectors a block."""
    acc = tile_zero_f(W)
    for b in range(nb):
        h = xh + b * 8 * SLOTS
        a = sum_bytes(tile_zero_i(W), W, w + b * 512, xq + b * 32 * SLOTS, SLOTS)
        acc = tile_scale(acc, a, rows_f32(W, d, b * 64), xd + b * 4 * SLOTS)
        acc = tile_scale_words(acc, rows_f32(W, m, b * 128), h, xd + b * 4 * SLOTS)
        acc = tile_scale_words(acc, rows_f32(W, m, b * 128 + 64), h + 4 * SLOTS, xd + b * 4 * SLOTS)
    return acc


# ---- the kernel ---------------------------------------------------------------------------------------------------------


@native
def _nothing(q, s, g0, g1, acts, tile_bytes, tiles, nb, y, stride, mode, tmp, bias):
    """A format that is never unpacked."""


def _gemm_by_halves(gemm):
    """A gemm of 16 rows, 8 at a time where tiles are narrow."""

    @native
    def both(W, w, d, m, xq, xd, xs, xh, nb):
        low = gemm(NARROW_OF_8, w, d, m, xq, xd, xs, xh, nb)
        return tile_join(low, gemm(NARROW_OF_8, w + 32, d + 32, m + 32, xq, xd, xs, xh, nb))

    return both if narrow() else gemm


def _dot_by_halves(dot, narrowed):
    """A dot of bytes and f16 scales, 16 rows of each, 8 at a time."""

    @native
    def both(W, q, s, xq, xd, xs, xh, nb):
        low = dot(narrowed, q, s, xq, xd, xs, xh, nb)
        return tile_join(low, dot(narrowed, q + 32, s + 16, xq, xd, xs, xh, nb))

    return both


def _unpacked(unpack, gemm, quant_bytes, scale_bytes, bytes_already):
    """The product of groups g0..g1 with many tiles: each group becomes bytes once, or its scales alone become floats."""
    gemm = fused(_gemm_by_halves(gemm).py_func)

    @native
    def unpacked(q, s, g0, g1, acts, tile_bytes, tiles, nb, y, stride, mode, tmp, bias):
        """Groups g0..g1 times all tiles: each group becomes bytes once."""
        w0 = tmp + 2048
        size = nb * (BLOCK_BYTES + 192)
        w1 = w0 + size
        each = 2 if rows_alternate(mode) else 1
        for g in range(g0, g1, each):
            unpack(q + g * nb * quant_bytes, s + g * nb * scale_bytes, w0, w0 + nb * 512, w0 + nb * 576, nb)
            if each == 2:
                h = g + 1
                unpack(q + h * nb * quant_bytes, s + h * nb * scale_bytes, w1, w1 + nb * 512, w1 + nb * 576, nb)
            b0 = q + g * nb * quant_bytes if bytes_already else w0
            b1 = q + (g + 1) * nb * quant_bytes if bytes_already else w1
            for t in range(tiles):
                ask_part(q + (g + each) * nb * quant_bytes, each * nb * quant_bytes, t, tiles)
                for part in range(0, SLOTS, GEMM_TOKENS):
                    xq = acts + t * tile_bytes + part * 4
                    xd = xq + nb * 32 * SLOTS
                    xs = xd + nb * 4 * SLOTS
                    xh = xs + nb * 8 * SLOTS
                    out = y + (t * SLOTS + part) * stride
                    acc = biased(gemm(W_GEMM, b0, w0 + nb * 512, w0 + nb * 576, xq, xd, xs, xh, nb), bias, g)
                    if each == 2:
                        up = biased(gemm(W_GEMM, b1, w1 + nb * 512, w1 + nb * 576, xq, xd, xs, xh, nb), bias, g + 1)
                        finish_pair(acc, up, out + g * 32, stride, mode, tmp)
                    else:
                        finish(W_GEMM, acc, out + g * 64, stride, mode, tmp)

    return unpacked


def _direct(dot, quant_bytes, scale_bytes, part_tiles=False):
    """The product from the packed bits; with `part_tiles` six tokens or fewer that are left over cost less than eight."""

    @fused
    def meet(W, q, s, g, each, acts, tile_bytes, t, nb, y, stride, mode, tmp, bias):
        """Group g, or a pair of groups, times the tokens from t on."""
        slots = slots_of(W)
        h = g + 1
        xq = acts + t // slots * tile_bytes + t % slots * 4
        xd = xq + nb * 32 * slots
        xs = xd + nb * 4 * slots
        xh = xs + nb * 8 * slots
        out = y + t * stride
        acc = dot(W, q + g * nb * quant_bytes, s + g * nb * scale_bytes, xq, xd, xs, xh, nb)
        acc = biased(acc, bias, g)
        if each == 2:
            up = dot(W, q + h * nb * quant_bytes, s + h * nb * scale_bytes, xq, xd, xs, xh, nb)
            up = biased(up, bias, h)
            finish_pair(acc, up, out + g * 32, stride, mode, tmp)
        else:
            finish(W, acc, out + g * 64, stride, mode, tmp)

    @native
    def direct(W, q, s, g0, g1, acts, tile_bytes, m, nb, y, stride, mode, tmp, bias):
        """Groups g0..g1 times m tokens, from the packed bits: a group meets all its tiles while it is in the cache."""
        each = 2 if rows_alternate(mode) else 1
        whole = m - m % SLOTS if part_tiles and m % SLOTS <= 6 else m
        for g in range(g0, g1, each):
            for t in range(0, whole, count_of(W)):
                meet(W, q, s, g, each, acts, tile_bytes, t, nb, y, stride, mode, tmp, bias)
            if part_tiles and whole + 4 < m:
                meet(W6_OF_8, q, s, g, each, acts, tile_bytes, whole, nb, y, stride, mode, tmp, bias)
            elif part_tiles and whole < m:
                meet(W4_OF_8, q, s, g, each, acts, tile_bytes, whole, nb, y, stride, mode, tmp, bias)

    return direct


def make_matmul(dot, unpack, gemm, quant_bytes, scale_bytes, bytes_already=False, straight_tokens=STRAIGHT_TOKENS):
    """The matmul kernel of a format.

    dot(W, q, s, xq, xd, xs, xh, nb) -> tile: 16 rows, straight from packed quants q and scales s
    unpack(q, s, w, d, m, nb): the same group as bytes w and vectors d, m
    gemm(W, w, d, m, xq, xd, xs, xh, nb) -> tile: from those
    quant_bytes, scale_bytes: bytes of 16 rows x 32 values in the two streams (a format with blocks of 256 divides)
    bytes_already: the packed quants are the bytes w, and serve any number of tokens; unpack makes d alone, which pays where
        tiles are narrow.
    straight_tokens: up to so many read the packed bits with AVX-512
    """
    if bytes_already and not narrow():
        straight_tokens = ALWAYS
    elif not WIDE:
        straight_tokens = STRAIGHT_TOKENS
    direct = _direct(dot, quant_bytes, scale_bytes)
    direct4 = direct
    direct8 = _direct(fused(dot.py_func), quant_bytes, scale_bytes, part_tiles=GEMM_TOKENS == SLOTS)
    if bytes_already and narrow():
        direct4 = _direct(_dot_by_halves(dot, NARROW), quant_bytes, scale_bytes)
        direct8 = _direct(_dot_by_halves(dot, NARROW_OF_8), quant_bytes, scale_bytes)
    if straight_tokens == ALWAYS:
        unpacked = _nothing
    else:
        unpacked = _unpacked(unpack, gemm, quant_bytes, scale_bytes, bytes_already)

    def matmul(step, state, ith, nth):
        m = field(state, STATE_N_OUT) if field(step, ROWS) != 0 else field(state, STATE_N)
        q = field(step, QUANTS)
        s = field(step, SCALES)
        nb = field(step, COLS) // 32
        y = field(step, Y)
        stride = field(step, Y_STRIDE)
        mode = field(step, MODE)
        memory = thread_memory(state, ith)
        tmp = memory + field(step, TMP)
        acts = field(step, ACTS)
        if field(step, PRIVATE) != 0:
            acts += memory
        pairs = 2 if rows_alternate(mode) else 1
        groups = field(step, GROUPS) // pairs
        g0 = share_start(groups, ith, nth) * pairs
        g1 = share_start(groups, ith + 1, nth) * pairs
        tile_bytes = field(step, TILE_BYTES)
        bias = field(step, BIAS)
        if m == 1:
            direct(W1, q, s, g0, g1, acts, tile_bytes, m, nb, y, stride, mode, tmp, bias)
        elif m == 2:
            direct(W2, q, s, g0, g1, acts, tile_bytes, m, nb, y, stride, mode, tmp, bias)
        elif m > 0 and m <= 4:
            direct4(W4, q, s, g0, g1, acts, tile_bytes, m, nb, y, stride, mode, tmp, bias)
        elif m > 0 and m <= straight_tokens:
            direct8(W_GEMM, q, s, g0, g1, acts, tile_bytes, m, nb, y, stride, mode, tmp, bias)
        elif m > 0:
            tiles = (m + SLOTS - 1) // SLOTS
            unpacked(q, s, g0, g1, acts, tile_bytes, tiles, nb, y, stride, mode, tmp, bias)

    return matmul


gemm_4bit = gemm_scaled(tile_start_centred, sum_bytes)  # zero point 8
gemm_5bit = gemm_scaled(tile_start2_centred, sum_bytes)  # zero point 16
gemm_signed = gemm_scaled(tile_start_signed, sum_signed)
