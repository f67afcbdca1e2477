"""The rows of the concurrency table that look at a few streams: gaps, decoding together, cancels. See reach_concurrency.py.

Each function loads nothing: it is given a loaded model and returns seconds (or token rates).
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeinfer.evaluate.workload import make_requests
from edgeinfer.metrics import percentile

if TYPE_CHECKING:
    from edgeinfer.load import LLM

__all__ = ["EngineWatch", "Gaps", "cancel_times", "longest_gap", "tokens_together"]

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def prompt_of(pool: Sequence[int], n: int, seed: int) -> list[int]:
    """A prompt of n random tokens."""
    return list(make_requests(1, pool, (n, n), 1, seed=seed)[0].prompt)


class Reader(threading.Thread):
    """Reads an answer in a thread of its own and notes when each token came."""

    def __init__(self, llm: LLM, prompt: Sequence[int], max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.asked = time.perf_counter()
        self.answer = llm.generate(prompt, max_tokens=max_tokens, **GREEDY)
        self.times: list[float] = []
        self.ended: float | None = None
        self._changed = threading.Condition()
        self.start()

    def run(self) -> None:
        """Read to the end."""
        for chunk in self.answer:
            if chunk.token is not None:
                with self._changed:
                    self.times.append(time.perf_counter())
                    self._changed.notify_all()
        self.ended = time.perf_counter()

    def wait_for(self, n: int) -> None:
        """Wait until n tokens have come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.times) >= n or self.ended is not None, 600.0):
                raise SystemExit(f"no {n} tokens within 10 minutes")

    def finish(self) -> None:
        """Wait for the end."""
        self.join()


@dataclass(frozen=True)
class Gaps:
    """Gaps of a running stream in seconds: usual ones, alone, and the longest while another prompt was read."""

    usual: float
    longest: float
    read_s: float  # how long the other prompt took


def longest_gap(llm: LLM, pool: Sequence[int], n_long: int, seed: int, n_alone: int = 48) -> Gaps:
    """Let one stream run, have a prompt of n_long tokens read meanwhile, and look at the first one's gaps."""
    room = llm.n_ctx - 40
    stream = Reader(llm, prompt_of(pool, 32, seed), room)
    stream.wait_for(n_alone)
    alone = [b - a for a, b in zip(stream.times[8:], stream.times[9:n_alone], strict=False)]
    other = Reader(llm, prompt_of(pool, n_long, seed + 1), 1)
    other.finish()
    n_then = len(stream.times)
    stream.wait_for(n_then + 2)
    stream.answer.cancel()
    stream.finish()
    first = other.times[0]
    gaps = [
        b - a for a, b in zip(stream.times, stream.times[1:], strict=False) if b > other.asked and a < first
    ]  # every gap that the reading of the other prompt touches
    usual = percentile(alone, 50.0)
    if usual is None or not gaps:
        raise SystemExit("the running stream ended too early to be measured")
    return Gaps(usual, max(gaps), first - other.asked)


def tokens_together(llm: LLM, pool: Sequence[int], n_streams: int, n_out: int, seed: int) -> float:
    """Tokens a second of n streams together, counted while all of them are writing."""
    readers = [Reader(llm, prompt_of(pool, 32, seed + i), n_out) for i in range(n_streams)]
    for reader in readers:
        reader.finish()
    start, end = max(r.times[0] for r in readers), min(r.times[-1] for r in readers)
    n = sum(start < at <= end for reader in readers for at in reader.times)
    if end <= start:
        raise SystemExit("the streams were never all writing at once; use more tokens out")
    return n / (end - start)


class EngineWatch:
    """Stands before an engine's forward and knows whether one runs and when the last one ended."""

    def __init__(self, engine: Any) -> None:
        self._lock = threading.Lock()
        self.running = 0
        self.last_end = 0.0
        self._engine, self._forward = engine, engine.forward
        engine.forward = self._watched(engine.forward)

    def _watched(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.running += 1
            try:
                return forward(*args, **kwargs)
            finally:
                with self._lock:
                    self.running -= 1
                    self.last_end = time.perf_counter()

        return watched

    def idle_since(self, quiet_s: float = 0.03) -> float:
        """Wait until no forward has run for quiet_s; the clock reading when the last one ended."""
        while True:
            with self._lock:
                running, last = self.running, self.last_end
            if not running and time.perf_counter() - last >= quiet_s:
                return last
            time.sleep(0.001)

    def remove(self) -> None:
        """Stand aside."""
        self._engine.forward = self._forward


@contextmanager
def watching(llm: LLM) -> Iterator[EngineWatch]:
    """Watch the engine of a loaded model."""
    watch = EngineWatch(llm._engine)
    try:
        yield watch
    finally:
        watch.remove()


def cancel_times(llm: LLM, pool: Sequence[int], n: int, n_prompt: int, in_prefill: bool, seed: int) -> list[float]:
    """Seconds from `cancel()` to an engine at rest and a reader that knows, n times, at random moments.

    Cancels that came too late (the phase was over) are not counted and made again.
    """
    moments, number = random.Random(seed), 0
    times: list[float] = []
    with watching(llm) as watch:
        alone = Reader(llm, prompt_of(pool, n_prompt, seed), 1)
        alone.finish()
        read_s = alone.times[0] - alone.asked
        while len(times) < n:
            number += 1
            if number > 3 * n + 10:
                raise SystemExit(f"only {len(times)} of {n} cancels came in time")
            prompt = prompt_of(pool, n_prompt if in_prefill else 32, seed + number)
            reader = Reader(llm, prompt, 1 if in_prefill else 200)
            if in_prefill:
                time.sleep(moments.uniform(0.02, 0.8) * read_s)
            else:
                reader.wait_for(moments.randint(1, 40))
                time.sleep(moments.uniform(0.0, 0.01))
            at = time.perf_counter()
            reader.answer.cancel()
            reader.finish()
            rest = watch.idle_since()
            if reader.answer.finish_reason == "cancelled" and reader.ended is not None:
                times.append(max(rest, reader.ended) - at)
    return times
