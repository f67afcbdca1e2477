"""Operations on 16-lane vectors. Everything is generic LLVM but the product of bytes, which each instruction set does its way.

No fast-math flag is used anywhere: sums have one fixed order, and a NaN stays a NaN until the check for it.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import types

from .vec import (
    ADDRESS,
    F32,
    I1,
    I8,
    I16,
    I32,
    I64,
    Vec,
    const,
    declare,
    join,
    load_scalar,
    native,
    op,
    part,
    pointer,
    splat,
    target,
)  # fmt: skip

f32x16, i32x16, f16x16, i8x16 = Vec("f32"), Vec("i32"), Vec("f16"), Vec("i8")
FX, IX, HX, BX = f32x16.ll, i32x16.ll, f16x16.ll, i8x16.ll


def _load(vec):
    return op(vec, [ADDRESS, ADDRESS], lambda b, a, o: b.load(pointer(b, a, o, vec.ll), align=1))


def _store(vec):
    def emit(b, a, o, v):
        b.store(v, pointer(b, a, o, vec.ll), align=1)
        return I32(0)

    return op(types.int32, [ADDRESS, ADDRESS, vec], emit)


load_f32, load_i32, load_f16, load_i8 = _load(f32x16), _load(i32x16), _load(f16x16), _load(i8x16)
store_f32, store_i32, store_f16, store_i8 = _store(f32x16), _store(i32x16), _store(f16x16), _store(i8x16)


def _store_quads(b, a, o, stride, v):
    words = b.bitcast(v, ir.VectorType(I32, 4))
    for i in range(4):
        b.store(b.extract_element(words, I32(i)), pointer(b, a, b.add(o, b.mul(stride, I64(i))), I32), align=1)
    return I32(0)


store_quads = op(types.int32, [ADDRESS, ADDRESS, ADDRESS, i8x16], _store_quads)  # four bytes each, `stride` apart

zero_f = op(f32x16, [], lambda b: const(FX, 0.0))
zero_i = op(i32x16, [], lambda b: const(IX, 0))
splat_f = op(f32x16, [types.float32], splat)
splat_i = op(i32x16, [types.int32], splat)
load_splat_f = op(f32x16, [ADDRESS, ADDRESS], lambda b, a, o: splat(b, load_scalar(b, a, o, F32)))


def emit_fma(b, x, y, z):
    """x*y + z, rounded once where the CPU can, else twice."""
    if target().fma:
        return b.call(declare(b, f"llvm.fma.v{x.type.count}f32", x.type, [x.type] * 3), (x, y, z))
    return b.fadd(b.fmul(x, y), z)


fma = op(f32x16, [f32x16] * 3, emit_fma)
add_f = op(f32x16, [f32x16] * 2, lambda b, x, y: b.fadd(x, y))
sub_f = op(f32x16, [f32x16] * 2, lambda b, x, y: b.fsub(x, y))
mul_f = op(f32x16, [f32x16] * 2, lambda b, x, y: b.fmul(x, y))
div_f = op(f32x16, [f32x16] * 2, lambda b, x, y: b.fdiv(x, y))
max_f = op(f32x16, [f32x16] * 2, lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))  # x NaN gives y
min_f = op(f32x16, [f32x16] * 2, lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))  # x NaN gives y
round_f = op(f32x16, [f32x16], lambda b, x: b.call(declare(b, "llvm.roundeven.v16f32", FX, [FX]), (x,)))
sqrt_f = op(f32x16, [f32x16], lambda b, x: b.call(declare(b, "llvm.sqrt.v16f32", FX, [FX]), (x,)))
add_i = op(i32x16, [i32x16] * 2, lambda b, x, y: b.add(x, y))
mul_i = op(i32x16, [i32x16] * 2, lambda b, x, y: b.mul(x, y))
or_i = op(i32x16, [i32x16] * 2, lambda b, x, y: b.or_(x, y))
to_float = op(f32x16, [i32x16], lambda b, x: b.sitofp(x, FX))
to_int = op(i32x16, [f32x16], lambda b, x: b.fptosi(x, IX))


def emit_to_bytes(b, x):
    """The lowest byte of each lane."""
    return b.trunc(x, BX)


to_bytes = op(i8x16, [i32x16], emit_to_bytes)
from_u8 = op(i32x16, [i8x16], lambda b, x: b.zext(x, IX))
from_i8 = op(i32x16, [i8x16], lambda b, x: b.sext(x, IX))


def bits(shift, mask, left=0):
    """An operation that takes a field of every byte: ((x >> shift) & mask) << left; the mask is repeated in each byte."""
    word = mask * 0x01010101

    def emit(b, x):
        x = b.lshr(x, const(IX, shift)) if shift else x
        x = b.and_(x, const(IX, word))
        return b.shl(x, const(IX, left)) if left else x

    return op(i32x16, [i32x16], emit)


low_nibble, high_nibble = bits(0, 15), bits(4, 15)


def emit_to_f32(b, h):
    """f16 to f32, exact: without hardware, the exponent is moved by a multiplication, which keeps subnormals right."""
    if target().f16c:
        return b.fpext(h, ir.VectorType(F32, h.type.count))
    w = b.zext(b.bitcast(h, ir.VectorType(I16, 16)), IX)
    magnitude = b.shl(b.and_(w, const(IX, 0x7FFF)), const(IX, 13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, FX), const(FX, 2.0**112)), IX)
    special = b.icmp_signed(">=", magnitude, const(IX, 0x0F800000))  # infinity or NaN
    scaled = b.select(special, b.or_(magnitude, const(IX, 0x7F800000)), scaled)
    return b.bitcast(b.or_(scaled, b.shl(b.and_(w, const(IX, 0x8000)), const(IX, 16))), FX)


def emit_to_f16(b, x):
    """f32 to f16, to nearest even; values beyond the largest f16 become infinity."""
    if target().f16c:
        return b.fptrunc(x, HX)
    w = b.bitcast(x, IX)
    sign = b.lshr(b.and_(w, const(IX, -0x80000000)), const(IX, 16))
    a = b.and_(w, const(IX, 0x7FFFFFFF))
    odd = b.and_(b.lshr(a, const(IX, 13)), const(IX, 1))
    normal = b.lshr(b.add(b.add(a, const(IX, 0x0FFF - 0x38000000)), odd), const(IX, 13))
    # Adding 0.5 shifts a subnormal's bits to the bottom of the word and rounds them on the way.
    half = b.fadd(b.bitcast(a, FX), const(FX, 0.5))
    subnormal = b.sub(b.bitcast(half, IX), const(IX, 0x3F000000))
    result = b.select(b.icmp_signed("<", a, const(IX, 0x38800000)), subnormal, normal)
    infinite = b.select(b.icmp_signed(">", a, const(IX, 0x7F800000)), const(IX, 0x7E00), const(IX, 0x7C00))
    result = b.select(b.icmp_signed(">=", a, const(IX, 0x477FF000)), infinite, result)
    return b.bitcast(b.trunc(b.or_(result, sign), ir.VectorType(I16, 16)), HX)


to_f32 = op(f32x16, [f16x16], emit_to_f32)
to_f16 = op(f16x16, [f32x16], emit_to_f16)


def _bf16(b, a, o):
    half = b.load(pointer(b, a, o, ir.VectorType(I16, 16)), align=1)
    return b.bitcast(b.shl(b.zext(half, IX), const(IX, 16)), FX)


load_bf16 = op(f32x16, [ADDRESS, ADDRESS], _bf16)


def emit_power(b, e):
    """2^(e - 128) as float32, e an integer 0 .. 255 (or a vector of them): the two least powers are subnormal."""
    word = e.type
    constant = (lambda v: const(word, v)) if isinstance(word, ir.VectorType) else word
    normal = b.shl(b.sub(e, constant(1)), constant(23))
    bits = b.select(b.icmp_signed("<", e, constant(2)), b.shl(constant(0x00200000), e), normal)
    return b.bitcast(bits, FX if isinstance(word, ir.VectorType) else F32)


power_of_two = op(f32x16, [i32x16], emit_power)  # 2^(x - 128)


def _fold(combine):
    """Reduce 16 lanes by halves: one fixed order on every machine."""

    def emit(b, x):
        n = 8
        while n:
            x = combine(b, part(b, x, 0, n), part(b, x, n, n))
            n //= 2
        return b.extract_element(x, I32(0))

    return emit


sum_f = op(types.float32, [f32x16], _fold(lambda b, x, y: b.fadd(x, y)))
top_f = op(types.float32, [f32x16], _fold(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y)))


def _top_magnitude(b, x, y):
    larger = lambda b, p, q: b.select(b.icmp_signed(">", p, q), p, q)  # noqa: E731
    x, y = (b.and_(b.bitcast(v, IX), const(IX, 0x7FFFFFFF)) for v in (x, y))
    return b.bitcast(_fold(larger)(b, larger(b, x, y)), F32)


# The largest magnitude in two vectors; infinity or NaN where a value is: as integers, none of them is unordered.
top_magnitude = op(types.float32, [f32x16] * 2, _top_magnitude)

# Adding 3 x 2^22 rounds a small number to a whole one, ties to even, which then stands in the float's lower bits. 16 times
# the upper bits are taken off a sum of 16; what lies 16 bits to the left of them is lost.
ROUNDER, ROUNDER_BITS = 12582912.0, 0x4B400000


def _sum_pair(b, x, y):
    total = _fold(lambda b, p, q: b.add(p, q))(b, b.add(x, b.shl(y, const(IX, 16))))
    return b.sub(total, I32(16 * ROUNDER_BITS & 0xFFFFFFFF))


round_product = op(i32x16, [f32x16] * 2, lambda b, x, y: b.bitcast(emit_fma(b, x, y, const(FX, ROUNDER)), IX))
sum_pair = op(types.int32, [i32x16] * 2, _sum_pair)  # of two such vectors: the sums of both, each below 2^15 in size
first_of_pair = op(types.int32, [types.int32], lambda b, x: b.ashr(b.shl(x, I32(16)), I32(16)))
second_of_pair = op(types.int32, [types.int32], lambda b, x: b.ashr(b.add(x, I32(0x8000)), I32(16)))


# ---- products of bytes: acc[lane] += sum of 4 products ----------------------------------------------------------------
#
# `dot` takes 0 .. 127 times signed bytes. `dot_signed` takes signed bytes times signed bytes; where the instruction wants
# one side unsigned, that side is stored with 128 added to each byte, and the sum starts at -128 times the other side's sum.


def biased():
    """Whether signed weights are stored with 128 added."""
    return target().dot.startswith("vpdpbusd")


def signed_sides():
    """Whether `dot`, too, takes signed bytes on both sides, so that a zero point can be taken from the weights before."""
    return target().dot == "sdot"


def _bytes(b, x):
    return b.bitcast(x, ir.VectorType(I8, x.type.count * 4))


def _dot_512(b, acc, u, s, _signed):
    byte = ir.VectorType(I8, 64)
    f = declare(b, "llvm.x86.avx512.vpdpbusd.512", IX, [IX, byte, byte])
    return b.call(f, (acc, _bytes(b, u), _bytes(b, s)))


def _dot_256(b, acc, u, s, _signed):
    half, byte = ir.VectorType(I32, 8), ir.VectorType(I8, 32)
    f = declare(b, "llvm.x86.avx512.vpdpbusd.256", half, [half, byte, byte])
    cut = [[part(b, v, i, 8) for v in (acc, u, s)] for i in (0, 8)]
    return join(b, [b.call(f, (a, _bytes(b, x), _bytes(b, y))) for a, x, y in cut])


def emit_dot_avx2(b, acc, us, ss, signed=False):
    """A product with u of 0 .. 127, or two of 0 .. 63, whose sums of 16 bits are added before they are widened.

    2 x 127 x 128 and 2 x 2 x 63 x 128 stay below 2^15. Signed: a sign of the weight goes over to the other side.
    """
    byte, word, half = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    multiply = declare(b, "llvm.x86.avx2.pmadd.ub.sw", word, [byte, byte])
    widen = declare(b, "llvm.x86.avx2.pmadd.wd", half, [word, word])
    sign = declare(b, "llvm.x86.avx2.psign.b", byte, [byte, byte])
    size = declare(b, "llvm.abs.v32i8", byte, [byte, I1])

    def one(x, y):
        x, y = _bytes(b, x), _bytes(b, y)
        if signed:
            x, y = b.call(size, (x, I1(0))), b.call(sign, (y, x))
        return b.call(multiply, (x, y))

    parts = []
    for i in (0, 8):
        products = [one(part(b, u, i, 8), part(b, s, i, 8)) for u, s in zip(us, ss, strict=True)]
        total = functools.reduce(b.add, products)
        parts.append(b.add(part(b, acc, i, 8), b.call(widen, (total, const(word, 1)))))
    return join(b, parts)


def _dot_avx2(b, acc, u, s, signed):
    return emit_dot_avx2(b, acc, (u,), (s,), signed)


def _dot_neon(b, acc, u, s, _signed):
    quad, byte = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
    f = declare(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", quad, [quad, byte, byte])
    cut = [[part(b, v, i, 4) for v in (acc, u, s)] for i in range(0, acc.type.count, 4)]
    return join(b, [b.call(f, (a, _bytes(b, x), _bytes(b, y))) for a, x, y in cut])


def _dot_plain(b, acc, u, s, _signed):
    for k in range(4):
        x, y = (b.ashr(b.shl(v, const(IX, 24 - 8 * k)), const(IX, 24)) for v in (u, s))
        acc = b.add(acc, b.mul(x, y))
    return acc


_DOTS = {
    "vpdpbusd512": _dot_512, "vpdpbusd256": _dot_256, "pmaddubsw": _dot_avx2, "sdot": _dot_neon, "plain": _dot_plain,
}  # fmt: skip


def emit_dot(b, acc, u, s, signed):
    """Four products per lane added to acc, exactly; u is 0 .. 127, or `signed` as above."""
    return _DOTS[target().dot](b, acc, u, s, signed)


def centred(zero):
    """An operation that takes the zero point from bytes 0 .. 127 where the product wants signed bytes on both sides."""

    def emit(b, x):
        if zero == 0 or not signed_sides():
            return x
        bytes_ = _bytes(b, x)
        return b.bitcast(b.sub(bytes_, const(bytes_.type, zero)), IX)

    return op(i32x16, [i32x16], emit)


signed_form = op(types.int32, [types.int32], lambda b, x: b.xor(x, I32(-0x7F7F7F80)) if biased() else x)  # of 4 bytes


# ---- tables of 16 bytes -----------------------------------------------------------------------------------------------

# The byte shuffle, by the width of the set's registers in bytes.
_SHUFFLES = {
    64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.ssse3.pshuf.b.128",
}  # fmt: skip
_SHUFFLE_BYTES = {"vpdpbusd512": 64, "vpdpbusd256": 32, "pmaddubsw": 32}


def lookup(table):
    """An operation that replaces each byte 0 .. 15 by the table's signed byte, in the form that `dot_signed` takes."""

    def emit(b, x):
        n = _SHUFFLE_BYTES.get(target().dot, 16)
        byte = ir.VectorType(I8, n)
        values = ir.Constant(byte, [(v + 128 if biased() else v) & 255 for v in table] * (n // 16))
        arm = target().arch == "aarch64"
        f = declare(b, "llvm.aarch64.neon.tbl1.v16i8" if arm else _SHUFFLES[n], byte, [byte, byte])
        parts = [b.call(f, (values, _bytes(b, part(b, x, i, n // 4)))) for i in range(0, 16, n // 4)]
        return join(b, [b.bitcast(p, ir.VectorType(I32, n // 4)) for p in parts])

    return op(i32x16, [i32x16], emit)


# ---- functions ------------------------------------------------------------------------------------------------------


def _scale_by_power(b, p, r):
    n = b.shl(b.fptosi(r, IX), const(IX, 23))
    return b.bitcast(b.add(b.bitcast(p, IX), n), FX)


_scale2 = op(f32x16, [f32x16] * 2, _scale_by_power)
_flush = op(f32x16, [f32x16] * 2, lambda b, x, y: b.select(b.fcmp_ordered("<", x, const(FX, -87.0)), const(FX, 0.0), y))
_clamp = op(f32x16, [f32x16], lambda b, x: _clamped(b, x))


def _clamped(b, x):
    x = b.select(b.fcmp_ordered("<", x, const(FX, -87.0)), const(FX, -87.0), x)
    return b.select(b.fcmp_ordered(">", x, const(FX, 88.0)), const(FX, 88.0), x)


@native
def exp_f(x):
    """e^x within 2e-7 relative by Cody-Waite reduction and a polynomial of degree 6; exactly 1 at 0, exactly 0 below -87."""
    c = _clamp(x)
    r = round_f(mul_f(c, splat_f(1.4426950408889634)))
    f = fma(r, splat_f(-0.693359375), c)
    f = fma(r, splat_f(2.12194440e-4), f)
    p = splat_f(1.9875691500e-4)
    p = fma(p, f, splat_f(1.3981999507e-3))
    p = fma(p, f, splat_f(8.3334519073e-3))
    p = fma(p, f, splat_f(4.1665795894e-2))
    p = fma(p, f, splat_f(1.6666665459e-1))
    p = fma(p, f, splat_f(5.0000001201e-1))
    p = fma(mul_f(p, f), f, add_f(f, splat_f(1.0)))
    return _flush(x, _scale2(p, r))


@native
def silu_f(x):
    """x / (1 + e^-x)."""
    return div_f(x, add_f(splat_f(1.0), exp_f(sub_f(zero_f(), x))))


@native
def gelu_f(x):
    """The tanh form of GELU: x / (1 + e^(-2 z)) with z = sqrt(2/pi) (x + 0.044715 x^3)."""
    cube = mul_f(mul_f(x, x), x)
    z = mul_f(splat_f(0.7978845608028654), fma(cube, splat_f(0.044715), x))
    return div_f(x, add_f(splat_f(1.0), exp_f(mul_f(splat_f(-2.0), z))))
