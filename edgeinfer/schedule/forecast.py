"""What forwards are expected to take, in seconds, by the cost models that learn while forwards run.

There is a model for each number of threads, alone and beside the other lane. Knows streams and forwards, no rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cost import CostModel, looks_of
from .stream import Stream
from .work import Work

__all__ = ["MOST_ROWS", "Forecast"]

MOST_ROWS = 128  # of a chunk: what more of them compute on leaves the nearest caches, and each row takes longer
_SAMPLE = 64  # rows by which a prompt's row is priced


class Forecast:
    """The cost models of a scheduler with n_threads."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._models: dict[tuple[int, bool], CostModel] = {}  # by threads, and whether the other lane runs too

    def model(self, n_threads: int, shared: bool = False) -> CostModel:
        """The model of forwards on n_threads; `shared`: the other lane may run at the same time, on the rest."""
        model = self._models.get((n_threads, shared))
        if model is None:
            like = next(((n, m) for (n, _), m in self._models.items() if m.known), None)
            model = CostModel() if like is None else CostModel(like[1], max(1.0, like[0] / n_threads))
            self._models[n_threads, shared] = model
        return model

    def note(self, work: Work, seconds: float) -> None:
        """Learn from a forward that has ended."""
        self.model(work.n_threads, work.shares).note(work.rows, work.looks, seconds, work.spans)

    def step_s(self, streams: Sequence[Stream], n_threads: int, shared: bool = False) -> float:
        """A forward of the next token of each of these streams."""
        looks = sum(s.n_held for s in streams)
        return self.model(n_threads, shared).seconds(max(1, len(streams)), looks, looks)

    def together_s(self, streams: Sequence[Stream], n_threads: int) -> float:
        """A step of these streams on a part of the threads, when all that they hold now is read."""
        looks = sum(s.n_held + s.n_todo for s in streams)
        return self.model(n_threads, True).seconds(len(streams), looks, looks)

    def read_s(self, stream: Stream) -> float:
        """The rest of a prompt, on all threads."""
        n = min(stream.n_todo, MOST_ROWS)
        last = stream.n_held + stream.n_todo
        middle = (stream.n_held + last) // 2
        chunk_s = self.model(self.n_threads).seconds(n, looks_of(middle, n), middle)
        return chunk_s * stream.n_todo / max(n, 1)

    def row_s(self, position: float) -> float:
        """A prompt's row near a position, in a chunk on all threads."""
        first = int(position)
        return self.model(self.n_threads).seconds(_SAMPLE, looks_of(first, _SAMPLE), first) / _SAMPLE

    def rows_per_s(self, position: int, n_threads: int, budget_s: float) -> float:
        """How many rows of a prompt are read in a second, from a position on, in chunks of budget_s; 0 if not known."""
        model = self.model(n_threads, n_threads < self.n_threads)
        n = model.fit(budget_s, position, MOST_ROWS)
        seconds = model.seconds(n, looks_of(position, n), position)
        return n / seconds if seconds > 0.0 else 0.0

    def figures(self) -> dict[str, dict[str, float]]:
        """Milliseconds of forwards of row counts that were measured, by model."""
        return {f"{n} threads{' of two lanes' * shared}": m.figures() for (n, shared), m in self._models.items()}
