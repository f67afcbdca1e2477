"""The process's one pool of standing threads: borrow n of them, run a program on them, give them back.

A worker is a Python thread that lives in one native call (the interpreter lock released) and parks in the kernel when
there is no work. Two lanes may hold teams at the same time; no worker is ever in two teams.
"""

from __future__ import annotations

import os
import threading
from typing import ClassVar

from ..errors import EngineError, SettingError
from .arena import aligned
from .layout import JOB_WORDS, RECORD_SLOTS
from .library import KernelLibrary

__all__ = ["MAX_THREADS", "Team", "ThreadPool"]

MAX_THREADS = 64
KERNELS = ("runtime.run", "runtime.work", "runtime.stop")


class Team:
    """n threads borrowed from the pool: the caller itself and n-1 workers."""

    def __init__(self, pool: ThreadPool, slots: list[int]):
        self.n = 1 + len(slots)
        self._pool = pool
        self._slots = slots
        self._record = aligned(RECORD_SLOTS + len(slots))
        self._record[RECORD_SLOTS:] = slots

    def run(self, program: int, n_steps: int, state: int, n: int = 0) -> None:
        """Run a program on the first n threads of the team (0: all); returns when every thread has finished."""
        self._record[:RECORD_SLOTS] = program, n_steps, state
        self._pool._run(int(self._record.ctypes.data), n or self.n)

    def release(self) -> None:
        """Give the workers back."""
        self._pool._release(self._slots)
        self._slots = []
        self.n = 1


class ThreadPool:
    """Standing workers, started when first borrowed. One per process; `ThreadPool.shared(library)` finds it."""

    _instances: ClassVar[dict[int, ThreadPool]] = {}
    _guard = threading.Lock()

    def __init__(self, library: KernelLibrary):
        self._library = library  # keeps the code that the workers run
        self._run_native = library.function("runtime.run")
        self._work_native = library.function("runtime.work")
        self._stop_native = library.function("runtime.stop")
        self._jobs = aligned((MAX_THREADS + 1) * JOB_WORDS)
        self._address = int(self._jobs.ctypes.data)
        self._free: list[int] = []
        self._threads: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def shared(cls, library: KernelLibrary) -> ThreadPool:
        """The process's pool for a kernel library (one set of compiled kernels is one pool)."""
        with cls._guard:
            pool = cls._instances.get(id(library))
            if pool is None or pool._pid != os.getpid():
                pool = cls._instances[id(library)] = cls(library)
            return pool

    def borrow(self, n: int) -> Team:
        """A team of n threads, the caller included. Raises SettingError when n is out of range."""
        if not 1 <= n <= MAX_THREADS:
            raise SettingError(f"threads must be between 1 and {MAX_THREADS}, not {n}")
        with self._lock:
            while len(self._free) < n - 1:
                slot = len(self._threads) + 1
                if slot > MAX_THREADS:
                    raise SettingError(f"all {MAX_THREADS} threads of the pool are borrowed")
                name = f"edgeinfer-{slot}"
                thread = threading.Thread(target=self._live, args=(slot,), name=name, daemon=True)
                self._threads[slot] = thread
                self._free.append(slot)
                thread.start()
            slots = [self._free.pop() for _ in range(n - 1)]
        return Team(self, slots)

    def _live(self, slot: int) -> None:
        self._work_native(self._address + slot * JOB_WORDS * 8, 0, 0, 0)

    def _release(self, slots: list[int]) -> None:
        with self._lock:
            self._free.extend(slots)

    def _run(self, record: int, n: int) -> None:
        if self._pid != os.getpid():
            raise EngineError("this process was forked from one with a loaded model; load the model again here")
        self._run_native(self._address, record, 0, n)
