"""A prompt whose every row of logits is wanted, read among the other prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.types import Logits
from ..errors import ContextOverflowError, EngineError, MemoryLimitError
from ..generate.chunk import Chunk
from .generation import Generation
from .prompt import check_ids
from .run import Run
from .scheduler import Scheduler
from .stream import Stream

__all__ = ["Scoring", "score"]


class Scoring(Stream):
    """A prompt whose every row of logits is wanted, and no answer. rows is (len(prompt), n_vocab), filled as it goes."""

    reuses = False
    wants_all_rows = True

    def __init__(
        self, ids: Sequence[int] | NDArray[np.integer[Any]], rows: NDArray[np.float32], run: Run, level: int = 1
    ) -> None:
        self.tokens = [int(token) for token in ids]
        self.n_prompt = run.n_prompt = len(self.tokens)
        self.n_most, self.n_ctx = 0, self.n_prompt
        self.run, self.level, self.rows = run, level, rows
        self._start()

    def evaluated(self, logits: Logits, row: int, n: int, started: float, seconds: float) -> Chunk | None:
        """Copy the rows of the n tokens just evaluated."""
        first = self.n_held - n
        for i in range(n):
            self.rows[first + i] = logits.row(row + i)
        return None if self.n_todo else self._last("", None, "stop")

    def cancel_chunk(self) -> Chunk:
        """End it as cancelled."""
        return self._last("", None, "cancelled")


def score(
    ids: Sequence[int] | NDArray[np.integer[Any]], scheduler: Scheduler, *, n_vocab: int, n_ctx: int, owner: object
) -> NDArray[np.float32]:
    """The logits after each of the ids, (len(ids), n_vocab), from an empty context.

    Raises SettingError for an id outside the vocabulary, ContextOverflowError above n_ctx, MemoryLimitError.
    """
    n = len(ids)
    if n:
        check_ids(ids, n_vocab)
    if n > n_ctx:
        raise ContextOverflowError(
            f"{n} token ids were given and the context holds {n_ctx}; give fewer or load with a larger n_ctx"
        )
    try:
        rows = np.empty((n, n_vocab), np.float32)
    except MemoryError:
        raise MemoryLimitError(
            f"the logits of {n} tokens are {n * n_vocab * 4} bytes, more than there is; give fewer ids"
        ) from None
    if n:
        stream = Scoring(ids, rows, Run(time.perf_counter()))
        scheduler.submit(stream)
        with Generation(stream, scheduler, owner=owner) as work:
            for _ in work:
                pass
        if work.finish_reason != "stop":
            raise EngineError("the model was closed while it computed logits")
    return rows
