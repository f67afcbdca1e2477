"""A planner played by one hand: lanes take the time that a formula says, on a clock that only the board moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from edgeinfer.generate.params import SamplingParams
from edgeinfer.schedule.admission import Ledger, level_of
from edgeinfer.schedule.options import ScheduleSettings
from edgeinfer.schedule.planner import Planner
from edgeinfer.schedule.run import Run
from edgeinfer.schedule.session import Session
from edgeinfer.schedule.stream import Stream
from edgeinfer.schedule.work import LANES, Work
from tests.fakes import ByteTokenizer

__all__ = ["Board", "cpu"]

Cost = Callable[[Work, bool], float]  # seconds of a forward, and whether the other lane runs


def cpu(work: Work, other: bool, *, n_threads: int = 2, serial: float = 0.2) -> float:
    """A small machine: 6 ms for the weights, 0.5 ms a row, tiles of 8, attention; a part that threads do not share."""
    rows = -(-work.rows // 8) * 8 if work.rows > 1 else 1
    whole = 0.006 + 0.0005 * rows + 2e-7 * work.looks
    return whole * (serial + (1 - serial) * n_threads / work.n_threads) * (1.1 if other else 1.0)


class Board:
    """Streams come in, forwards take their time, tokens fall out."""

    def __init__(
        self, cost: Cost = cpu, *, n_threads: int = 2, n_pages: int | None = None, n_ctx: int = 8192, **options: Any
    ) -> None:
        self.planner = Planner(
            ScheduleSettings(**options),
            n_threads=n_threads,
            n_batch=512,
            n_out=64,
            ledger=Ledger(64, n_pages),
            can_split=n_threads > 1,
        )
        self.cost, self.now, self.n_ctx = cost, 0.0, n_ctx
        self.running: dict[str, tuple[float, float, Work]] = {}  # lane -> (end, start, work)
        self.works: list[tuple[float, float, Work]] = []  # that have ended
        self.finished: list[Stream] = []

    def add(self, n_prompt: int, n_most: int, priority: str = "interactive") -> Stream:
        stream = Stream(
            [65] * n_prompt,
            SamplingParams(max_tokens=n_most, temperature=0),
            Run(self.now, lambda: self.now),
            ByteTokenizer(),
            n_vocab=260,
            n_ctx=self.n_ctx,
            level=level_of(priority),
        )
        self.planner.line.join(stream, self.planner.max_streams - self.planner.n_active, lambda: 1.0)
        return stream

    def _begin(self) -> None:
        planner = self.planner
        for stream in planner.leaving():
            planner.leave(stream)
            stream.cancel_chunk()
            self.finished.append(stream)
        while evicted := planner.evicted():
            for stream in evicted:
                stream.session = None
                planner.preempt(stream)
        while (coming := planner.next_in()) is not None:
            coming.session = Session(0, [])
            planner.come_in(coming)
        for lane in LANES:
            if lane not in self.running and (work := planner.plan(lane)) is not None:
                assert sum(planner.running.values()) <= planner.n_threads
                seconds = self.cost(work, bool(self.running))
                self.running[lane] = (self.now + seconds, self.now, work)

    def step(self) -> bool:
        """Let the forward that ends next end; False when nothing runs."""
        self._begin()
        if not self.running:
            return False
        lane = min(self.running, key=lambda name: self.running[name][0])
        end, start, work = self.running.pop(lane)
        self.now = end
        self.works.append((start, end, work))
        over = []
        for piece in work.pieces:
            stream, session = piece.stream, piece.stream.session
            assert session is not None
            assert self.planner.ledger.pages(len(stream.tokens)) <= stream.reserved
            held = len(session.ids)
            session.ids += stream.tokens[held : held + piece.n]
            assert piece.n_rows == int(stream.n_todo == 0)
            if not stream.n_todo:
                stream.run.times.append(self.now)
                stream.tokens.append(66)
                stream.answer.append(66)
                if len(stream.answer) == stream.n_most:
                    stream.over = True
                    over.append(stream)
        self.planner.done(work, start, end - start, self.now)
        for stream in over:
            self.planner.leave(stream)
        self.finished += over
        return True

    def run(self, until: Callable[[], bool] = lambda: False, most: int = 100_000) -> None:
        """Play until something is true, or nothing runs."""
        for _ in range(most):
            if until() or not self.step():
                return
        raise AssertionError("it does not come to an end")

    def gaps(self, stream: Stream, since: float = 0.0, to: float = float("inf")) -> list[float]:
        """The gaps of a stream that end in an interval of the clock."""
        times = stream.run.times
        return [b - a for a, b in itertools.pairwise(times) if since < b <= to]
