"""Many requests on one engine: submit a stream, cancel it, ask how things are going, close.

    submit -> line -> [prefill thread: session, chunks] -> [decode thread: steps] -> the stream's queue -> its reader

Readers only take chunks out of queues and never touch the engine. The threads start with the first request.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..engine.types import Engine
from ..errors import EngineError
from .admission import Ledger
from .crew import Crew, takes_threads
from .options import ScheduleSettings
from .planner import Planner
from .session import PrefixCache, Sessions
from .stream import Stream

__all__ = ["Scheduler"]


class Scheduler:
    """Runs streams on an engine until it is closed. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        options: ScheduleSettings | None = None,
        *,
        prefix: PrefixCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.options = options or ScheduleSettings()
        self._engine = engine
        n_threads = int(getattr(engine, "n_threads", 1))
        kv: Any = engine.kv
        self.planner = Planner(
            self.options,
            n_threads=n_threads,
            n_batch=engine.n_batch,
            n_out=min(engine.n_batch, int(getattr(engine, "n_out", engine.n_batch))),
            ledger=Ledger(int(getattr(kv, "page_size", 64)), getattr(kv, "n_pages", None)),
            can_split=takes_threads(engine) and n_threads > 1,
            can_stop=hasattr(engine, "stop"),
        )
        n_seq = int(getattr(kv, "n_seq", 64))
        self.sessions = Sessions(engine, prefix, most_idle=max(1, min(8, n_seq - self.planner.max_streams)))
        self._crew = Crew(engine, self.planner, self.sessions, clock)
        self._changed = self._crew.changed
        self._pid = os.getpid()

    def submit(self, stream: Stream) -> None:
        """Let a stream run. Raises BusyError when too many wait, EngineError when closed or in a forked process."""
        self.check()
        planner = self.planner
        with self._changed:
            self.check()
            planner.line.join(stream, planner.max_streams - planner.n_active, self._retry_after_s)
            if not self._crew.threads:
                atexit.register(_close_at_exit, weakref.ref(self))  # memory must not go while a thread computes on it
                self._crew.begin()
            self._changed.notify_all()

    def check(self) -> None:
        """Raise EngineError where nothing can be asked of this scheduler."""
        if self.forked:
            raise EngineError("this process was forked from one with a loaded model; load the model again here")
        if self._crew.closing:
            raise EngineError("this model was closed; load it again to use it")
        if self._crew.failed is not None:
            raise EngineError(
                f"the scheduler failed ({self._crew.failed!r}); load the model again"
            ) from self._crew.failed

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that the model was loaded in: its threads are not here."""
        return os.getpid() != self._pid

    def _retry_after_s(self) -> float:
        planner = self.planner
        return max(1.0, self._crew.served_s * (len(planner.line) + 1) / planner.max_streams)

    def cancel(self, stream: Stream) -> None:
        """Ask a stream to end; does not wait for it. A forward that was for it alone stops in the middle.

        A destructor may call it in any thread: who holds the lock never waits for anything else, and may take it twice.
        """
        stream.cancelled = True
        if not self.forked and not stream.over:
            self._crew.interrupt()
            self._crew.wake()

    @property
    def here(self) -> bool:
        """Whether this is one of the scheduler's own threads, which must not wait for what it does itself."""
        return threading.current_thread() in self._crew.threads

    def measure(self) -> None:
        """Find out again how the cores are best shared, at the next steps at which both phases have work."""
        with self._changed:
            self.planner.sharing.measure()

    def stats(self) -> dict[str, Any]:
        """Figures of the scheduler, the sessions and the prefix cache."""
        with self._changed:
            figures = self.planner.stats()
        return {
            **figures,
            "forwards": dict(self._crew.forwards),
            "idle_sessions": len(self.sessions.idle),
            "pages_free": getattr(self._engine.kv, "free_pages", None),
            "prefix_cache": self.sessions.prefix.stats(),
        }

    def reset(self) -> None:
        """Forget idle conversations and cached prefixes."""
        self.sessions.clear()

    def close(self) -> None:
        """End all streams as cancelled and join the threads; a forward that runs is waited for. Closing twice is fine."""
        if not self.forked:
            self._crew.end()
            self.sessions.close()

    def abandon(self) -> None:
        """Nobody can ask for anything any more: let the threads end by themselves."""
        self._crew.closing = True
        if not self.forked:
            self._crew.wake()


def _close_at_exit(reference: weakref.ref[Scheduler]) -> None:
    scheduler = reference()
    if scheduler is not None:
        scheduler.close()
