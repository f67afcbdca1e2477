"""Tiles: T vectors as one value, so that one source serves one token and eight.

A Width(T, slots) says how many tokens are computed together and how many the activation layout interleaves. Broadcast
loads read token t of quad v at address + v*4*slots + t*4.

NARROW is the tile of several tokens for CPUs with 32 registers of 16 bytes (ARM): 8 of a group's 16 rows by 4 tokens, so
that integer and float accumulators fit. There a conversion to float costs as much as two products, so integer sums are
held with BASE added: their bits are the float BASE + sum, and taking BASE away is exact while a sum is below 2^22.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from .simd import FX, biased, emit_dot, emit_dot_avx2, emit_fma, emit_to_f32, f32x16, signed_sides
from .vec import (
    ADDRESS,
    ELEMENTS,
    F32,
    I32,
    I64,
    Tile,
    Vec,
    Width,
    const,
    generic_op,
    join,
    load_scalar,
    pack,
    pointer,
    splat,
    target,
    unpack,
)  # fmt: skip

W1, W2, W3, W4, W8 = Width(1, 1), Width(2, 2), Width(3, 4), Width(4, 4), Width(8, 8)
W2_OF_8, W4_OF_8, W6_OF_8 = Width(2, 8), Width(4, 8), Width(6, 8)
NARROW, NARROW_OF_8 = Width(4, 4, rows=8), Width(4, 8, rows=8)
BASE = 0x4B400000  # the bits of 3 x 2^22, in whose neighbourhood floats are one apart


def narrow() -> bool:
    """Whether tiles of several tokens take 8 rows at a time."""
    return target().dot == "sdot"


def _rows(width, element):
    return Vec(element, width.rows)


def _same(_b, x):
    return x


def _to_float(b, x):
    return b.sitofp(x, ir.VectorType(F32, x.type.count))


def _token_splats(b, address, count, element, n, change=_same):
    """change(builder, vector) of `count` vectors of n lanes, each of which repeats one of `count` scalars side by side.

    ARM's products take one of four lanes of a register, so one load serves four tokens there.
    """
    if not (narrow() and count in (2, 4)):
        return [change(b, splat(b, load_scalar(b, address, 4 * i, element), n)) for i in range(count)]
    words = change(b, b.load(pointer(b, address, 0, ir.VectorType(element, count)), align=1))
    lanes = [ir.Constant(ir.VectorType(I32, n), [i] * n) for i in range(count)]
    return [b.shuffle_vector(words, ir.Constant(words.type, ir.Undefined), lane) for lane in lanes]


def _load_rows(element, result, change=_same):
    """Load one value for each row that w computes: change(builder, vector)."""

    def rule(w, _address, _offset):
        ll = ir.VectorType(ELEMENTS[element], w.rows)
        emit = lambda b, _, a, o: change(b, b.load(pointer(b, a, o, ll), align=1))  # noqa: E731
        return _rows(w, result), [w, ADDRESS, ADDRESS], emit

    return generic_op(3, rule)


rows_i32, rows_f32 = _load_rows("i32", "i32"), _load_rows("f32", "f32")
rows_f16 = _load_rows("f16", "f32", emit_to_f32)  # widened


count_of = generic_op(1, lambda w: (types.int64, [w], lambda b, _: I64(w.count)))
slots_of = generic_op(1, lambda w: (types.int64, [w], lambda b, _: I64(w.slots)))


def _zero_f(w):
    t = Tile(w.count, _rows(w, "f32"))
    return t, [w], lambda b, _: pack(b, t, [const(t.vec.ll, 0.0)] * w.count)


def _zero_i(w):
    based = w.rows < 16
    t = Tile(w.count, _rows(w, "i32"), based)
    return t, [w], lambda b, _: pack(b, t, _bases(b, t) if based else [const(t.vec.ll, 0)] * w.count)


def _bases(b, t):
    """Vectors of BASE, loaded: the vector units are busy with products, the load units are not.

    The address is hidden from the optimizer, which would else copy one register into all of them.
    """
    n = t.count * t.vec.n
    name = f"edgeinfer_bases_{n}"
    if name not in b.module.globals:
        table = ir.GlobalVariable(b.module, ir.ArrayType(I32, n), name)
        table.initializer = ir.Constant(table.value_type, [BASE] * n)
        table.linkage, table.global_constant, table.align = "internal", True, 64
    address = b.ptrtoint(b.module.globals[name], I64)
    address = b.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [address], side_effect=True)
    return [b.load(pointer(b, address, i * 4 * t.vec.n, t.vec.ll), align=16) for i in range(t.count)]


tile_zero_f, tile_zero_i = generic_op(1, _zero_f), generic_op(1, _zero_i)


def _start(change, zero=lambda: False):
    """Accumulators that start at change(builder, an int32 per token), broadcast: a zero point for free.

    Where zero(), they start at zero.
    """

    def rule(w, _address):
        if zero():
            t, arguments, emit_zero = _zero_i(w)
            return t, [*arguments, ADDRESS], lambda b, x, _: emit_zero(b, x)
        t = Tile(w.count, _rows(w, "i32"))

        def emit(b, _, a):
            words = [load_scalar(b, a, 4 * i, I32) for i in range(w.count)]
            return pack(b, t, [splat(b, change(b, x), w.rows) for x in words])

        return t, [w, ADDRESS], emit

    return generic_op(2, rule)


tile_start = _start(lambda b, x: x)
tile_start2 = _start(lambda b, x: b.shl(x, I32(1)))
tile_start_eighth = _start(lambda b, x: b.ashr(x, I32(3)))  # exact: sums are held times -8 or -32
# For weights that `centred` has been at, which takes the zero point off them where the product allows.
tile_start_centred = _start(lambda b, x: x, signed_sides)
tile_start2_centred = _start(lambda b, x: b.shl(x, I32(1)), signed_sides)
# Of signed products: -128 x the sum from -8 x the sum, where the weights carry 128 too much.
tile_start_signed = _start(lambda b, x: b.shl(x, I32(4)), lambda: not biased())


def _in_turn(b, sums):
    """The same sums, held so that the optimizer computes all tokens' before any token's next one.

    It would else line up a token's products, of which each waits for the one before: prefill 2 % slower with AVX-512. Fewer
    tokens wait for memory more than for each other.
    """
    if target().dot != "vpdpbusd512" or len(sums) < 6:
        return sums
    kinds = [x.type for x in sums]
    places = ",".join(["=v"] * len(sums) + [str(i) for i in range(len(sums))])
    held = b.asm(ir.FunctionType(ir.LiteralStructType(kinds), kinds), "", places, sums, side_effect=True)
    return [b.extract_value(held, i) for i in range(len(sums))]


def _dot(signed):
    def rule(acc, w, _address):
        def emit(b, x, v, a):
            words = _token_splats(b, a, acc.count, I32, acc.vec.n)
            sums = [emit_dot(b, p, v, s, signed) for p, s in zip(unpack(b, x), words, strict=True)]
            return pack(b, acc, _in_turn(b, sums))

        return acc, [acc, w, ADDRESS], emit

    return generic_op(3, rule)


tile_dot, tile_dot_signed = _dot(False), _dot(True)


def _dot_pair_rule(acc, w0, _x0, w1, _x1):
    def emit(b, x, v0, a0, v1, a1):
        first, second = (_token_splats(b, a, acc.count, I32, acc.vec.n) for a in (a0, a1))
        sums = unpack(b, x)
        if target().dot == "pmaddubsw":
            tokens = zip(first, second, strict=True)
            return pack(b, acc, [emit_dot_avx2(b, p, (v0, v1), s) for p, s in zip(sums, tokens, strict=True)])
        for v, words in ((v0, first), (v1, second)):  # all tokens of a product, as by tile_dot
            sums = [emit_dot(b, p, v, s, False) for p, s in zip(sums, words, strict=True)]
        return pack(b, acc, _in_turn(b, sums))

    return acc, [acc, w0, ADDRESS, w1, ADDRESS], emit


tile_dot_pair = generic_op(5, _dot_pair_rule)  # two products with weights 0 .. 63, in fewer instructions on AVX2


def _numbers(b, ints, kind):
    """The floats of a tile's integers, taking BASE away where it was added."""
    if kind.based:
        return [b.fsub(b.bitcast(q, _floats_of(q)), const(_floats_of(q), float(3 << 22))) for q in unpack(b, ints)]
    return [_to_float(b, q) for q in unpack(b, ints)]


