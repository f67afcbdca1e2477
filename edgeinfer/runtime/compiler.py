"""Machine code of kernels, for this CPU or another: Python function -> Numba -> relocatable object file.

Runs in a child process (`kernels/compile.py`), so that the process which runs the model never pays for importing
Numba. Numba's ahead-of-time code generator is used with a target machine of our own, because the just-in-time one
always compiles for the host; this is Numba's private interface, hence the pinned range.
"""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, compiler, compiler_lock, registry

from .isa import ISA
from .library import symbol_of
from .vec import set_target

__all__ = ["compile_kernel"]

SIGNATURE = (types.int64, types.int64, types.int64, types.int64)


class _Library(codegen.AOTCodeLibrary):
    """A library whose functions are only ever linked into a kernel, never called from Python: they have no address."""

    def get_pointer_to_function(self, _name):
        return 0


class _Codegen(codegen.AOTCPUCodegen):
    """Numba's ahead-of-time code generator with the target machine of a given instruction set."""

    _library_class = _Library

    def __init__(self, isa: ISA):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._isa = isa
        super().__init__("edgeinfer", isa.cpu)

    def _init(self, _module):
        triple = llvm.Target.from_triple(self._isa.triple)
        self._tm_features = self._isa.features
        self._tm = triple.create_target_machine(
            cpu=self._isa.cpu, features=self._isa.features, opt=3, reloc="pic", codemodel="default"
        )
        self._engine = type("NoEngine", (), {"set_object_cache": lambda *_: None})()
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)
        self._loopvect = False
        self._opt_level = 3

    def set_env(self, _name, _environment):
        """Globals of functions that Python could call; there are none."""

    def _create_empty_module(self, name):
        module = ir.Module(cgutils.normalize_ir_text(name))
        module.triple = self._isa.triple
        if self._data_layout:
            module.data_layout = self._data_layout
        return module


def _context(isa: ISA):
    """Numba's CPU target, generating code for `isa` from now on: kernels and all that they call. One set per process."""
    target = registry.cpu_target
    current = target.target_context._internal_codegen
    if not isinstance(current, _Codegen):
        set_target(isa)
        target.target_context.refresh()
        target.target_context._internal_codegen = _Codegen(isa)
    elif current._isa != isa:
        raise RuntimeError(f"this process compiles for {current._isa.name}, not for {isa.name}")
    return target


@compiler_lock.global_compiler_lock
def compile_kernel(name, function, isa: ISA, assembly: bool = False):
    """Compile kernel(step, state, ith, nth) and return its object file's bytes, or its assembly text."""
    target = _context(isa)
    generator = target.target_context._internal_codegen
    library = generator.create_library("kernel")
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.nrt = True
    flags.error_model = "numpy"  # no division-by-zero exceptions
    result = compiler.compile_extra(
        target.typing_context, target.target_context, function, SIGNATURE, types.void, flags, locals={}, library=library
    )
    library.finalize()
    module = library._final_module
    # One symbol per object: helpers of different kernels may carry one name, and the loader would take the first.
    symbol = result.fndesc.llvm_func_name
    for item in module.functions:
        if not item.is_declaration and item.name != symbol:
            item.linkage = "internal"
    module.get_function(symbol).name = symbol_of(name)
    if assembly:
        return generator._tm.emit_assembly(module)
    return generator._tm.emit_object(module)
