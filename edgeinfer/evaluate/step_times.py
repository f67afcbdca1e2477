"""Where the time of forwards goes, by operation: a clock between the steps of the engine's own program.

Within `timed(engine)` each forward runs a copy of its program with a step that reads the clock after each of its steps,
on the same threads in one native call; a reading costs about 30 ns. The time of a step is what thread 0 sees: its own share
and the wait at the barrier behind it, if there is one. Looking for the next token is timed from Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..plan.packing import PACKED_BYTES
from ..plan.program import Matrix, Packed, Step
from ..runtime.arena import aligned
from ..runtime.layout import METER_OUT, STATE_N, STATE_N_OUT, STEP_KERNEL, STEP_WORDS

__all__ = ["Operation", "StepTimes", "label_of", "timed"]

_LABELS = {
    "embed": "token rows", "rope_kv": "rope and KV write", "attention_part": "attention", "attention_merge": "attention",
}  # fmt: skip


def matrix_of(step: Step) -> Matrix | None:
    """The matrix that a step multiplies with, if it does."""
    found = (o.matrix for o in step.fields.values() if isinstance(o, Packed) and o.stream == "quants")
    return next(found, None) if step.kind.startswith("matmul") else None


def label_of(step: Step) -> str:
    """The operation that a step is counted under."""
    matrix = matrix_of(step)
    if matrix is None:
        return _LABELS.get(step.kind, step.kind)
    return f"output head {matrix.format}" if step.fields.get("rows") else f"matmul {matrix.format}"


@dataclass
class Operation:
    """What was spent on one operation."""

    seconds: float = 0.0
    n_steps: int = 0
    n_bytes: int = 0  # of weights that were read at least once
    n_macs: int = 0  # int8 products of weights and activations


@dataclass
class StepTimes:
    """What was spent in the forwards of one phase ("decode": one token, "batch": several)."""

    phase: str
    operations: dict[str, Operation] = field(default_factory=dict)
    n_forwards: int = 0
    n_tokens: int = 0
    forward_s: float = 0.0  # of the forwards' native calls, from Python

    def note(self, steps: tuple[Step, ...], seconds: Any, n: int, n_out: int) -> None:
        """Add a forward of n tokens: seconds is an array (len(steps),)."""
        self.n_forwards += 1
        self.n_tokens += n
        for step, spent in zip(steps, seconds, strict=True):
            operation = self.operations.setdefault(label_of(step), Operation())
            operation.seconds += float(spent)
            operation.n_steps += 1
            matrix = matrix_of(step)
            rows = n_out if step.fields.get("rows") else n
            if matrix is not None and rows:
                operation.n_bytes += matrix.groups * (matrix.cols // 32) * sum(PACKED_BYTES[matrix.format])
                operation.n_macs += matrix.groups * 16 * matrix.cols * rows * (step.kind == "matmul")

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, the largest first."""
        listed = sorted(self.operations.items(), key=lambda item: -item[1].seconds)
        return {
            "phase": self.phase,
            "forwards": self.n_forwards,
            "tokens": self.n_tokens,
            "forward_s": self.forward_s,
            "operations": [
                {
                    "operation": name,
                    "seconds": found.seconds,
                    "steps": found.n_steps,
                    "bytes_s": found.n_bytes / found.seconds if found.seconds and found.n_bytes else None,
                    "int8_ops_s": 2 * found.n_macs / found.seconds if found.seconds and found.n_macs else None,
                }
                for name, found in listed
            ],
        }


class _Clocked:
    """Stands in for a lane's team: runs a program with a clock between its steps."""

    def __init__(self, engine: Any, lane: Any, clock: int, times: dict[str, StepTimes]) -> None:
        self._engine, self._lane, self._team, self._times = engine, lane, lane.team, times
        self._programs: dict[str, Any] = {}
        self._readings: dict[str, Any] = {}
        for phase, words in lane.linked.items():
            steps = words.reshape(-1, STEP_WORDS)
            clocked = aligned((2 * len(steps) + 1) * STEP_WORDS)
            table = clocked.reshape(-1, STEP_WORDS)
            readings = aligned(2 * (len(steps) + 1))
            table[1::2] = steps
            table[0::2, STEP_KERNEL] = clock
            table[0::2, METER_OUT] = readings.ctypes.data + 16 * np.arange(len(steps) + 1)
            self._programs[phase], self._readings[phase] = clocked, readings

    def run(self, program: int, n_steps: int, state: int, n_threads: int) -> None:
        lane = self._lane
        phase = next(name for name, words in lane.linked.items() if int(words.ctypes.data) == program)
        started = time.perf_counter()
        self._team.run(int(self._programs[phase].ctypes.data), 2 * n_steps + 1, state, n_threads)
        spent = time.perf_counter() - started
        if lane.stopped:
            return
        readings = self._readings[phase].reshape(-1, 2)
        seconds = np.diff(readings[:, 0] * 1e9 + readings[:, 1]) * 1e-9
        found = self._times[phase]
        found.forward_s += spent
        found.note(self._engine.programs[phase].steps, seconds, int(lane.state[STATE_N]), int(lane.state[STATE_N_OUT]))


class _TimedLogits:
    """Stands in for a lane's rows of logits and times the questions about them."""

    def __init__(self, logits: Any, operation: Operation) -> None:
        self._logits, self._operation = logits, operation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logits, name)

    def __len__(self) -> int:
        return len(self._logits)

    def show(self, *arguments: Any) -> _TimedLogits:
        self._logits.show(*arguments)
        return self

    def _timed(self, name: str, *arguments: Any) -> Any:
        started = time.perf_counter()
        answer = getattr(self._logits, name)(*arguments)
        self._operation.seconds += time.perf_counter() - started
        self._operation.n_steps += 1
        return answer

    def argmax(self, i: int) -> int:
        return int(self._timed("argmax", i))

    def finite(self, i: int) -> bool:
        return bool(self._timed("finite", i))

    def top(self, i: int, k: int) -> Any:
        return self._timed("top", i, k)


@contextmanager
def timed(engine: Any) -> Iterator[dict[str, StepTimes]]:
    """Within, every forward of a native engine is timed step by step; gives the times by phase, and those of looking for
    the next token under "sampling" of the phase "tokens"."""
    times = {phase: StepTimes(phase) for phase in (*engine.programs, "tokens")}
    sampling = times["tokens"].operations.setdefault("sampling", Operation())
    clock = engine.library.addresses(["meter.clock"])["meter.clock"]
    teams = {name: lane.team for name, lane in engine._lanes.items()}
    logits = dict(engine._logits)
    for lane in engine._lanes.values():
        lane.team = _Clocked(engine, lane, clock, times)
    for name, rows in logits.items():
        engine._logits[name] = _TimedLogits(rows, sampling)
    try:
        yield times
    finally:
        for name, lane in engine._lanes.items():
            lane.team = teams[name]
        engine._logits.update(logits)