def _floats_of(x):
    return ir.VectorType(F32, x.type.count)


def _scale_rule(acc, ints, scale, _address):
    def emit(b, x, i, d, a):
        scales = _token_splats(b, a, acc.count, F32, acc.vec.n)
        steps = zip(unpack(b, x), _numbers(b, i, ints), scales, strict=True)
        return pack(b, acc, [emit_fma(b, number, b.fmul(d, s), p) for p, number, s in steps])

    return acc, [acc, ints, scale, ADDRESS], emit


tile_scale = generic_op(4, _scale_rule)  # acc[t] += float(ints[t]) * (scale * token scale[t])


def _times_f_rule(ints, scale):
    t = Tile(ints.count, Vec("f32", ints.vec.n))
    return t, [ints, scale], lambda b, i, d: pack(b, t, [b.fmul(number, d) for number in _numbers(b, i, ints)])


def _add_ints_rule(acc, ints, scale):
    def emit(b, x, i, d):
        steps = zip(unpack(b, x), _numbers(b, i, ints), strict=True)
        return pack(b, acc, [emit_fma(b, number, d, p) for p, number in steps])

    return acc, [acc, ints, scale], emit


def _by_token_rule(acc, x, _address):
    def emit(b, p, y, a):
        scales = _token_splats(b, a, acc.count, F32, acc.vec.n)
        steps = zip(unpack(b, p), unpack(b, y), scales, strict=True)
        return pack(b, acc, [emit_fma(b, number, s, total) for total, number, s in steps])

    return acc, [acc, x, ADDRESS], emit


