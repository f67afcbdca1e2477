"""SIMD values as Numba values: one Numba type per LLVM vector, and two makers of operations on them.

Vectors always hold 16 lanes; LLVM splits them into the registers that the instruction set has. So a kernel is written
once, and only the operations in `simd.py` that need a special instruction look at the instruction set.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel
from numba.core.datamodel.models import OpaqueModel
from numba.core.extending import intrinsic, register_model
from numba.core.imputils import lower_constant
from numba.extending import typeof_impl

from .isa import ISA, choose

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
ELEMENTS = {"i8": I8, "i16": I16, "i32": I32, "f16": F16, "f32": F32}
ADDRESS = types.intp

# Every function that kernels call: it is never called from Python, so Numba's wrappers for that would be waste.
native = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
# The same for what an inner loop calls: LLVM would leave the larger of them as functions, and a call in the loop stores and
# loads every accumulator (5 to 8 % of prefill).
inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", forceinline=True)

_target: list[ISA] = []


def set_target(isa: ISA) -> None:
    """Choose the instruction set that every operation emitted from now on is for."""
    _target[:] = [isa]


def target() -> ISA:
    """The instruction set that code is being emitted for."""
    if not _target:
        _target.append(choose())
    return _target[0]


class Vec(types.Type):
    """The Numba type of a vector of n elements."""

    def __init__(self, element: str, n: int = 16):
        self.element, self.n = element, n
        super().__init__(name=f"vec<{n}x{element}>")

    @property
    def ll(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(ELEMENTS[self.element], self.n)


class Tile(types.Type):
    """The Numba type of T vectors held as one value: the accumulators of T tokens.

    based: integers held with BASE of `tile.py` added, so that their bits are a float.
    """

    def __init__(self, count: int, vec: Vec, based: bool = False):
        self.count, self.vec, self.based = count, vec, based
        super().__init__(name=f"tile<{count}x{vec.name}{', based' if based else ''}>")

    @property
    def ll(self) -> ir.ArrayType:
        """The LLVM type."""
        return ir.ArrayType(self.vec.ll, self.count)


@register_model(Vec)
@register_model(Tile)
class VecModel(PrimitiveModel):
    """A vector or tile is its LLVM value."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.ll)


class Width:
    """A compile-time constant carried by type: T tokens computed together, of tiles that hold `slots` tokens.

    rows: how many of a group's 16 rows are computed together.
    """

    def __init__(self, count: int, slots: int, rows: int = 16):
        self.count, self.slots, self.rows = count, slots, rows


class WidthType(types.Type):
    """The Numba type of a Width; the numbers live in the type."""

    def __init__(self, count: int, slots: int, rows: int):
        self.count, self.slots, self.rows = count, slots, rows
        super().__init__(name=f"width<{count}of{slots}, {rows} rows>")


register_model(WidthType)(OpaqueModel)


@typeof_impl.register(Width)
def _typeof_width(value, _context):
    return WidthType(value.count, value.slots, value.rows)


@lower_constant(WidthType)
def _constant_width(context, _builder, _type, _value):
    return context.get_dummy_value()


def op(result, arguments, emit):
    """An operation of fixed types: emit(builder, *llvm values) -> llvm value."""
    return generic_op(len(arguments), lambda *_: (result, arguments, emit))


def generic_op(count, rule):
    """An operation whose types follow from its arguments': rule(*types) -> (result, [argument types], emit) or None."""
    names = ",".join(f"a{i}" for i in range(count))

    def implement(_context, *argument_types):
        found = rule(*argument_types)
        if found is None:
            return None
        result, wanted, emit = found
        return result(*wanted), lambda _ctx, builder, _sig, values: emit(builder, *values)

    # Intrinsics must have real positional parameters, so the wrapper is made from text.
    space = {"implement": implement}
    exec(
        f"def wrapper(context{',' + names if names else ''}): return implement(context{',' + names if names else ''})",
        space,
    )
    return intrinsic(space["wrapper"])


# ---- LLVM fragments that simd.py and memory.py build from ------------------------------------------------------------


def const(ll, value):
    """A vector with the same constant in every lane."""
    return ir.Constant(ll, [value] * ll.count)


def splat(b, scalar, n=16):
    """A vector with `scalar` in every lane."""
    ll = ir.VectorType(scalar.type, n)
    empty = ir.Constant(ll, ir.Undefined)
    first = b.insert_element(empty, scalar, I32(0))
    return b.shuffle_vector(first, empty, ir.Constant(ir.VectorType(I32, n), [0] * n))


def part(b, vector, start, n):
    """Lanes start .. start+n of a vector."""
    lanes = ir.Constant(ir.VectorType(I32, n), list(range(start, start + n)))
    return b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)


def join(b, parts):
    """One vector from equal parts (a power of two of them)."""
    while len(parts) > 1:
        n = parts[0].type.count * 2
        lanes = ir.Constant(ir.VectorType(I32, n), list(range(n)))
        parts = [b.shuffle_vector(parts[i], parts[i + 1], lanes) for i in range(0, len(parts), 2)]
    return parts[0]


def declare(b, name, result, arguments):
    """The declaration of an LLVM intrinsic or C function in the module under construction."""
    return cgutils.get_or_insert_function(b.module, ir.FunctionType(result, arguments), name)


def pointer(b, address, offset, ll):
    """A typed pointer to address + offset bytes."""
    if isinstance(offset, int):
        offset = I64(offset)
    return b.inttoptr(b.add(address, offset), ll.as_pointer())


def load_scalar(b, address, offset, ll):
    """Load a scalar of any alignment."""
    return b.load(pointer(b, address, offset, ll), align=1)


def pack(b, tile, values):
    """A tile from its vectors."""
    result = ir.Constant(tile.ll, ir.Undefined)
    for i, value in enumerate(values):
        result = b.insert_value(result, value, i)
    return result


def unpack(b, tile):
    """The vectors of a tile."""
    return [b.extract_value(tile, i) for i in range(tile.type.count)]
