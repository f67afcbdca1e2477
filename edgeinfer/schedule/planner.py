"""The scheduler's mind, without threads: which tokens the next forward of a lane holds, and on how many threads.

    prefill lane    chunks of prompts, first come first served by their place
    decode lane     a token of every stream that is answering; with `ride`, a chunk of a prompt besides; while nobody is
                    answered and prompts have waited long, chunks of the second prompt in line

A chunk is as large as its time allows. While somebody reads an answer, the time is the target gap between two tokens of
it; while nobody does, it is how long a cancel may have to wait. Small chunks waste time: reading the weights, and the keys
before them, costs the same for 8 rows as for 80. So the target is longer while prompts wait in line for each other. Two
prompts that are read abreast, each on a part of the threads, are read sooner than one after the other on all of them, since
lanes do not wait for each other; the first of them is later for it, by at most HOLD_PART of its wait so far. Every method is
called with the scheduler's lock held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .admission import Ledger, Line
from .company import HOLD_PART, Company
from .cost import GRAIN
from .forecast import MOST_ROWS, Forecast
from .options import ScheduleSettings
from .sharing import Sharing, Way
from .stream import Stream
from .work import Piece, Work

__all__ = ["Planner"]

MAX_WAIT_S = 0.026  # of a prompt's forward while nobody reads an answer, where it cannot be stopped
MAX_CHUNK_S = 0.25  # where it can; half of it on a part of the threads, since the others may be out of work by then
GAP_S, BUSY_GAP_S = 0.014, 0.026  # that nobody minds; while prompts wait in line for each other
GAPS, BUSY_GAPS = 3.2, 3.8  # the same, in usual gaps of one stream, where those are longer
LEAST_PART = 0.3  # of the time of a chunk on a part of the threads: what a shorter one may take where that fits better
GAIN = 1.05  # in rows a second that reading two prompts at once must promise: forecasts are no better than that
LEAST_GAPS = 1.5  # in usual gaps of all streams that are answering: or prompts would hardly be read beside them


class Planner:
    """Streams by what they wait for, and the rules of who is next."""

    def __init__(
        self,
        options: ScheduleSettings,
        *,
        n_threads: int,
        n_batch: int,
        n_out: int,
        ledger: Ledger,
        can_split: bool = False,
        can_stop: bool = False,
    ) -> None:
        self.options, self.ledger = options, ledger
        self.n_threads, self.n_batch, self.n_out = n_threads, n_batch, n_out
        self.max_streams = min(options.max_streams, n_out, n_batch)
        self.line = Line(options.max_queue, options.aging_s)
        self.reading: list[Stream] = []  # by place
        self.writing: list[Stream] = []
        self.admitting: Stream | None = None  # its session is being opened
        # A forward that can be stopped in the middle may be as long as those behind it in line can wait.
        self.max_wait_s = options.max_wait_s or (MAX_CHUNK_S if can_stop else MAX_WAIT_S)
        self.max_part_s = options.max_wait_s or (MAX_CHUNK_S / 2 if can_stop else 2 * MAX_WAIT_S)
        self.sharing = Sharing(options.sharing, n_threads, can_split)
        self.running: dict[str, int] = {}  # lane -> threads
        self.in_hand: dict[str, Work] = {}  # lane -> the forward that it runs
        self.waits: set[str] = set()  # lanes that wait for the other one's cores
        self.n_preempted = 0
        self.max_reading = self.max_writing = 0
        self.forecast = Forecast(n_threads)
        self.calls = False  # what was planned last leaves threads to the other lane, which may be asleep
        self._overhead_s = 0.0  # of a step beside its forward: sampling, text, queues
        self.company = Company(self._together_s, self.forecast.read_s, lambda: self._gap_s(GAP_S, GAPS))
        self._now = 0.0  # clock reading when the last forward ended
        self._last_step: float | None = None  # clock reading when the last step of the answers ended

    # ---- coming in --------------------------------------------------------------------------------------------------

    @property
    def n_active(self) -> int:
        """Streams that are in."""
        return len(self.reading) + len(self.writing) + (self.admitting is not None)

    def next_in(self) -> Stream | None:
        """The stream that comes in now, its pages reserved; None when there is none, or no room for it.

        Where there is no room, a stream of lower priority is asked to give its own up.
        """
        stream = self.line.head
        if stream is None or self.admitting is not None:
            return None
        if self.n_active < self.max_streams and self.ledger.admit(stream):
            self.line.leave(stream)
            self.admitting = stream
            return stream
        lower = [s for s in self._active() if s.level > stream.level and s.place > stream.place]
        if lower and not any(s.evicted for s in self._active()):
            max(lower, key=lambda s: s.place).evicted = True
        return None

    def come_in(self, stream: Stream) -> None:
        """The stream has its session: it reads, or goes on writing."""
        if self.admitting is stream:
            self.admitting = None
        self._sort(stream)
        self.max_reading = max(self.max_reading, len(self.reading))

    def _sort(self, stream: Stream) -> None:
        if stream.writes:
            self.writing.append(stream)
            self.max_writing = max(self.max_writing, len(self.writing))
        else:
            self.reading.append(stream)
            self.reading.sort(key=lambda s: s.place)

    def _active(self) -> Iterator[Stream]:
        yield from self.reading
        yield from self.writing

    def leave(self, stream: Stream) -> None:
        """Forget a stream that is over, wherever it is."""
        for streams in (self.reading, self.writing):
            if stream in streams:
                streams.remove(stream)
        if stream in self.line:
            self.line.leave(stream)
        if self.admitting is stream:
            self.admitting = None
        self.ledger.free(stream)

    def preempt(self, stream: Stream) -> None:
        """Send a stream back in line; what it has made stays its own. Its session is for the caller to keep."""
        stream.run.n_preempted += 1
        self.n_preempted += 1
        self.start_over(stream)

    def start_over(self, stream: Stream) -> None:
        """Let a stream come in again, at its old place in line, with another session."""
        self.leave(stream)
        stream.evicted = stream.moved = False
        stream.held_since = None
        self.line.back(stream)

    def leaving(self) -> list[Stream]:
        """Streams at rest that are to end: cancelled, or met by an error."""
        active = [s for s in self._active() if (s.cancelled or s.doom) and not s.in_flight]
        return active + [s for s in self.line if s.cancelled or s.doom]

    def evicted(self) -> list[Stream]:
        """Streams at rest that are to make room: asked to, or without a page for their next token."""
        chosen = [s for s in self._active() if s.evicted and not s.in_flight]
        for stream in self.writing:
            if stream.in_flight or stream in chosen or self.ledger.grow(stream):
                continue
            at_rest = [s for s in self._active() if not s.in_flight and s not in chosen]
            chosen.append(max(at_rest, key=lambda s: s.place))
            break  # what it gives back may be enough
        return chosen

    # ---- forwards ---------------------------------------------------------------------------------------------------

    def plan(self, lane: str) -> Work | None:
        """The lane's next forward; None when it has no work, or must wait for cores."""
        self.waits.discard(lane)
        self.calls = False
        work = self._plan_prefill() if lane == "prefill" else self._plan_decode()
        if work is not None:
            for piece in work.pieces:
                piece.stream.in_flight = True
            self.running[lane] = work.n_threads
            self.in_hand[lane] = work
        return work

    def _plan_prefill(self) -> Work | None:
        ready, other, way = self._ready(), self.running.get("decode", 0), self._way()
        beside = self._beside
        if not ready:
            if beside:
                self.waits.add("prefill")
            return None
        n, budget_s = self.n_threads, self.max_wait_s
        if way.name == "whole":
            budget_s = math.inf
        elif self.writing:
            if way.name == "ride":
                return None  # the decode lane takes them along
            n, budget_s = way.n_prefill, self._part_s()
        elif beside:
            n -= other
        elif self._abreast():
            n, self.calls = way.n_prefill, not other
        if n < 1 or other + n > self.n_threads:
            self.waits.add("prefill")
            return None
        work = Work("prefill", n, [], way if self.writing or n < self.n_threads else None)
        self._add_chunk(work, ready, budget_s)
        if not work.pieces:
            self.waits.add("prefill")
            return None
        return work

    def _part_s(self) -> float:
        """How long a chunk on a part of the threads may take: an equal share of the time until all threads are free.

        Or the answers' threads would have nothing to do until a chunk that began late has ended as well.
        """
        left_s = max(s.n_most - len(s.answer) for s in self.writing) * self._together_s(self.writing)
        n_chunks = math.ceil(left_s / self.max_part_s)
        return max(left_s / n_chunks, LEAST_PART * self.max_part_s) if n_chunks else self.max_part_s

    def _plan_decode(self) -> Work | None:
        if not self.writing:
            return self._plan_beside()
        other, way = self.running.get("prefill", 0), self._way()
        both = bool(self.reading)
        if way.name == "whole" and both:
            other = self.n_threads  # as if the prompts had them all
        elif 0 < other < self.n_threads and way.n_prefill != other:
            way = Way("split", other, self.n_threads - other)  # a chunk of the way before runs still: no need to wait
        n_threads = way.n_decode if way.name == "split" and (both or other) else self.n_threads
        if other + n_threads > self.n_threads:
            self.waits.add("decode")
            return None
        pieces = [Piece(s, 1, 1) for s in self.writing]
        looks = sum(s.n_held for s in self.writing)
        n, shared = len(pieces), way if both else None
        work = Work("decode", n_threads, pieces, shared, n_steps=n, rows=n, looks=looks, spans=looks)
        if both and way.name == "ride":
            self._add_chunk(work, self._ready(), self.target_gap_s() - self._overhead_s)
        return work

    # ---- two prompts abreast ----------------------------------------------------------------------------------------

    @property
    def _beside(self) -> bool:
        """Whether the decode lane reads a prompt now."""
        work = self.in_hand.get("decode")
        return work is not None and not work.n_steps

    def _abreast(self) -> bool:
        """Whether two prompts are to be read at once: nobody is answered, it is quicker, and the first can bear it."""
        if self.writing or not self._splits:
            return False
        first, second, *_ = [*(s for s in self.reading if s.held_since is None), None, None]
        if first is None or second is None or first.level != second.level:
            return False
        way, rate = self.sharing.way, self.forecast.rows_per_s
        part = rate(first.n_held, way.n_prefill, self.max_wait_s)
        both = rate(first.n_held, self.n_threads, self.max_wait_s)
        if not (part and both) or part + rate(first.n_held, way.n_decode, self.max_wait_s) < GAIN * both:
            return False
        return first.n_todo / part - first.n_todo / both <= HOLD_PART * (self._now - first.run.accepted)

    def _plan_beside(self) -> Work | None:
        """The decode lane's forward while nobody is answered: of a prompt, the second in line."""
        if not self._splits:
            return None
        other, way, ready = self.running.get("prefill", 0), self.sharing.way, self._ready()
        if other <= way.n_prefill:
            work = Work("decode", way.n_decode if other else self.n_threads, [], way)
            self._add_ends(work, ready)
            if work.pieces:
                return work
        begins = "prefill" in self.in_hand and any(piece.n_rows for piece in self.in_hand["prefill"].pieces)
        if begins or not self._abreast():
            return None  # an answer that begins there goes on here
        if other > way.n_prefill:
            self.waits.add("decode")
            return None
        work = Work("decode", way.n_decode, [], way)
        second = ready if other else ready[1:]  # the first is the prefill lane's
        if second:
            self._add_chunk(work, second, self.max_wait_s)
            if any(piece.n_rows for piece in work.pieces):
                self._add_ends(work, self._ready())  # of those that were held for it
        return work if work.pieces else None

    def _add_ends(self, work: Work, streams: list[Stream]) -> None:
        """Add the last rows of prompts, which were left for the decode lane: it goes on with their answers at once."""
        taken = [piece.stream for piece in work.pieces]
        n_out = self.n_out - sum(piece.n_rows for piece in work.pieces)
        for stream in streams:
            n = stream.n_todo
            if stream in taken or n > GRAIN or stream.wants_all_rows:
                continue
            if work.rows + n > self.n_batch or n_out < 1:
                break
            work.add_chunk(stream, n, 1)
            n_out -= 1

    def _ready(self) -> list[Stream]:
        """Prompts that may be read on now, in order."""
        return self.company.ready(self.reading, self.writing, self._splits, self._now)

    @property
    def _splits(self) -> bool:
        """Whether it is settled that answers have cores of their own."""
        return self.sharing.way.name == "split" and not self.sharing.measuring

    @property
    def busy(self) -> bool:
        """Whether prompts wait in line for each other."""
        return len(self.reading) > 1

    def _way(self) -> Way:
        """How the cores are shared now: as was chosen, but not where the answers alone would take too long on a part."""
        way = self.sharing.way
        if way.name != "split" or self.sharing.measuring:
            return way
        gap = self.forecast.step_s(self.writing, way.n_decode, True) + self._overhead_s
        return way if gap <= self.target_gap_s() else self.sharing.ride

    def _add_chunk(self, work: Work, streams: list[Stream], budget_s: float) -> None:
        """Add prompts to a forward, in order, as far as it stays within budget_s."""
        most = self.n_batch - work.rows
        if budget_s == math.inf:
            room = most
        else:
            most = min(most, MOST_ROWS)
            model = self.forecast.model(work.n_threads, work.shares)
            room = model.fit(budget_s, streams[0].n_held, most, rows=work.rows, looks=work.looks, spans=work.spans)
        n_out = self.n_out - work.n_steps
        parts = work.lane == "prefill" and (self._beside or (not self.writing and work.n_threads < self.n_threads))
        for stream in streams:
            n = min(stream.n_todo, room)
            if stream.wants_all_rows:
                n = min(n, n_out)
            elif 0 < stream.n_todo - n < GRAIN and n >= 2 * GRAIN:
                n -= GRAIN  # rather than leave a few rows that cost as much as a tile
            if n == stream.n_todo and self._splits:
                n -= self.company.held_rows(stream, n, self.reading, self.writing, self._now)
            if n == stream.n_todo and parts and not stream.wants_all_rows:
                if n <= GRAIN:
                    continue
                n -= GRAIN  # for the decode lane, when it has read its chunk: an answer that has begun cannot wait
            last = n == stream.n_todo
            n_rows = n if stream.wants_all_rows else int(last)
            if n < 1 or n_rows > n_out:
                break
            work.add_chunk(stream, n, n_rows)
            n_out -= n_rows
            room -= n
            if not last or room < 1:
                break

    def _together_s(self, streams: list[Stream]) -> float:
        """What the decode lane's step of these streams is expected to take when all that they hold now is read."""
        return self.forecast.together_s(streams, self.sharing.way.n_decode)

    # ---- what forwards taught ---------------------------------------------------------------------------------------

    def usual_gap_s(self) -> float:
        """The gap between two tokens of the streams that are answering, if nothing else ran."""
        return self.forecast.step_s(self.writing, self.n_threads) + self._overhead_s

    def target_gap_s(self) -> float:
        """The gap that chunks are cut for."""
        least, gaps = (BUSY_GAP_S, BUSY_GAPS) if self.busy else (GAP_S, GAPS)
        return self._gap_s(least, gaps)

    def _gap_s(self, least: float, gaps: float) -> float:
        if self.options.target_gap_s is not None:
            return self.options.target_gap_s
        one = self.forecast.step_s(self.writing[:1], self.n_threads) + self._overhead_s
        return max(least, gaps * one, LEAST_GAPS * self.usual_gap_s())

    def done(self, work: Work, started: float, seconds: float, now: float) -> None:
        """A forward has ended and its rows were used: learn from it, and sort its streams to where they go on."""
        self.release(work)
        self._now = now
        if seconds > 0:
            self.forecast.note(work, seconds)
        gap = None
        if work.n_steps:
            self._overhead_s += 0.2 * (min(now - started - seconds, 0.1) - self._overhead_s)
            gap = None if self._last_step is None else now - self._last_step
            self._last_step = now
        for piece in work.pieces:
            stream = piece.stream
            if not stream.over and stream in self.reading and stream.writes:
                self.reading.remove(stream)
                self._sort(stream)
        both = bool(self.reading and self.writing)
        if not self.writing:
            self._last_step = None
        if not both or work.way is None:
            self.sharing.interrupted()
        elif self.sharing.note(work.way, now, work.rows - work.n_steps, work.chunk_looks, work.n_steps, gap):
            token_s = self.forecast.step_s(self.writing, self.n_threads) / len(self.writing)
            self.sharing.choose(self.forecast.row_s, token_s, self.target_gap_s())

    def release(self, work: Work) -> None:
        """A forward has ended, well or not: its cores and streams are free."""
        self.running.pop(work.lane, None)
        self.in_hand.pop(work.lane, None)
        for piece in work.pieces:
            piece.stream.in_flight = False

    def stats(self) -> dict[str, Any]:
        """Counts now and so far, what was learnt, and how the cores are shared."""
        return {
            "waiting": len(self.line),
            "reading": len(self.reading),
            "writing": len(self.writing),
            "most_writing": self.max_writing,
            "max_streams": self.max_streams,
            "refused": self.line.n_refused,
            "preempted": self.n_preempted,
            "pages_reserved": self.ledger.reserved,
            "pages": self.ledger.n_pages,
            "overhead_ms": round(1e3 * self._overhead_s, 3),
            "usual_gap_ms": round(1e3 * self.usual_gap_s(), 3),
            "target_gap_ms": round(1e3 * self.target_gap_s(), 3),
            "sharing": self.sharing.stats(),
            "forward_ms": self.forecast.figures(),
        }
