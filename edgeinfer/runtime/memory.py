"""Scalars, fields of records, atomics and the calls into the C library, as Numba operations on raw addresses."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .simd import emit_power, emit_to_f32
from .vec import ADDRESS, F16, F32, F64, I8, I16, I32, I64, declare, load_scalar, op, pointer, splat, target


def _loader(result, ll, widen=None):
    def emit(b, a, o):
        value = load_scalar(b, a, o, ll)
        return widen(b, value) if widen else value

    return op(result, [ADDRESS, ADDRESS], emit)


def _storer(kind, ll, narrow=None):
    def emit(b, a, o, v):
        b.store(narrow(b, v) if narrow else v, pointer(b, a, o, ll), align=1)
        return I32(0)

    return op(types.int32, [ADDRESS, ADDRESS, kind], emit)


load_u8 = _loader(types.int64, I8, lambda b, v: b.zext(v, I64))
load_s8 = _loader(types.int64, I8, lambda b, v: b.sext(v, I64))
load_u16 = _loader(types.int64, I16, lambda b, v: b.zext(v, I64))
load_u32 = _loader(types.int64, I32, lambda b, v: b.zext(v, I64))
load_s32 = _loader(types.int32, I32)
load_s64 = _loader(types.int64, I64)
load_float = _loader(types.float32, F32)
store_u8 = _storer(types.int64, I8, lambda b, v: b.trunc(v, I8))
store_u16 = _storer(types.int64, I16, lambda b, v: b.trunc(v, I16))
store_s32 = _storer(types.int32, I32)
store_s64 = _storer(types.int64, I64)
store_float = _storer(types.float32, F32)


def _half(b, a, o):
    vector = splat(b, load_scalar(b, a, o, F16))
    return b.extract_element(emit_to_f32(b, vector), I32(0))


load_half = op(types.float32, [ADDRESS, ADDRESS], _half)
# 2^(byte - 128)
load_power = op(types.float32, [ADDRESS, ADDRESS], lambda b, a, o: emit_power(b, b.zext(load_scalar(b, a, o, I8), I32)))


def _prefetch(b, a, o):
    f = declare(b, "llvm.prefetch.p0i8", ir.VoidType(), [ir.PointerType(I8), I32, I32, I32])
    b.call(f, (pointer(b, a, o, I8), I32(0), I32(2), I32(1)))
    return I32(0)


prefetch = op(types.int32, [ADDRESS, ADDRESS], _prefetch)  # asks for a cache line into L2; any address will do

# Fields of a step or state record are 8-byte words.
field = op(types.int64, [ADDRESS, ADDRESS], lambda b, a, i: b.load(pointer(b, a, b.mul(i, I64(8)), I64), align=8))
field_f = op(
    types.float32,
    [ADDRESS, ADDRESS],
    lambda b, a, i: b.fptrunc(b.load(pointer(b, a, b.mul(i, I64(8)), F64), align=8), F32),
)


def _put(b, a, i, v):
    b.store(v, pointer(b, a, b.mul(i, I64(8)), I64), align=8)
    return I32(0)


put_field = op(types.int32, [ADDRESS, ADDRESS, types.int64], _put)

atomic_add = op(
    types.int64, [ADDRESS, types.int64], lambda b, a, v: b.atomic_rmw("add", pointer(b, a, 0, I64), v, "seq_cst")
)
atomic_swap = op(
    types.int64, [ADDRESS, types.int64], lambda b, a, v: b.atomic_rmw("xchg", pointer(b, a, 0, I64), v, "seq_cst")
)
atomic_load = op(types.int64, [ADDRESS], lambda b, a: b.load_atomic(pointer(b, a, 0, I64), "acquire", 8))


def _atomic_store(b, a, v):
    b.store_atomic(v, pointer(b, a, 0, I64), "release", 8)
    return I32(0)


atomic_store = op(types.int32, [ADDRESS, types.int64], _atomic_store)


def _pause(b):
    if target().arch == "x86_64":
        b.call(declare(b, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
    else:
        b.call(declare(b, "llvm.aarch64.hint", ir.VoidType(), [I32]), [I32(1)])
    return I32(0)


pause = op(types.int32, [], _pause)
sched_yield = op(types.int32, [], lambda b: b.call(declare(b, "sched_yield", I32, []), []))

# System calls' numbers.
_FUTEX = {"x86_64": 202, "aarch64": 98}
_SET_AFFINITY = {"x86_64": 203, "aarch64": 122}
_GET_AFFINITY = {"x86_64": 204, "aarch64": 123}
_GET_CPU = {"x86_64": 309, "aarch64": 168}


def _system_call(numbers):
    def emit(b, *arguments):
        f = declare_variadic(b, "syscall", I64, [I64])
        rest = [I64(0)] * (6 - len(arguments))
        return b.call(f, [I64(numbers[target().arch]), *arguments, *rest])

    return emit


def _futex(b, address, operation, value):
    return b.trunc(_system_call(_FUTEX)(b, address, b.sext(operation, I64), value), I32)


get_affinity = op(types.int64, [types.int64] * 3, _system_call(_GET_AFFINITY))  # thread, bytes, address: bytes written
set_affinity = op(types.int64, [types.int64] * 3, _system_call(_SET_AFFINITY))  # thread, bytes, address: 0
get_cpu = op(types.int64, [ADDRESS], _system_call(_GET_CPU))  # this thread's core, as int32 at an address: 0


_CLOCK_MONOTONIC = 1


def _clock(b, address):
    b.call(declare(b, "clock_gettime", I32, [I32, I64]), [I32(_CLOCK_MONOTONIC), address])
    return I32(0)


clock_gettime = op(types.int32, [ADDRESS], _clock)  # the time, as seconds and nanoseconds, into 16 bytes


def declare_variadic(b, name, result, arguments):
    """The declaration of a variadic C function."""
    kind = ir.FunctionType(result, arguments, var_arg=True)
    found = b.module.globals.get(name)
    return found if found is not None else ir.Function(b.module, kind, name)


_futex_call = op(types.int32, [ADDRESS, types.int32, types.int64], _futex)
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
futex = _futex_call

KERNEL = ir.FunctionType(I32, [I8.as_pointer().as_pointer()] * 2 + [I64] * 4)  # Numba's own calling convention


def _call_kernel(b, function, step, state, ith, nth):
    # Once per function, in its entry block: an alloca inside a loop would grow the stack.
    result = cgutils.alloca_once(b, I8.as_pointer())
    error = cgutils.alloca_once(b, I8.as_pointer())
    return b.call(b.inttoptr(function, KERNEL.as_pointer()), [result, error, step, state, ith, nth])


call_kernel = op(types.int32, [ADDRESS] * 5, _call_kernel)  # function(step, state, ith, nth)