tile_times_f = generic_op(2, _times_f_rule)  # float(ints[t]) * scale
tile_add_ints = generic_op(3, _add_ints_rule)  # acc[t] + float(ints[t]) * scale
tile_add_by_token = generic_op(3, _by_token_rule)  # acc[t] + x[t] * token scale[t]


def _scale_words_rule(acc, scale, _words, _address):
    def emit(b, x, m, words, a):
        out = []
        scales = _token_splats(b, a, acc.count, F32, acc.vec.n)
        numbers = _token_splats(b, words, acc.count, I32, acc.vec.n, _to_float)
        for p, number, s in zip(unpack(b, x), numbers, scales, strict=True):
            out.append(emit_fma(b, number, b.fmul(m, s), p))
        return pack(b, acc, out)

    return acc, [acc, scale, ADDRESS, ADDRESS], emit


tile_scale_words = generic_op(4, _scale_words_rule)  # acc[t] += float(int32 word[t]) * (scale * token scale[t])


def _floats_rule(acc, scale, _address):
    def emit(b, x, m, a):
        numbers = _token_splats(b, a, acc.count, F32, acc.vec.n)
        return pack(b, acc, [emit_fma(b, m, s, p) for p, s in zip(unpack(b, x), numbers, strict=True)])

    return acc, [acc, scale, ADDRESS], emit


tile_add_floats = generic_op(3, _floats_rule)  # acc[t] += scale * token float[t]


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
    t = Tile(w.count, f32x16)

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


def _norm_rule(x, _address, w):
    def emit(b, v, a, weight):
        factors = [splat(b, load_scalar(b, a, 4 * i, F32)) for i in range(x.count)]
        return pack(b, x, [b.fmul(b.fmul(p, r), weight) for p, r in zip(unpack(b, v), factors, strict=True)])

    return x, [x, ADDRESS, w], emit


tile_norm = generic_op(3, _norm_rule)  # (x[t] * (f32 at address + 4 t)) * w


def _add_scaled_rule(acc, x, s):
    return (
        acc,
        [acc, x, s],
        lambda b, p, q, v: pack(
            b, acc, [emit_fma(b, j, v, i) for i, j in zip(unpack(b, p), unpack(b, q), strict=True)]
        ),
    )


tile_add_scaled = generic_op(3, _add_scaled_rule)  # acc[t] + x[t] * s


def _join_rule(low, high):
    t = Tile(low.count, Vec(low.vec.element, 2 * low.vec.n))
    return (
        t,
        [low, high],
        lambda b, p, q: pack(b, t, [join(b, [i, j]) for i, j in zip(unpack(b, p), unpack(b, q), strict=True)]),
    )


tile_join = generic_op(2, _join_rule)  # the rows of both
