"""A native forward, one step at a time, beside the NumPy twins: every step is fed the native inputs.

Within `traced(engine)` each forward fails at the first step that is off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from edgeinfer.engine.lane import Lane
from edgeinfer.engine.native import NativeEngine
from edgeinfer.formats import by_name
from edgeinfer.plan.fields import MODES
from edgeinfer.plan.packing import row_order
from edgeinfer.plan.program import KV, Bias, File, Matrix, Norm, Operand, Packed, Rope, Step, Thread
from edgeinfer.plan.twin import expected, found
from edgeinfer.plan.twin_memory import Array, Call, Outputs, Quantized, number
from edgeinfer.runtime.layout import STATE_N, STATE_N_OUT, STEP_BYTES
from tests.kernels.harness import slots_for

__all__ = ["Differences", "NativeMemory", "at", "read_tiles", "traced"]

PAGE = 64


def at(address: int, dtype: type[np.generic], *shape: int) -> Array:
    """A copy of the array at an address."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(address))
    copied: Array = raw.view(dtype).reshape(shape).copy()
    return copied


def read_tiles(address: int, rows: int, tile_bytes: int, cols: int) -> tuple[Array, Array, Array, Array]:
    """int8 (rows, cols), scales (rows, nb), sums (rows, nb) and half sums (rows, 2 nb) of activation tiles.

    Refuses sums in float32 that are not the integer ones times the scales.
    """
    slots = slots_for(rows)
    nb = cols // 32
    q, d, s, h = [], [], [], []
    for tile in range(max(1, -(-rows // slots))):
        start = address + tile * tile_bytes
        q.append(at(start, np.int8, cols // 4, slots, 4).transpose(1, 0, 2).reshape(slots, cols))
        start += cols * slots
        d.append(at(start, np.float32, nb, slots).T)
        start += 4 * nb * slots
        both = at(start, np.int32, nb, 2, slots)
        s.append(both[:, 0].T)
        scaled = both[:, 1].view(np.float32).T[: rows - tile * slots]
        np.testing.assert_array_equal(scaled, (s[-1] / -8).astype(np.float32)[: len(scaled)] * d[-1][: len(scaled)])
        start += 8 * nb * slots
        h.append(at(start, np.int32, 2 * nb, slots).T)
    all_rows = [np.concatenate(x)[:rows] for x in (q, d, s, h)]
    return all_rows[0], all_rows[1], all_rows[2], all_rows[3]


def read_head(kind: str, raw: Array, head_dim: int, keys: bool) -> Array:
    """The keys or values (64, head_dim) of one head in a page."""
    if kind == "f16":
        halves = raw.view(np.float16).astype(np.float32)
        if not keys:
            return halves.reshape(PAGE, head_dim)
        return halves.reshape(PAGE // 16, head_dim, 16).transpose(0, 2, 1).reshape(PAGE, head_dim)
    blocks, width = head_dim // 32, head_dim if kind == "q8_0" else head_dim // 2
    body, scales = raw[: PAGE * width], raw[PAGE * width :].view(np.float16).astype(np.float32)
    if keys:  # 16 positions side by side
        body = body.reshape(PAGE // 16, width, 16).transpose(0, 2, 1).reshape(PAGE, width)
        scales = scales.reshape(PAGE // 16, blocks, 16).transpose(0, 2, 1)
    scales = scales.reshape(PAGE, blocks, 1)
    if kind == "q8_0":
        q = np.ascontiguousarray(body).view(np.int8).reshape(PAGE, blocks, 32)
    else:
        body = body.reshape(PAGE, blocks, 16)
        q = np.concatenate([body & 15, body >> 4], axis=2).astype(np.int8) - np.int8(8)
    dequantized: Array = (q * scales).reshape(PAGE, head_dim)
    return dequantized


def storage_error(variant: str, want: Array) -> Array:
    """How far a stored key or value (..., head_dim) may lie from what it should be."""
    if variant:
        largest = np.abs(want.reshape(*want.shape[:-1], -1, 32)).max(axis=-1, keepdims=True)
        # q8_0: half a step of largest / 127; q4_0: a whole step of largest / 8, where the range has no +8.
        step = largest * (0.51 / 127 if variant == "q8_0" else 1.01 / 8)
        return np.broadcast_to(step, (*step.shape[:-1], 32)).reshape(want.shape)
    rounded: Array = np.maximum(np.abs(want) * 2.0**-11, 2.0**-25)
    return rounded


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
                values = weights.float32(part.tensor).reshape(-1, matrix.cols)
                known[which == i] = values[rows[which == i]]
            self._matrices[matrix] = known
        return known

    def vector(self, norm: Operand) -> Array:
        assert isinstance(norm, Norm)
        values = self.engine._weights.float32(norm.tensor)
        return values.T if norm.transposed else values

    def bias(self, bias: Operand) -> Array:
        assert isinstance(bias, Bias)
        which, rows = row_order(bias.matrix)
        values = np.zeros(len(rows), np.float32)
        for i, part in enumerate(bias.matrix.parts):
            if part.bias:
                values[which == i] = self.engine._weights.float32(part.bias)[rows[which == i]]
        return values

    def ring(self, kv: Operand, slot: int, positions: Array, ring: int, cols: int) -> Array:
        assert isinstance(kv, KV)
        rows, stride = [], self.engine.kv.page_stride(kv.group)
        for position in positions:
            page = int(self.engine.kv.table[slot, kv.group, position // PAGE])
            rows.append(at(self.address(kv) + page * stride, np.float32, ring, cols)[position % ring])
        return np.array(rows)

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
        base, page_bytes, kind = self.address(kv), self.engine.kv.page_bytes, self.engine.kv_type
        stride = self.engine.kv.page_stride(kv.group)
        keys, values = [], []
        for page in self.engine.kv.table[slot, kv.group, : -(-n // PAGE)]:
            heads = np.zeros((2 * n_kv, PAGE, head_dim), np.float32)  # a page that a window has passed
            if page >= 0:
                raw = at(base + int(page) * stride, np.uint8, 2 * n_kv, page_bytes // (2 * n_kv))
                for i, head in enumerate(raw):
                    heads[i] = read_head(kind, head, head_dim, keys=i < n_kv)
            keys.append(heads[:n_kv].transpose(1, 0, 2))
            values.append(heads[n_kv:].transpose(1, 0, 2))
        return np.concatenate(keys)[:n], np.concatenate(values)[:n]

    def partials(self, place: Operand, n_kv: int, blocks: int, group: int, head_dim: int) -> Array:
        return at(self.address(place), np.float32, n_kv, blocks, group, 16 + head_dim)


class Differences:
    """What was compared: steps by kind, int8 values and how many of them were off by one."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.values = 0
        self.off_by_one = 0
        self.worst: dict[str, float] = {}

    def compare(self, step: Step, wanted: Outputs, got: Outputs, summed: float = 0.0) -> None:
        """Refuse outputs that are not what the twin says; count the rest.

        summed: the largest sum of absolute products behind one value. A row of one value may be small beside it: 2e-6 of it
        are allowed, as in `tests/kernels/test_matmul.py`.
        """
        self.steps[step.kind] = self.steps.get(step.kind, 0) + 1
        assert set(wanted) == set(got)
        for name, want in wanted.items():
            have = got[name]
            label = f"{step.kernel} ({step.name}): {name}"
            assert have.shape == want.shape, label
            if name == "ids":
                np.testing.assert_array_equal(have, want, label)
            elif name == "q":
                off = np.abs(have.astype(np.int64) - want.astype(np.int64))
                assert off.max(initial=0) <= 1, label
                self.values += off.size
                self.off_by_one += int(off.sum())
            elif name in ("k", "v"):
                error = np.abs(have - want) - storage_error(step.variant, want)
                assert error.max(initial=0) <= 1e-6 * np.abs(want).max(initial=0), label
            else:
                scale = np.abs(want).max(axis=-1, keepdims=True) if want.ndim > 1 else np.abs(want)
                error = np.abs(have - want) / np.maximum(scale, max(0.2 * summed, 1e-30))
                worst = float(error.max(initial=0))
                self.worst[f"{step.kind}.{name}"] = max(worst, self.worst.get(f"{step.kind}.{name}", 0.0))
                assert worst <= 1e-5, f"{label}: {worst:.2g} of the row's largest value"


def sum_of_products(step: Step, call: Call, memory: NativeMemory) -> float:
    """The largest sum of absolute products behind one value of a product of floats; 0 for other steps."""
    packed = step.fields.get("weights")
    if step.kind != "matmul_float" or not isinstance(packed, Packed) or step.fields["mode"] != MODES["store"]:
        return 0.0
    rows = len(call.out_rows) if step.fields["rows"] else call.n
    h = memory.floats(step.fields["h"], rows, number(step, "h_stride"), number(step, "cols"))
    return float((np.abs(h) @ np.abs(memory.matrix(packed.matrix)).T).max(initial=0))


class _Tracer:
    """Stands in for a lane's team: runs a program's steps one by one and compares each with its twin."""

    def __init__(self, engine: NativeEngine, lane: Lane, differences: Differences):
        self._engine, self._lane, self._team, self._differences = engine, lane, lane.team, differences

    def run(self, program: int, n_steps: int, state: int, n_threads: int) -> None:
        lane = self._lane
        phase = next(name for name, words in lane.linked.items() if int(words.ctypes.data) == program)
        n, n_out = int(lane.state[STATE_N]), int(lane.state[STATE_N_OUT])
        call = Call(lane.ids[:n].copy(), lane.positions[:n].copy(), lane.slots[:n].copy(), lane.out_rows[:n_out].copy())
        memory = NativeMemory(self._engine, lane)
        steps = self._engine.programs[phase].steps
        assert len(steps) == n_steps
        for i, step in enumerate(steps):
            wanted, summed = expected(step, call, memory), sum_of_products(step, call, memory)
            self._team.run(program + i * STEP_BYTES, 1, state, n_threads)
            self._differences.compare(step, wanted, found(step, call, memory), summed)


@contextmanager
def traced(engine: NativeEngine) -> Iterator[Differences]:
    """Within, every forward of the engine is compared step by step."""
    differences = Differences()
    teams = {name: lane.team for name, lane in engine._lanes.items()}
    for lane in engine._lanes.values():
        lane.team = _Tracer(engine, lane, differences)  # type: ignore[assignment]
    try:
        yield differences
    finally:
        for name, lane in engine._lanes.items():
            lane.team = teams[name]
