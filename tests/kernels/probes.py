"""Kernels for tests only: one operation of the SIMD vocabulary each, on arrays. `python -m tests.kernels.probes FOLDER ISA`.

A probe's step holds four words: source address, target address, number of vectors of 16, and a second source. That of a set of
cores: the set's address, the target's, the number of words, the core.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from edgeinfer.runtime.isa import ISAS, machine_arch
from edgeinfer.runtime.library import object_path

__all__ = ["NAMES", "main"]

NAMES = ("probe.exp", "probe.silu", "probe.gelu", "probe.to_half", "probe.from_half", "probe.half_scalar", "probe.bf16",
         "probe.sums", "probe.top", "probe.round", "probe.power", "probe.power_scalar", "probe.without_core")  # fmt: skip


def main(folder: Path, isa_name: str) -> int:
    """Compile the probes for an instruction set into a folder."""
    from edgeinfer.runtime.compiler import compile_kernel
    from edgeinfer.runtime.vec import set_target

    isa = next(i for i in ISAS if i.name == isa_name and i.arch == machine_arch())
    set_target(isa)
    from edgeinfer.runtime import memory, simd
    from edgeinfer.runtime.memory import field, put_field, store_float

    def over_floats(operation: Any) -> Any:
        load, store = simd.load_f32, simd.store_f32

        def probe(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
            for i in range(field(step, 2)):
                store(field(step, 1), i * 64, operation(load(field(step, 0), i * 64)))

        return probe

    def over_scalars(operation: Any) -> Any:
        load = simd.load_f32

        def probe(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
            for i in range(field(step, 2)):
                store_float(field(step, 1), i * 4, operation(load(field(step, 0), i * 64)))

        return probe

    load_f32, store_f32, load_f16, store_f16 = simd.load_f32, simd.store_f32, simd.load_f16, simd.store_f16
    narrow, widen, load_bf16, load_half = simd.to_f16, simd.to_f32, simd.load_bf16, memory.load_half

    def to_half(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        for i in range(field(step, 2)):
            store_f16(field(step, 1), i * 32, narrow(load_f32(field(step, 0), i * 64)))

    def from_half(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        for i in range(field(step, 2)):
            store_f32(field(step, 1), i * 64, widen(load_f16(field(step, 0), i * 32)))

    def half_scalar(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        for i in range(field(step, 2) * 16):
            store_float(field(step, 1), i * 4, load_half(field(step, 0), i * 2))

    def bf16(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        for i in range(field(step, 2)):
            store_f32(field(step, 1), i * 64, load_bf16(field(step, 0), i * 32))

    load_i8, from_u8, power, load_power = simd.load_i8, simd.from_u8, simd.power_of_two, memory.load_power

    def powers(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        for i in range(field(step, 2)):
            store_f32(field(step, 1), i * 64, power(from_u8(load_i8(field(step, 0), i * 16))))

    def powers_scalar(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        for i in range(field(step, 2) * 16):
            store_float(field(step, 1), i * 4, load_power(field(step, 0), i))

    from edgeinfer.runtime.threads_native import without_core

    def without(step, _state, _ith, _nth):  # type: ignore[no-untyped-def]
        put_field(field(step, 1), 0, 1 if without_core(field(step, 0), field(step, 2), field(step, 3)) else 0)

    functions = (over_floats(simd.exp_f), over_floats(simd.silu_f), over_floats(simd.gelu_f), to_half, from_half,
                 half_scalar, bf16, over_scalars(simd.sum_f), over_scalars(simd.top_f), over_floats(simd.round_f),
                 powers, powers_scalar, without)  # fmt: skip
    for name, function in zip(NAMES, functions, strict=True):
        code = compile_kernel(name, function, isa)
        object_path(folder, name).write_bytes(hashlib.sha256(code).hexdigest().encode() + b"\n" + code)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
