"""The process's one pool of standing threads: a call borrows n of them, runs a program on them and gives them back.

A worker is a Python thread that lives in one native call (the interpreter lock released) and parks in the kernel when
there is no work. Two lanes may hold teams at the same time; no worker is ever in two teams.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, SettingError
from .arena import aligned
from .layout import JOB_THREAD, JOB_WORDS, RECORD_MASK, RECORD_SLOTS
from .library import KernelLibrary

__all__ = ["MAX_THREADS", "Team", "ThreadPool"]

MAX_THREADS = 64
KERNELS = ("runtime.run", "runtime.work", "runtime.stop")


class Team:
    """Threads borrowed from the pool for one call at a time: the caller itself and up to `most` - 1 workers."""

    def __init__(self, pool: ThreadPool, most: int):
        self._pool = pool
        self._record = aligned(RECORD_SLOTS + most)
        self._address = int(self._record.ctypes.data)

    def run(self, program: int, n_steps: int, state: int, n: int) -> None:
        """Run a program on n threads; returns when every thread has finished. Workers are borrowed for the call."""
        slots = self._pool.take(n - 1) if n > 1 else ()
        try:
            self._record[:RECORD_MASK] = program, n_steps, state
            self._record[RECORD_SLOTS : RECORD_SLOTS + n - 1] = slots
            self._pool.run(self._address, n)
        finally:
            if n > 1:
                self._pool.give(slots)


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
        self._barriers: dict[int, list[NDArray[np.int64]]] = {}
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

    def team(self, most: int) -> Team:
        """A team of up to `most` threads, the caller included. Raises SettingError when that is out of range."""
        if not 1 <= most <= MAX_THREADS:
            raise SettingError(f"threads must be between 1 and {MAX_THREADS}, not {most}")
        return Team(self, most)

    def take(self, n: int) -> list[int]:
        """The slots of n workers, started if there are not so many: the last ones given back, whose caches are warm."""
        with self._lock:
            while len(self._free) < n:
                slot = len(self._threads) + 1
                if slot > MAX_THREADS:
                    raise SettingError(f"all {MAX_THREADS} threads of the pool are borrowed")
                thread = threading.Thread(target=self._live, args=(slot,), name=f"edgeinfer-{slot}", daemon=True)
                self._threads[slot] = thread
                self._free.insert(0, slot)
                thread.start()
            taken = self._free[len(self._free) - n :]
            del self._free[len(self._free) - n :]
            return taken

    def give(self, slots: Sequence[int]) -> None:
        """Give workers back."""
        with self._lock:
            self._free.extend(slots)

    def take_barrier(self, n: int) -> NDArray[np.int64]:
        """Memory of a barrier for n threads: a counter, then a cache line for each. It lives as long as the process.

        A thread may still be leaving a barrier when the caller has returned, so the memory is never freed; it may be
        used again as it is, because its counters only grow.
        """
        with self._lock:
            free = self._barriers.setdefault(n, [])
            return free.pop() if free else aligned(8 * (1 + n))

    def give_barrier(self, n: int, memory: NDArray[np.int64]) -> None:
        """Give a barrier's memory back for use by another team of n."""
        with self._lock:
            self._barriers[n].append(memory)

    def _live(self, slot: int) -> None:
        self._jobs[slot * JOB_WORDS + JOB_THREAD] = threading.get_native_id()
        self._work_native(self._address + slot * JOB_WORDS * 8, 0, 0, 0)

    def run(self, record: int, n: int) -> None:
        """Run the record's program as thread 0 of n."""
        if self._pid != os.getpid():
            raise EngineError("this process was forked from one with a loaded model; load the model again here")
        self._run_native(self._address, record, 0, n)
