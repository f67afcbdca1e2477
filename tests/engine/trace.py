"""A native forward, one step at a time, beside the NumPy twins: every step is fed the native inputs.

`traced(engine)` puts a tracing team in the engine's place of threads; each forward then raises the first step that is off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from edgeinfer.engine.lane import Lane
from edgeinfer.engine.native import NativeEngine
from edgeinfer.formats import by_name
from edgeinfer.plan.packing import row_order
from edgeinfer.plan.program import KV, File, Matrix, Norm, Operand, Rope, Step, Thread
from edgeinfer.plan.twin import expected, found
from edgeinfer.plan.twin_memory import Array, Call, Outputs, Quantized
from edgeinfer.runtime.layout import STATE_N, STATE_N_OUT, STEP_BYTES
from edgeinfer.runtime.pool import Team

__all__ = ["Differences", "NativeMemory", "at", "read_tiles", "traced"]

PAGE = 64


def at(address: int, dtype: type[np.generic], *shape: int) -> Array:
    """A copy of the array at an address."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(address))
    copied: Array = raw.view(dtype).reshape(shape).copy()
    return copied


def read_tiles(address: int, rows: int, tile_bytes: int, cols: int) -> tuple[Array, Array, Array, Array]:
    """int8 (rows, cols), scales (rows, nb), sums (rows, nb) and half sums (rows, 2 nb) of activation tiles."""
    slots = 1 if rows == 1 else 8
    nb = cols // 32
    q, d, s, h = [], [], [], []
    for tile in range(max(1, -(-rows // slots))):
        start = address + tile * tile_bytes
        q.append(at(start, np.int8, cols // 4, slots, 4).transpose(1, 0, 2).reshape(slots, cols))
        start += cols * slots
        d.append(at(start, np.float32, nb, slots).T)
        start += 4 * nb * slots
        s.append(at(start, np.int32, nb, slots).T)
        start += 4 * nb * slots
        h.append(at(start, np.int32, 2 * nb, slots).T)
    all_rows = [np.concatenate(x)[:rows] for x in (q, d, s, h)]
    return all_rows[0], all_rows[1], all_rows[2], all_rows[3]


class NativeMemory:
    """A lane's places, read as arrays; private memory is thread `ith`'s."""

    def __init__(self, engine: NativeEngine, lane: Lane, ith: int = 0):
        self.engine, self.lane, self.ith = engine, lane, ith
        self._matrices: dict[Matrix, Array] = {}

    def address(self, place: Operand) -> int:
        word = self.lane._resolve(place, self.engine._where)
        if isinstance(place, Thread):
            word += self.lane.thread_address + self.ith * self.lane.thread_stride
        return word

    def floats(self, place: Operand, rows: int, stride: int, cols: int) -> Array:
        if rows == 0:
            return np.zeros((0, cols), np.float32)
        start = self.address(place)
        return np.stack([at(start + t * stride, np.float32, cols) for t in range(rows)])

    def quantized(self, place: Operand, rows: int, tile_bytes: int, cols: int) -> Quantized:
        q, scales, sums, halves = read_tiles(self.address(place), rows, tile_bytes, cols)
        wide = q.astype(np.int32)
        np.testing.assert_array_equal(sums, -8 * wide.reshape(rows, cols // 32, 32).sum(2))
        np.testing.assert_array_equal(halves, -32 * wide.reshape(rows, cols // 16, 16).sum(2))
        return Quantized(q, scales)

    def matrix(self, matrix: Matrix) -> Array:
        known = self._matrices.get(matrix)
        if known is None:
            weights = self.engine._weights
            which, rows = row_order(matrix)
            known = np.zeros((len(rows), matrix.cols), np.float32)
            for i, part in enumerate(matrix.parts):
                known[which == i] = weights.float32(part.tensor)[rows[which == i]]
            self._matrices[matrix] = known
        return known

    def vector(self, norm: Operand) -> Array:
        assert isinstance(norm, Norm)
        return self.engine._weights.float32(norm.tensor)

    def table(self, table: File, ids: Array) -> Array:
        info = self.engine._weights.tensor(table.tensor)
        fmt = by_name(info.type_name)
        assert fmt.dequantize is not None
        raw = self.engine._weights.data(table.tensor).reshape(info.shape[0], -1)
        return fmt.dequantize(raw[ids])

    def rotation(self, rope: Operand, positions: Array) -> Array:
        assert isinstance(rope, Rope)
        table = at(self.address(rope), np.float32, self.engine.n_ctx, rope.rope_dim)
        return table[positions]

    def cache(self, kv: Operand, slot: int, n: int, n_kv: int, head_dim: int) -> tuple[Array, Array]:
        assert isinstance(kv, KV)
        base, page_bytes = self.address(kv), self.engine.kv.page_bytes
        pages = self.engine.kv.table[slot, kv.group, : -(-n // PAGE)]
        half = n_kv * PAGE * head_dim * 2
        keys = [at(base + int(p) * page_bytes, np.float16, n_kv, PAGE // 16, head_dim, 16) for p in pages]
        values = [at(base + int(p) * page_bytes + half, np.float16, n_kv, PAGE, head_dim) for p in pages]
        k = np.concatenate([x.transpose(1, 3, 0, 2).reshape(PAGE, n_kv, head_dim) for x in keys])[:n]
        v = np.concatenate([x.transpose(1, 0, 2) for x in values])[:n]
        return k.astype(np.float32), v.astype(np.float32)

    def partials(self, place: Operand, n_kv: int, blocks: int, group: int, head_dim: int) -> Array:
        return at(self.address(place), np.float32, n_kv, blocks, group, 16 + head_dim)


class Differences:
    """What was compared: steps by kind, int8 values and how many of them were off by one."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.values = 0
        self.off_by_one = 0
        self.worst: dict[str, float] = {}

    def compare(self, step: Step, wanted: Outputs, got: Outputs) -> None:
        """Refuse outputs that are not what the twin says; count the rest."""
        self.steps[step.kind] = self.steps.get(step.kind, 0) + 1
        assert set(wanted) == set(got)
        for name, want in wanted.items():
            have = got[name]
            label = f"{step.kernel} ({step.name}): {name}"
            assert have.shape == want.shape, label
            if name == "q":
                off = np.abs(have.astype(np.int64) - want.astype(np.int64))
                assert off.max(initial=0) <= 1, label
                self.values += off.size
                self.off_by_one += int(off.sum())
            elif name in ("k", "v"):  # stored as f16
                error = np.abs(have - want) - np.maximum(np.abs(want) * 2.0**-11, 2.0**-25)
                assert error.max(initial=0) <= 1e-6 * np.abs(want).max(initial=0), label
            else:
                scale = np.abs(want).max(axis=-1, keepdims=True) if want.ndim > 1 else np.abs(want)
                error = np.abs(have - want) / np.maximum(scale, 1e-30)
                worst = float(error.max(initial=0))
                self.worst[f"{step.kind}.{name}"] = max(worst, self.worst.get(f"{step.kind}.{name}", 0.0))
                assert worst <= 1e-5, f"{label}: {worst:.2g} of the row's largest value"


class _Tracer:
    """Stands in for the engine's team: runs a program's steps one by one and compares each with its twin."""

    def __init__(self, engine: NativeEngine, team: Team, differences: Differences):
        self._engine, self._team, self._differences = engine, team, differences

    def run(self, program: int, n_steps: int, state: int) -> None:
        lane, phase = next(
            (lane, phase)
            for lane in self._engine._lanes.values()
            for phase, words in lane.linked.items()
            if int(words.ctypes.data) == program
        )
        n, n_out = int(lane.state[STATE_N]), int(lane.state[STATE_N_OUT])
        call = Call(lane.ids[:n].copy(), lane.positions[:n].copy(), lane.slots[:n].copy(), lane.out_rows[:n_out].copy())
        memory = NativeMemory(self._engine, lane)
        steps = self._engine.programs[phase].steps
        assert len(steps) == n_steps
        for i, step in enumerate(steps):
            wanted = expected(step, call, memory)
            self._team.run(program + i * STEP_BYTES, 1, state)
            self._differences.compare(step, wanted, found(step, call, memory))

    def release(self) -> None:
        self._team.release()


@contextmanager
def traced(engine: NativeEngine) -> Iterator[Differences]:
    """Within, every forward of the engine is compared step by step."""
    differences = Differences()
    team = engine._team
    engine._team = _Tracer(engine, team, differences)  # type: ignore[assignment]
    try:
        yield differences
    finally:
        engine._team = team
