"""How many int8 operations the dot-product instruction can do: a loop that works on registers only.

A multiplication and its addition are two operations. The loop is emitted by the same vocabulary as the kernels, so it
uses the instruction that they use, with as many accumulators as hide its latency.
"""

from __future__ import annotations

import numpy as np

from ..runtime.arena import aligned
from ..runtime.layout import METER_PRODUCTS
from ..runtime.library import KernelLibrary
from .native_loop import NativeLoop

__all__ = ["PeakLoop"]

_OPERATIONS = 16 * 4 * 2  # of one product of vectors: 16 lanes, four bytes each, a multiplication and an addition
_LEAST_S = 0.02


class PeakLoop:
    """The dot product over and over on n threads."""

    def __init__(self, library: KernelLibrary, n_threads: int, seed: int = 0) -> None:
        self._per_round = METER_PRODUCTS[library.isa.dot] * _OPERATIONS * n_threads
        self._operands = aligned(24 * 8)  # 24 vectors of 64 bytes
        self._operands[:] = np.random.default_rng(seed).integers(0, 1 << 62, self._operands.size) & 0x7F7F7F7F7F7F7F7F
        self._loop = NativeLoop(library, "meter.multiply", n_threads, int(self._operands.ctypes.data))

    def measure(self) -> float:
        """Operations per second of all threads together: the best of a few passes of 20 ms in all."""
        rounds = 20_000
        while (seconds := self._loop.seconds(rounds)) < _LEAST_S / 4:
            rounds *= 4
        seconds = min(seconds, *(self._loop.seconds(rounds) for _ in range(3)))
        return rounds * self._per_round / seconds

    def close(self) -> None:
        """Give the loop's barrier back."""
        self._loop.close()
