"""Compiled kernels on disk: found, compiled when missing (in child processes, in parallel), loaded and called by address.

The folder is named by a digest of all kernel and runtime sources, the instruction set and the versions of Numba, llvmlite
and Python: whatever changes the machine code changes the folder. A damaged file is compiled anew.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import EngineError
from ..settings import child_environment
from .isa import ISA

__all__ = ["KernelLibrary", "object_path", "symbol_of"]

Progress = Callable[[str], None]
_PACKAGE = Path(__file__).resolve().parent.parent
# What the machine code is made of; the two formats bring tables.
_SOURCES = (
    "runtime/*.py",
    "kernels/*.py",
    "plan/fields.py",
    "plan/packing.py",
    "formats/iq4_nl.py",
    "formats/mxfp4.py",
)
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4)


def object_path(folder: Path, name: str) -> Path:
    """The file of a kernel's machine code."""
    return folder / f"{name}.kernel"


def symbol_of(name: str) -> str:
    """The symbol of a kernel in its object file."""
    return "edgeinfer_" + name.replace(".", "_")


def _digest(isa: ISA) -> str:
    """What the machine code depends on, as 16 hex digits."""
    h = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(_PACKAGE.glob(pattern)):
            h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    versions = [importlib.metadata.version(p) for p in ("numba", "llvmlite")]
    facts = (repr(isa), *versions, sys.version.split()[0])
    h.update("\0".join(facts).encode())
    return h.hexdigest()[:16]


class KernelLibrary:
    """The kernels of one instruction set, as addresses in this process."""

    def __init__(self, isa: ISA, cache: Path):
        self.isa = isa
        self.folder = cache / "kernels" / f"{isa.name}-{_digest(isa)}"
        self._spare: Path | None = None  # stands in for a folder that cannot be written
        self.compiled = 0
        self._addresses: dict[str, int] = {}
        self._engine: Any = None
        self._lock = threading.Lock()

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the named kernels that have no machine code on disk yet."""
        return [n for n in dict.fromkeys(names) if n not in self._addresses and not self._path(n).exists()]

    def _path(self, name: str) -> Path:
        """Where a kernel's file is, or would be written."""
        path = object_path(self.folder, name)
        return path if self._spare is None or path.exists() else object_path(self._spare, name)

    def _target(self, progress: Progress | None) -> Path:
        """The folder to compile into: a private temporary one, said so once, when the cache cannot be written."""
        if self._spare is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(dir=self.folder):
                    return self.folder
            except OSError as error:
                self._spare = Path(tempfile.mkdtemp(prefix="edgeinfer-kernels-"))
                atexit.register(shutil.rmtree, self._spare, True)
                if progress:
                    reason = error.strerror or error
                    progress(f"kernels cannot be kept in {self.folder} ({reason}): they are compiled at every start")
        return self._spare

    def ensure(self, names: Sequence[str], progress: Progress | None = None, workers: int = 0) -> None:
        """Compile what is missing, in child processes. Raises EngineError with the compiler's last line."""
        todo = self.missing(names)
        if not todo:
            return
        target = self._target(progress)
        workers = max(1, min(workers or len(os.sched_getaffinity(0)), len(todo)))
        done = 0
        lock = threading.Lock()
        failures: list[str] = []

        def watch(child: subprocess.Popen[str]) -> None:
            nonlocal done
            noise: list[str] = []
            reader = threading.Thread(target=lambda: noise.extend(child.stderr or ()), daemon=True)
            reader.start()
            for _line in child.stdout or ():
                with lock:
                    done += 1
                    if progress:
                        progress(f"compiling kernels for this CPU ({self.isa.name}), once: {done}/{len(todo)}")
            reader.join()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
            if child.wait() != 0:
                failures.append(
                    next((x for x in reversed([n.strip() for n in noise]) if x), f"exit {child.returncode}")
                )

        if progress:
            progress(f"compiling kernels for this CPU ({self.isa.name}), once: 0/{len(todo)}")
        # NUMBA_* of the user must not change what is compiled; the package may be a checkout that is not installed. `-m` looks
        # into the current folder before all others, where something else of our name may lie.
        environment = child_environment(drop="NUMBA_", first_on_path=_PACKAGE.parent)
        command = [
            sys.executable,
            "-m",
            "edgeinfer.kernels.compile",
            str(target.absolute()),
            self.isa.label,
        ]
        children: list[subprocess.Popen[str]] = []
        try:
            for i in range(workers):
                child = subprocess.Popen(
                    [*command, *todo[i::workers]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=environment, stdin=subprocess.DEVNULL, cwd=_PACKAGE.parent,
                )  # fmt: skip
                children.append(child)
            watchers = [threading.Thread(target=watch, args=(c,), daemon=True) for c in children]
            for w in watchers:
                w.start()
            for w in watchers:
                w.join()
        except OSError as error:
            raise EngineError(f"could not start a process to compile kernels: {error}") from error
        finally:
            for child in children:  # Ctrl-C: no child is left behind
                if child.poll() is None:
                    child.kill()
                    child.wait()
        if failures:
            raise EngineError(f"compiling kernels for {self.isa.name} failed: {failures[0]}")
        self.compiled += len(todo)

    def addresses(self, names: Sequence[str], progress: Progress | None = None) -> dict[str, int]:
        """The addresses of the named kernels, compiled and loaded when they are not yet."""
        with self._lock:
            self.ensure(names, progress)
            new = [n for n in dict.fromkeys(names) if n not in self._addresses]
            if new:
                self._load(self._codes(new, progress))
            return {n: self._addresses[n] for n in names}

    def function(self, name: str) -> Callable[[int, int, int, int], None]:
        """A kernel as a Python function of four integers; the interpreter lock is released while it runs."""
        call = KERNEL(self.addresses([name])[name])
        scratch = ctypes.create_string_buffer(16)
        first, second = ctypes.addressof(scratch), ctypes.addressof(scratch) + 8

        def run(step: int, state: int, ith: int, nth: int, _keep: object = scratch) -> None:
            call(first, second, step, state, ith, nth)

        return run

    def _codes(self, names: Sequence[str], progress: Progress | None) -> dict[str, bytes]:
        """The object files of kernels; what is damaged is compiled anew, once."""
        codes = {name: self._read(name) for name in names}
        damaged = [name for name, code in codes.items() if not code]
        if damaged:
            for name in damaged:
                try:
                    self._path(name).unlink(missing_ok=True)
                except OSError as error:
                    raise EngineError(
                        f"the kernel file {self._path(name)} is damaged and cannot be removed: {error}"
                    ) from error
            self.ensure(damaged, progress)
            codes.update({name: self._read(name) for name in damaged})
        for name, code in codes.items():
            if not code:
                raise EngineError(f"the kernel file {self._path(name)} is damaged again as soon as it is written")
        return codes

    def _read(self, name: str) -> bytes:
        """A kernel's object file, empty when it is damaged."""
        try:
            checksum, _, code = self._path(name).read_bytes().partition(b"\n")
        except OSError:
            return b""
        return code if hashlib.sha256(code).hexdigest().encode() == checksum else b""

    def _load(self, codes: dict[str, bytes]) -> None:
        import llvmlite.binding as llvm

        if self._engine is None:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="default")
            # use_lmm: code and data side by side; in a process with much mapped they may else lie too far apart to link
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
        for code in codes.values():
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        for name in codes:
            self._addresses[name] = self._engine.get_function_address(symbol_of(name))
