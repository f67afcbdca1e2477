"""What the machine can do at most, measured: a loop that only reads, a loop that only multiplies bytes, and a clock.

They run as steps of a program, on the same threads and in the same kind of memory as the kernels that are held against
them. None of them is part of a model's program, so none has a twin.
"""

from __future__ import annotations

from numba import types

from ..runtime.layout import METER_COUNT, METER_OUT, METER_PRODUCTS, METER_START
from ..runtime.memory import clock_gettime, field
from ..runtime.simd import add_i, emit_dot, i32x16, load_i32, splat_i, store_i32, zero_i
from ..runtime.vec import native, op, target
from .layout import share_start

CHUNK = 1024  # bytes of a round of the read loop
# Accumulators of the product loop: as many as stay in registers, enough to hide the latency of the instruction.
PRODUCTS = METER_PRODUCTS[target().dot]
# With u the same for all of them where the accumulator is an operand of the instruction; elsewhere equal products would
# be formed once.
ONE_OPERAND = target().dot not in ("pmaddubsw", "plain")

_dot = op(i32x16, [i32x16] * 3, lambda b, acc, u, s: emit_dot(b, acc, u, s, False))


@native
def _sum4(a, b, c, d):
    return add_i(add_i(a, b), add_i(c, d))


def read(step, state, ith, nth):
    """Read this thread's share of COUNT x 1024 bytes at START; the sum of all words, at OUT, keeps the loads alive."""
    chunks = field(step, METER_COUNT)
    at = field(step, METER_START) + share_start(chunks, ith, nth) * CHUNK
    end = field(step, METER_START) + share_start(chunks, ith + 1, nth) * CHUNK
    s0, s1, s2, s3 = zero_i(), zero_i(), zero_i(), zero_i()
    while at < end:
        for i in range(0, CHUNK, 256):
            s0 = add_i(s0, load_i32(at, i))
            s1 = add_i(s1, load_i32(at, i + 64))
            s2 = add_i(s2, load_i32(at, i + 128))
            s3 = add_i(s3, load_i32(at, i + 192))
        at += CHUNK
    store_i32(field(step, METER_OUT), ith * 64, _sum4(s0, s1, s2, s3))


def _multiplier(count, shared):
    """acc[k] += u . x, COUNT times for each of `count` accumulators; x changes from round to round, so that no compiler
    can take a product out of the loop."""
    names = [f"a{k}" for k in range(count)]
    lines = ["def multiply(step, state, ith, nth):"]
    lines += ["    at = field(step, METER_START)", "    x = load_i32(at, 0)", "    one = splat_i(types_int32(1))"]
    lines += [f"    {name} = load_i32(at, {64 * k})" for k, name in enumerate(names)]
    lines += [f"    u{k} = load_i32(at, {64 * (count + (0 if shared else k))})" for k in range(count)]
    lines += ["    for _ in range(field(step, METER_COUNT)):", "        x = add_i(x, one)"]
    lines += [f"        {name} = dot({name}, u{k}, x)" for k, name in enumerate(names)]
    lines += ["    total = zero_i()", *(f"    total = add_i(total, {name})" for name in names)]
    lines += ["    store_i32(field(step, METER_OUT), ith * 64, total)"]
    space = {
        "field": field, "load_i32": load_i32, "splat_i": splat_i, "add_i": add_i, "zero_i": zero_i, "dot": _dot,
        "store_i32": store_i32, "METER_START": METER_START, "METER_COUNT": METER_COUNT, "METER_OUT": METER_OUT,
        "types_int32": types.int32,
    }  # fmt: skip
    exec("\n".join(lines), space)  # one variable for each accumulator: a list would live in memory
    made = space["multiply"]
    made.__doc__ = _multiplier.__doc__
    return made


multiply = _multiplier(PRODUCTS, ONE_OPERAND)


def clock(step, state, ith, nth):
    """The time, as seconds and nanoseconds, into 16 bytes at OUT."""
    if ith == 0:
        clock_gettime(field(step, METER_OUT))


KERNELS = {"meter.read": read, "meter.multiply": multiply, "meter.clock": clock}
