"""A measuring loop (`kernels/meter.py`) on a team of the process's threads, timed.

It runs as one step of a program, in the same way as a model's steps: what is measured is what a step could reach.
"""

from __future__ import annotations

import time

import numpy as np

from ..runtime.arena import aligned
from ..runtime.layout import (
    METER_COUNT,
    METER_OUT,
    METER_START,
    NEVER_STOP,
    STATE_BARRIER,
    STATE_STOP_AT,
    STATE_WORDS,
    STEP_KERNEL,
    STEP_WORDS,
)
from ..runtime.library import KernelLibrary
from ..runtime.pool import ThreadPool

__all__ = ["NativeLoop"]


class NativeLoop:
    """A kernel of the meter on n threads. `close` gives the barrier back."""

    def __init__(self, library: KernelLibrary, kernel: str, n_threads: int, start: int) -> None:
        self.n_threads = n_threads
        self._pool = ThreadPool.shared(library)
        self._team = self._pool.team(n_threads)
        self._barrier = self._pool.take_barrier(n_threads)
        self._out = np.zeros(n_threads * 16 + 16, np.int32)
        self._state = aligned(STATE_WORDS)
        self._state[STATE_BARRIER] = self._barrier.ctypes.data
        self._state[STATE_STOP_AT] = NEVER_STOP
        self._step = aligned(STEP_WORDS)
        self._step[STEP_KERNEL] = library.addresses([kernel])[kernel]
        self._step[METER_START] = start
        self._step[METER_OUT] = self._out.ctypes.data

    def seconds(self, count: int) -> float:
        """How long `count` rounds (of each thread, or shared among them, as the kernel says) took."""
        self._step[METER_COUNT] = count
        started = time.perf_counter()
        self._team.run(int(self._step.ctypes.data), 1, int(self._state.ctypes.data), self.n_threads)
        return time.perf_counter() - started

    def result(self) -> int:
        """The sum of the vectors that the threads left, modulo 2**32: what a loop saw, for tests."""
        return int(self._out[: self.n_threads * 16].astype(np.int64).sum()) & 0xFFFFFFFF

    def close(self) -> None:
        """Give the barrier back; the loop must not be run again."""
        self._pool.give_barrier(self.n_threads, self._barrier)
