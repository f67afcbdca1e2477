"""Tiles: T vectors as one value, so that one source serves one token and eight.

A Width(T, slots) says how many tokens are computed together and how many the activation layout interleaves. Broadcast
loads read token t of quad v at address + v*4*slots + t*4.
"""

from __future__ import annotations

from numba import types

from .simd import FX, IX, biased, emit_dot, emit_fma, f32x16, i32x16
from .vec import ADDRESS, F32, I32, I64, Tile, Width, const, generic_op, load_scalar, pack, pointer, splat, unpack

W1, W2, W3, W4, W8 = Width(1, 1), Width(2, 8), Width(3, 8), Width(4, 8), Width(8, 8)


def _tile(width, vec):
    return Tile(width.count, vec)


count_of = generic_op(1, lambda w: (types.int64, [w], lambda b, _: I64(w.count)))
slots_of = generic_op(1, lambda w: (types.int64, [w], lambda b, _: I64(w.slots)))


def _zero(vec, ll, zero):
    def rule(w):
        t = _tile(w, vec)
        return t, [w], lambda b, _: pack(b, t, [const(ll, zero)] * w.count)

    return generic_op(1, rule)


tile_zero_f, tile_zero_i = _zero(f32x16, FX, 0.0), _zero(i32x16, IX, 0)


def _start(change):
    """Accumulators that start at change(builder, an int32 per token), broadcast: a zero point for free."""

    def rule(w, _address):
        t = _tile(w, i32x16)

        def emit(b, _, a):
            words = [load_scalar(b, a, 4 * i, I32) for i in range(w.count)]
            return pack(b, t, [splat(b, change(b, x)) for x in words])

        return t, [w, ADDRESS], emit

    return generic_op(2, rule)


tile_start = _start(lambda b, x: x)
tile_start2 = _start(lambda b, x: b.shl(x, I32(1)))
tile_start_eighth = _start(lambda b, x: b.ashr(x, I32(3)))  # exact: sums are held times -8 or -32
# Of signed products: -128 x the sum from -8 x the sum, where the weights carry 128 too much.
tile_start_signed = _start(lambda b, x: b.shl(x, I32(4)) if biased() else I32(0))


def _dot(signed):
    def rule(acc, w, _address):
        def emit(b, x, v, a):
            words = [splat(b, load_scalar(b, a, 4 * i, I32)) for i in range(acc.count)]
            return pack(b, acc, [emit_dot(b, p, v, s, signed) for p, s in zip(unpack(b, x), words, strict=True)])

        return acc, [acc, w, ADDRESS], emit

    return generic_op(3, rule)


tile_dot, tile_dot_signed = _dot(False), _dot(True)


def _scale_rule(acc, ints, scale, _address):
    def emit(b, x, i, d, a):
        out = []
        for t, (p, q) in enumerate(zip(unpack(b, x), unpack(b, i), strict=True)):
            step = b.fmul(d, splat(b, load_scalar(b, a, 4 * t, F32)))
            out.append(emit_fma(b, b.sitofp(q, FX), step, p))
        return pack(b, acc, out)

    return acc, [acc, ints, scale, ADDRESS], emit


tile_scale = generic_op(4, _scale_rule)  # acc[t] += float(ints[t]) * (scale * token scale[t])


def _weighted_rule(acc, other, s):
    return (
        acc,
        [acc, other, s],
        lambda b, x, y, v: pack(
            b, acc, [b.add(p, b.mul(q, v)) for p, q in zip(unpack(b, x), unpack(b, y), strict=True)]
        ),
    )


def _times_rule(x, s):
    return x, [x, s], lambda b, v, k: pack(b, x, [b.mul(p, k) for p in unpack(b, v)])


tile_times_i = generic_op(2, _times_rule)  # ints[t] * s
tile_add_times_i = generic_op(3, _weighted_rule)  # acc[t] + ints[t] * s


def _fma_rule(acc, v, _address, _stride):
    def emit(b, x, vec, a, stride):
        words = [splat(b, load_scalar(b, a, b.mul(stride, I64(t)), F32)) for t in range(acc.count)]
        return pack(b, acc, [emit_fma(b, vec, s, p) for p, s in zip(unpack(b, x), words, strict=True)])

    return acc, [acc, v, ADDRESS, ADDRESS], emit


tile_fma = generic_op(4, _fma_rule)  # acc[t] += v * (f32 at address + t*stride)


def _store_rule(x, _address, _stride):
    def emit(b, v, a, stride):
        for t, value in enumerate(unpack(b, v)):
            b.store(value, pointer(b, a, b.mul(stride, I64(t)), x.vec.ll), align=1)
        return I32(0)

    return types.int32, [x, ADDRESS, ADDRESS], emit


def _load_rule(w, _address, _stride):
    t = _tile(w, f32x16)

    def emit(b, _, a, stride):
        return pack(b, t, [b.load(pointer(b, a, b.mul(stride, I64(i)), FX), align=1) for i in range(w.count)])

    return t, [w, ADDRESS, ADDRESS], emit


tile_store, tile_load = generic_op(3, _store_rule), generic_op(3, _load_rule)
tile_add = generic_op(
    2,
    lambda x, y: (
        x,
        [x, y],
        lambda b, p, q: pack(b, x, [b.fadd(i, j) for i, j in zip(unpack(b, p), unpack(b, q), strict=True)]),
    ),
)


tile_add_vec = generic_op(
    2,
    lambda x, v: (x, [x, v], lambda b, p, w: pack(b, x, [b.fadd(i, w) for i in unpack(b, p)])),
)  # acc[t] + v


def _add_scaled_rule(acc, x, s):
    return (
        acc,
        [acc, x, s],
        lambda b, p, q, v: pack(
            b, acc, [emit_fma(b, j, v, i) for i, j in zip(unpack(b, p), unpack(b, q), strict=True)]
        ),
    )


tile_add_scaled = generic_op(3, _add_scaled_rule)  # acc[t] + x[t] * s
