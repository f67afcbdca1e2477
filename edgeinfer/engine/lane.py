"""A lane: all that one phase's running call writes. Scratch memory, private thread memory, state, barriers, linked programs.

Two lanes share weights and KV pages and nothing else, so both may run at once on different sequences.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError
from ..plan.fields import FIELDS
from ..plan.program import KV, Bias, File, Matrix, Norm, Operand, Packed, PageStride, Program, Rope, Scratch, Thread
from ..runtime.arena import Arena, aligned
from ..runtime.layout import (
    BARRIER_LATE,
    NEVER_STOP,
    RUN_WORDS,
    STATE_BARRIER,
    STATE_GROUP_STRIDE,
    STATE_IDS,
    STATE_N,
    STATE_N_OUT,
    STATE_N_RUNS,
    STATE_OUT_ROWS,
    STATE_POSITIONS,
    STATE_RUNS,
    STATE_SLOT_STRIDE,
    STATE_SLOTS,
    STATE_STOP,
    STATE_STOP_AT,
    STATE_TABLES,
    STATE_THREAD,
    STATE_THREAD_STRIDE,
    STATE_WORDS,
    STEP_FIELDS,
    STEP_KERNEL,
    STEP_SYNC,
    STEP_WORDS,
)  # fmt: skip
from ..runtime.pool import ThreadPool
from .kv import PagedKV

__all__ = ["Addresses", "Lane"]

PADDING = 8  # rows that a tile of the last tokens may touch beyond n_batch
BLOCK = 256


@dataclass(frozen=True)
class Addresses:
    """Where the things are that programs name and all lanes share."""

    kernels: Mapping[str, int]
    packed: Mapping[Matrix, tuple[int, int]]  # quants, scales
    vectors: Mapping[Norm | Bias, int]
    files: Mapping[str, int]
    ropes: Mapping[Rope, int]
    kv: PagedKV


class Lane:
    """Buffers sized for n_batch tokens and n_out rows of logits, and the programs linked to them."""

    def __init__(
        self,
        name: str,
        programs: Mapping[str, Program],
        where: Addresses,
        pool: ThreadPool,
        n_batch: int,
        n_out: int,
        n_threads: int,
        n_ctx: int,
    ):
        self.name = name
        self._pool = pool
        self.team = pool.team(n_threads)
        self.n_batch, self.n_out, self.n_threads = n_batch, n_out, n_threads
        self._programs = programs
        sizes = self._buffer_sizes(n_ctx)
        regions = self._thread_regions()
        self.thread_stride = -(-(sum(regions.values()) + 64) // 4096) * 4096 + 64  # staggered over cache sets
        total = sum(-(-n // 64) * 64 for n in sizes.values()) + n_threads * self.thread_stride + 4096
        self.arena = Arena(total, f"the {name} lane's scratch memory")
        self.buffers = {key: self.arena.take(n) for key, n in sizes.items()}
        self.buffer_sizes = sizes
        self.thread_offsets: dict[str, int] = {}
        at = 64  # an offset of 0 means "not wanted" to the kernels
        for key, n in regions.items():
            self.thread_offsets[key] = at
            at += n
        self.thread_address = self.arena.take(n_threads * self.thread_stride)
        self._state_memory(where.kv)
        self.linked = {phase: self._link(program, where) for phase, program in programs.items()}
        # What a program leaves for who called it: the logits (n_out, ...) and what is the best of them, as views.
        self.answers = {
            phase: (
                self._floats("logits", program.buffers["logits"].row_bytes),
                self._floats("best", program.buffers["best"].row_bytes),
            )
            for phase, program in programs.items()
        }

    def _buffer_sizes(self, n_ctx: int) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for program in self._programs.values():
            for name, buffer in program.buffers.items():
                if buffer.per_tile:
                    n = buffer.row_bytes * ((max(self.n_batch, self.n_out) + 7) // 8 + 1)
                else:
                    n = buffer.row_bytes * ((self.n_out if buffer.rows == "out" else self.n_batch) + PADDING)
                sizes[name] = max(sizes.get(name, 0), n)
            if program.partial_bytes:
                sizes["partial"] = program.partial_bytes * (-(-n_ctx // BLOCK) + 1)
        return sizes

    def _thread_regions(self) -> dict[str, int]:
        regions: dict[str, int] = {}
        for program in self._programs.values():
            for name, n in program.thread_bytes.items():
                regions[name] = max(regions.get(name, 0), -(-n // 64) * 64)
        return regions

    def _state_memory(self, kv: PagedKV) -> None:
        n = self.n_batch
        self.state = aligned(STATE_WORDS)
        self.ids, self.positions, self.slots = aligned(n), aligned(n), aligned(n)
        self.out_rows = aligned(n)
        self.runs = aligned(n * RUN_WORDS)
        # A barrier's counters only grow, so each team size has its own.
        self._barriers = {k: self._pool.take_barrier(k) for k in range(1, self.n_threads + 1)}
        self._waits = {k: memory[8 + BARRIER_LATE :: 8] for k, memory in self._barriers.items()}
        s = self.state
        s[STATE_IDS] = self.ids.ctypes.data
        s[STATE_POSITIONS] = self.positions.ctypes.data
        s[STATE_SLOTS] = self.slots.ctypes.data
        s[STATE_OUT_ROWS] = self.out_rows.ctypes.data
        s[STATE_RUNS] = self.runs.ctypes.data
        s[STATE_TABLES] = kv.table_address
        s[STATE_SLOT_STRIDE] = kv.table.strides[0]
        s[STATE_GROUP_STRIDE] = kv.table.strides[1]
        s[STATE_THREAD] = self.thread_address
        s[STATE_THREAD_STRIDE] = self.thread_stride
        self.state_address = int(s.ctypes.data)

    def _link(self, program: Program, where: Addresses) -> NDArray[np.int64]:
        words = aligned(len(program.steps) * STEP_WORDS)
        table = words.reshape(-1, STEP_WORDS)
        for row, step in zip(table, program.steps, strict=True):
            row[STEP_KERNEL] = where.kernels[step.kernel]
            row[STEP_SYNC] = int(step.sync)
            for i, key in enumerate(FIELDS[step.kind]):
                row[STEP_FIELDS + i] = self._resolve(step.fields[key], where)
        return words

    def _resolve(self, operand: Operand, where: Addresses) -> int:
        """The word that stands for an operand in a linked step."""
        if isinstance(operand, float):
            return int(struct.unpack("<q", struct.pack("<d", operand))[0])
        if isinstance(operand, int):
            return operand
        if isinstance(operand, Packed):
            return where.packed[operand.matrix][0 if operand.stream == "quants" else 1]
        if isinstance(operand, (Norm, Bias)):
            return where.vectors[operand]
        if isinstance(operand, File):
            return where.files[operand.tensor]
        if isinstance(operand, Rope):
            return where.ropes[operand]
        if isinstance(operand, KV):
            return where.kv.layer_address(operand.group, operand.index)
        if isinstance(operand, PageStride):
            return where.kv.page_stride(operand.group)
        if isinstance(operand, Scratch):
            return self.buffers[operand.name] + operand.offset
        if isinstance(operand, Thread):
            return self.thread_offsets[operand.name]
        raise EngineError(f"a step has an operand of unknown kind: {operand!r}")

    def set_call(self, n: int, n_out: int, n_runs: int, n_threads: int) -> None:
        """The counts of the next call; ids, positions, slots, rows and runs are filled by the caller."""
        s = self.state
        s[STATE_N], s[STATE_N_OUT], s[STATE_N_RUNS] = n, n_out, n_runs
        s[STATE_BARRIER] = self._barriers[n_threads].ctypes.data
        s[STATE_STOP], s[STATE_STOP_AT] = 0, NEVER_STOP

    def stop(self) -> None:
        """Ask the call that runs to stop at its next barrier; a call that begins later does not hear of it."""
        self.state[STATE_STOP] = 1

    def waited_s(self, n_threads: int) -> float:
        """Seconds that the threads of teams of this size have waited so far, in vain spun, for a late one; all added up."""
        return sum(self._waits[n_threads].tolist()) * 1e-9 if n_threads > 1 else 0.0  # quicker than NumPy for so few

    @property
    def stopped(self) -> bool:
        """Whether the last call was stopped before its end."""
        return int(self.state[STATE_STOP_AT]) != NEVER_STOP

    def close(self) -> None:
        """Give the barriers back; the lane must not be used again."""
        for n, memory in self._barriers.items():
            self._pool.give_barrier(n, memory)
        self._barriers = {}

    def _floats(self, name: str, row_bytes: int) -> NDArray[np.float32]:
        """A float32 buffer as an array (n_out, row_bytes / 4): a view."""
        raw = self.arena.view(self.buffers[name], self.n_out * row_bytes)
        return raw.view(np.float32).reshape(self.n_out, row_bytes // 4)
