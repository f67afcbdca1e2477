"""The two threads that run streams on an engine: one reads prompts, one writes answers; the planner says what is next.

Everything that both touch is guarded by one lock, which is never held while a forward runs, a session is opened or a
token is chosen, nor while any other lock is waited for. A thread that has nothing to do sleeps on a condition.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable

from ..engine.types import Batch, Engine, ForwardStopped, Logits
from ..errors import ContextOverflowError, EdgeInferError, EngineError
from ..generate.chunk import Chunk
from .planner import Planner
from .session import Session, Sessions
from .stream import Stream
from .work import LANES, Work

__all__ = ["Crew", "takes_threads"]


def takes_threads(engine: Engine) -> bool:
    """Whether a forward can be told on how many threads to run, and so two of them share the cores."""
    return "n_threads" in inspect.signature(engine.forward).parameters


class Crew:
    """Does what the planner says until it is told to close."""

    def __init__(self, engine: Engine, planner: Planner, sessions: Sessions, clock: Callable[[], float]) -> None:
        self.engine, self.planner, self.sessions, self._clock = engine, planner, sessions, clock
        self._takes_threads = takes_threads(engine)
        window = getattr(engine.config, "sliding_window", 0)
        self._shares_pieces = bool(window)  # what a window has passed can be shared no more when the prompt is read
        self.changed = threading.Condition()  # its lock may be taken again by a destructor that runs in its holder
        self.threads: list[threading.Thread] = []
        self._n_alive = 0
        self.closing = False
        self.failed: BaseException | None = None
        self.served_s = 1.0  # how long a stream is in, usually
        self.forwards = dict.fromkeys(LANES, 0)

    def begin(self) -> None:
        """Start the threads."""
        self._n_alive = len(LANES)
        for lane in LANES:
            thread = threading.Thread(target=self._live, args=(lane,), name=f"edgeinfer-{lane}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Join the threads; a forward that runs is waited for. Streams that are left end as cancelled."""
        with self.changed:
            self.closing = True
            threads, self.threads = self.threads, []
            self.interrupt()
            self.changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        self._end_rest()

    def _end_rest(self) -> None:
        """End the streams that are left as cancelled."""
        with self.changed:
            rest = self.all()
            for stream in rest:
                self.planner.leave(stream)
        self.dismiss(rest)

    def _live(self, lane: str) -> None:
        """A thread's whole life: do what the planner says, sleep when it says nothing."""
        try:
            while (deed := self._next(lane)) is not None:
                deed()
        except BaseException as error:  # a fault of the scheduler itself: nobody may be left waiting
            with self.changed:
                self.failed = self.failed or error
                self.changed.notify_all()
            for stream in self.all():
                stream.out.put(stream.fail(EngineError(f"the scheduler failed: {error!r}")))
        with self.changed:
            self._n_alive -= 1
            last = not self._n_alive
        if last and self.failed is None:
            self._end_rest()

    def _next(self, lane: str) -> Callable[[], None] | None:
        """What the lane's thread does next; None when it is to end."""
        planner = self.planner
        with self.changed:
            while not self.closing and self.failed is None:
                if leaving := planner.leaving():
                    for stream in leaving:
                        planner.leave(stream)
                    return lambda: self.dismiss(leaving)
                if evicted := planner.evicted():
                    sessions = [stream.session for stream in evicted]
                    for stream in evicted:
                        stream.session = None
                        planner.preempt(stream)
                    return lambda: self._keep(*sessions)
                if lane == "prefill" and (coming := planner.next_in()) is not None:
                    return lambda: self._open(coming)
                if (work := planner.plan(lane)) is not None:
                    if planner.calls:
                        self.changed.notify_all()
                    return lambda: self._run(work)
                self.changed.wait()
            return None

    def _open(self, stream: Stream) -> None:
        """Give a stream that comes in its session."""
        try:
            if stream.reuses:
                stream.session, divergence = self.sessions.take(stream.tokens)
                if not stream.run.times:
                    stream.run.n_reused, stream.run.divergence = len(stream.session.ids), divergence
            else:
                stream.session = self.sessions.new()
        except Exception as error:
            stream.doom = error
        with self.changed:
            self.planner.come_in(stream)
            self.changed.notify_all()

    def _run(self, work: Work) -> None:
        """One forward, and what its logits mean for its streams."""
        began = self._clock()
        batch = work.batch()
        for piece in work.pieces:
            if piece.stream.run.started is None:
                piece.stream.run.started = began
        started = self._clock()
        try:
            logits = self._forward(batch, work)
        except ForwardStopped:
            self._settle(work)  # by `interrupt`: what it was for has been cancelled
            self.wake()
        except ContextOverflowError as error:
            self._no_pages(work, error)
        except EngineError as error:
            self._fail(work, self.all(), error)
        except BaseException as error:
            self._fail(work, [piece.stream for piece in work.pieces], error)
        else:
            self._use(work, logits, began, self._clock() - started)

    def _forward(self, batch: Batch, work: Work) -> Logits:
        self.forwards[work.lane] += 1
        if self._takes_threads:
            return self.engine.forward(batch, work.lane, work.n_threads)
        return self.engine.forward(batch, work.lane)

    def _use(self, work: Work, logits: Logits, started: float, seconds: float) -> None:
        """Choose tokens, move streams on, and hand their chunks out."""
        out: list[tuple[Stream, Chunk | BaseException]] = []
        row = 0
        for piece in work.pieces:
            stream, session = piece.stream, piece.stream.session
            assert session is not None
            held = len(session.ids)
            session.ids += stream.tokens[held : held + piece.n]
            try:
                chunk = stream.evaluated(logits, row, piece.n, started, seconds)
            except Exception as error:
                out.append((stream, stream.fail(error)))
            else:
                if chunk is not None:
                    out.append((stream, chunk))
            row += piece.n_rows
        finished = [stream for stream, _ in out if stream.over]
        moved = [stream for stream, _ in out if stream.moved and not stream.over]
        for piece in work.pieces:
            stream, session = piece.stream, piece.stream.session
            if stream.over or stream.moved:
                self._put_away(stream)
            elif stream.reuses and session is not None:
                read = stream.writes and len(stream.answer) == 1  # others may find the prompt while it is answered
                if read or (self._shares_pieces and not stream.writes):
                    self._share(session)
        for stream, item in out:
            if not stream.over:
                stream.out.put(item)  # before the other thread can make the next one
        with self.changed:
            planner = self.planner
            waits, way, n_writing = bool(planner.waits), planner.sharing.way, len(planner.writing)
            planner.done(work, started, seconds, self._clock())
            for stream in finished:
                self._note_served(stream)
                planner.leave(stream)
            for stream in moved:
                planner.start_over(stream)
            if waits or moved or finished or planner.sharing.way != way or len(planner.writing) != n_writing:
                self.changed.notify_all()
        for stream, item in out:
            if stream.over:
                stream.out.put(item)  # now its pages are free, and its session can be taken up

    def _note_served(self, stream: Stream) -> None:
        run = stream.run
        if run.started is not None and run.ended is not None:
            self.served_s += 0.2 * (run.ended - run.started - self.served_s)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _put_away(self, stream: Stream) -> None:
        """Keep what a stream leaves in the cache."""
        session, stream.session = stream.session, None
        if session is not None:
            if stream.reuses:
                self._keep(session)
            else:
                self.sessions.drop(session)

    def _keep(self, *sessions: Session | None) -> None:
        for session in sessions:
            if session is not None:
                self._share(session)
                self.sessions.keep(session)
        self.wake()

    def _share(self, session: Session) -> None:
        try:
            self.sessions.share(session)
        except EdgeInferError:
            pass  # a cache that cannot take it is no reason to end an answer

    def dismiss(self, streams: list[Stream]) -> None:
        """End streams that were cancelled, or met an error that was not their own."""
        for stream in streams:
            self._put_away(stream)
            if not stream.over:
                stream.out.put(stream.cancel_chunk() if stream.doom is None else stream.fail(stream.doom))
        self.wake()

    def all(self) -> list[Stream]:
        """Every stream that is in or waits."""
        with self.changed:
            planner = self.planner
            coming = [planner.admitting] if planner.admitting is not None else []
            return [*planner.reading, *planner.writing, *planner.line, *coming]

    def _settle(self, work: Work) -> None:
        """A forward failed: make its sequences hold what their streams know of, and free its cores."""
        for piece in work.pieces:
            session = piece.stream.session
            if session is not None and not self.sessions.settle(session):
                piece.stream.session = None
        with self.changed:
            self.planner.release(work)

    def _fail(self, work: Work, streams: list[Stream], error: BaseException) -> None:
        """A forward failed: end these streams with its error, each when it is at rest."""
        self._settle(work)
        for stream in streams:
            stream.doom = error
        self.wake()

    def _no_pages(self, work: Work, error: ContextOverflowError) -> None:
        """The pool had no page where one was reserved: let idle sessions go, then the stream that is last in line.

        It happens where an engine's pool is not the one that was planned with.
        """
        self._settle(work)
        shed = self.sessions.shed()
        with self.changed:
            planner = self.planner
            last = max((piece.stream for piece in work.pieces), key=lambda s: s.place)
            session = None
            if not shed and planner.n_active == 1:
                last.doom = error
            elif not shed:
                session, last.session = last.session, None
            for piece in work.pieces:
                if piece.stream.session is None and piece.stream.doom is None:
                    planner.preempt(piece.stream)
        if session is not None:
            self.sessions.drop(session)
        self.wake()

    def interrupt(self) -> None:
        """Stop forwards in the middle that are for nobody any more, where the engine can."""
        stop = getattr(self.engine, "stop", None)
        if stop is not None:
            with self.changed:
                for lane, work in self.planner.in_hand.items():
                    if self.closing or all(piece.stream.cancelled for piece in work.pieces):
                        stop(lane)

    def wake(self) -> None:
        """Make the threads look again."""
        with self.changed:
            self.changed.notify_all()
