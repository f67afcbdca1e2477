"""A scheduler over a scripted engine, asked like a person at a desk: prompts in, answers out."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from edgeinfer.generate.chunk import Chunk
from edgeinfer.generate.params import SamplingParams
from edgeinfer.schedule.admission import level_of
from edgeinfer.schedule.generation import AsyncGeneration, Generation
from edgeinfer.schedule.options import ScheduleSettings
from edgeinfer.schedule.overflow import Fitted
from edgeinfer.schedule.run import Run
from edgeinfer.schedule.scheduler import Scheduler
from edgeinfer.schedule.score import Scoring
from edgeinfer.schedule.stream import Stream
from tests.fakes import N_VOCAB, ByteTokenizer, ScriptedEngine

__all__ = ["Desk", "scripted", "text", "tokens", "wait_until"]


class Desk:
    """Answers prompts at temperature 0 unless told otherwise."""

    def __init__(
        self,
        engine: ScriptedEngine | None = None,
        tokenizer: ByteTokenizer | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        prefix: Any = None,
        **options: Any,
    ) -> None:
        self.engine = engine or ScriptedEngine()
        self.tokenizer = tokenizer or ByteTokenizer()
        self.clock = clock
        seam: Any = self.engine
        self.scheduler = Scheduler(seam, ScheduleSettings(**options), prefix=prefix, clock=clock)
        weakref.finalize(self, self.scheduler.abandon)  # as a model does: hundreds of desks are left behind

    def stream(
        self, prompt: Iterable[int], priority: str = "interactive", fitted: Fitted | None = None, **params: Any
    ) -> Stream:
        return Stream(
            list(prompt),
            SamplingParams(**{"temperature": 0, "seed": 1, **params}),
            Run(self.clock(), self.clock),
            self.tokenizer,
            n_vocab=self.engine.n_vocab,
            n_ctx=self.engine.n_ctx,
            level=level_of(priority),
            fitted=fitted,
        )

    def ask(self, prompt: Iterable[int], priority: str = "interactive", **params: Any) -> Generation:
        stream = self.stream(prompt, priority, **params)
        self.scheduler.submit(stream)
        return Generation(stream, self.scheduler, seed=7, owner=self)

    def ask_async(self, prompt: Iterable[int], **params: Any) -> AsyncGeneration:
        stream = self.stream(prompt, **params)
        self.scheduler.submit(stream)
        return AsyncGeneration(stream, self.scheduler, seed=7, owner=self)

    def answer(self, prompt: Iterable[int], **params: Any) -> tuple[list[Chunk], Run]:
        """Run one answer to its end."""
        asked = self.ask(prompt, **params)
        chunks = list(asked)
        run = asked._stream.run
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == run.finish_reason == asked.finish_reason
        return chunks, run

    def score(self, ids: list[int]) -> tuple[np.ndarray[Any, Any], Generation]:
        rows = np.zeros((len(ids), self.engine.n_vocab), np.float32)
        stream = Scoring(ids, rows, Run(self.clock(), self.clock))
        self.scheduler.submit(stream)
        return rows, Generation(stream, self.scheduler, owner=self)

    @property
    def ids(self) -> list[list[int]]:
        """What the idle sessions hold."""
        return [session.ids for session in self.scheduler.sessions.idle]

    def at_rest(self) -> bool:
        """Whether no stream is in, and none waits."""
        planner = self.scheduler.planner
        return not (planner.n_active or planner.running or len(planner.line))

    def close(self) -> None:
        self.scheduler.close()


def wait_until(what: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


def tokens(chunks: Iterable[Chunk]) -> list[int]:
    return [chunk.token for chunk in chunks if chunk.token is not None]


def text(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def scripted(pieces: list[bytes], clock: Callable[[], float] = time.perf_counter) -> Desk:
    """A desk whose engine answers a prompt of two tokens with pieces, then with EOS."""
    tokenizer = ByteTokenizer(pieces)
    ids = [N_VOCAB + i for i in range(len(pieces))]
    return Desk(ScriptedEngine.says(ids, after=2, n_vocab=tokenizer.n_vocab), tokenizer, clock=clock)
