"""The verify curve: how long a forward of n tokens takes beside a forward of one.

Every row's logits are wanted and its most likely token is looked up, as in checking n - 1 drafted tokens or in n streams
that write together. What speculation and batching are worth here is this curve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..engine.types import Batch
from ..errors import SettingError
from ..metrics import Spread, spread
from .llama_reference import LlamaCpp

__all__ = ["Curve", "LlamaStepper", "OurStepper", "Stepper", "measure_curve"]


class Stepper(Protocol):
    """Something that can take a step of n tokens behind a context, again and again from the same place."""

    def step(self, n: int) -> float:
        """Seconds of one step of n tokens."""


class OurStepper:
    """A native engine: one sequence of `context`, forwards of n more tokens, taken back each time."""

    def __init__(self, engine: Any, context: Sequence[int], more: Sequence[int]) -> None:
        self._engine, self._more, self._n_past = engine, list(more), len(context)
        self._seq = engine.kv.open()
        for start in range(0, len(context), 256):
            part = list(context[start : start + 256])
            engine.forward(Batch.of(self._seq, part, start, logits="last"))

    def step(self, n: int) -> float:
        """As Stepper says."""
        batch = Batch.of(self._seq, self._more[:n], self._n_past, logits="all")
        started = time.perf_counter()
        logits = self._engine.forward(batch)
        for row in range(n):
            logits.argmax(row)
        seconds = time.perf_counter() - started
        self._engine.kv.rewind(self._seq, self._n_past)
        return seconds

    def close(self) -> None:
        """Give the sequence back."""
        self._engine.kv.close(self._seq)


class LlamaStepper:
    """The same in llama.cpp."""

    def __init__(self, llama: LlamaCpp, context: Sequence[int], more: Sequence[int]) -> None:
        self._llama, self._more, self._n_past = llama, list(more), len(context)
        llama.reset()
        llama.read(context, 0)

    def step(self, n: int) -> float:
        """As Stepper says."""
        started = time.perf_counter()
        self._llama.decode(self._more[:n], self._n_past, every=True).argmax(axis=1)
        seconds = time.perf_counter() - started
        if not self._llama.rewind(self._n_past):
            raise SettingError("llama.cpp cannot take tokens of this model back; leave --vs llamacpp out")
        return seconds


@dataclass
class Curve:
    """Seconds of steps, by the number of tokens; each value is the median of a few steps in a row."""

    counts: tuple[int, ...]
    n_threads: int | None = None
    mine: dict[int, list[float]] = field(default_factory=dict)
    theirs: dict[int, list[float]] = field(default_factory=dict)
    interrupted: bool = False

    def spread(self, n: int) -> Spread:
        """Ours, over the repeats."""
        return spread(self.mine.get(n, ()))

    def relative(self, n: int) -> float | None:
        """t(n) / t(1); None where either was not measured."""
        one, many = self.spread(1).median, self.spread(n).median
        return many / one if one and many else None

    def rival(self, n: int) -> float | None:
        """The other side's seconds."""
        return spread(self.theirs.get(n, ())).median

    def as_dict(self) -> list[dict[str, Any]]:
        """Ready for JSON."""
        return [
            {
                "n": n,
                "n_threads": self.n_threads,
                "seconds": self.spread(n).median,
                "relative": self.relative(n),
                "values": self.mine.get(n, []),
                "llamacpp_seconds": self.rival(n),
            }
            for n in self.counts
        ]


def measure_curve(
    ours: Stepper,
    counts: Sequence[int],
    *,
    repeats: int,
    rival: Stepper | None = None,
    n_threads: int | None = None,
    in_a_row: int = 7,
    rest_s: float = 0.1,
    done: Callable[[str], None] | None = None,
) -> Curve:
    """Take `repeats` rounds over all counts and both sides, `in_a_row` steps each. 1 is always measured.

    An interrupt keeps what was measured. Raises SettingError for a count below 1.
    """
    if any(n < 1 for n in counts) or repeats < 1:
        raise SettingError("--batch wants numbers of tokens, at least 1 each")
    curve = Curve(tuple(sorted({1, *counts})), n_threads)
    try:
        for number in range(repeats + 1):
            for n in curve.counts:
                sides: list[tuple[Stepper, dict[int, list[float]]]] = [(ours, curve.mine)]
                if rival is not None:
                    sides.append((rival, curve.theirs))
                for side, found in sides if number % 2 else reversed(sides):
                    if rival is not None:
                        time.sleep(rest_s)  # the other's threads go to sleep first
                    side.step(n)  # wakes the threads
                    middle = spread(side.step(n) for _ in range(in_a_row)).median
                    if number and middle is not None:
                        found.setdefault(n, []).append(middle)
                if done:
                    done(f"step of {n}")
    except KeyboardInterrupt:
        curve.interrupted = True
    return curve
