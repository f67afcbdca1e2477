"""What an answer measures while it runs, and the queue from it to its reader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from ..generate.chunk import Chunk
from ..metrics import Timings
from .overflow import Dropped

__all__ = ["Outbox", "Run"]


@dataclass
class Run:
    """What one answer measures and leaves behind; filled while it runs."""

    accepted: float  # clock reading when the request came in
    clock: Callable[[], float] = time.perf_counter
    finish_reason: str | None = None
    stopped_by: int | str | None = None  # the end token or the stop string that ended it
    limited_by: str | None = None  # what ended it with "length": "max_tokens" or "context"
    n_prompt: int = 0
    n_reused: int = 0
    n_prefill: int = 0
    n_preempted: int = 0  # times that it had to give its pages to another stream
    prefill_s: float = 0.0
    decode_s: float = 0.0
    started: float | None = None  # clock reading when its first forward began
    shown: float | None = None  # clock reading of the first text out
    ended: float | None = None
    times: list[float] = field(default_factory=list)  # clock reading of each token of the answer
    dropped: Dropped | None = None  # what was left out to make it fit the context
    divergence: Any = None  # where the prompt left a cached one, when it left it late

    def timings(self, load_s: float | None = None, compile_s: float | None = None) -> Timings:
        """The figures so far."""
        times = list(self.times)
        n_out = len(times)
        return Timings(
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_prefill=self.n_prefill,
            n_out=n_out,
            queue_s=None if self.started is None else self.started - self.accepted,
            ttft_s=None if self.shown is None else self.shown - self.accepted,
            prefill_s=self.prefill_s if self.n_prefill else None,
            decode_s=self.decode_s if n_out > 1 else None,
            t_first=times[0] if times else None,
            t_last=times[-1] if times else None,
            total_s=None if self.ended is None else self.ended - self.accepted,
            itl_s=tuple(late - early for early, late in itertools.pairwise(times)),
            load_s=load_s,
            compile_s=compile_s,
        )


class Outbox:
    """The queue from a stream to its reader: never full, since an answer is bounded, so nobody waits to put.

    `SimpleQueue.put` may be called from anywhere, destructors and signal handlers included.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[Chunk | BaseException | None] = SimpleQueue()
        self.on_put: Callable[[], None] | None = None  # tells an event loop that there is something

    def put(self, item: Chunk | BaseException | None) -> None:
        """Hand a chunk, an error or the end (None) to the reader."""
        self._items.put(item)
        tell = self.on_put
        if tell is not None:
            tell()

    def get(self) -> Chunk | BaseException | None:
        """Wait for the next item."""
        return self._items.get()

    def poll(self) -> tuple[bool, Chunk | BaseException | None]:
        """Whether there was an item, and the item."""
        try:
            return True, self._items.get_nowait()
        except Empty:
            return False, None
