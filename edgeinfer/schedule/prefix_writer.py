"""A thread that copies cached prefixes to disk when the engine has nothing better to do. Knows no tree and no request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .page_kv import PageKV
from .prefix_store import PrefixStore
from .prefix_tree import Ids, Page

__all__ = ["PrefixWriter"]

_IDLE_S = 0.5  # nobody has used the cache for so long: time to write
_WAIT_S = 20.0  # but no job waits longer, however busy the engine is
_MOST_JOBS = 4  # each holds pages that nothing else can use meanwhile


@dataclass
class _Job:
    ids: Ids
    pages: list[Page]  # held for this job
    queued: float = field(default_factory=time.monotonic)


class PrefixWriter:
    """Takes prefixes with held pages, writes those that are not on disk yet, and gives the references back."""

    def __init__(self, kv: PageKV, store: PrefixStore, done: Callable[[], None] | None = None) -> None:
        """`done` is called after each job, for tests."""
        self._kv, self._store, self._done = kv, store, done
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._used = 0.0
        self._at_work = False
        self._hurry = False
        self._closed = False
        self._reading = threading.Lock()  # held while pages are copied out of the KV cache

    def stir(self) -> None:
        """Note that the cache is in use: writing waits until it is not."""
        self._used = time.monotonic()

    def put(self, ids: Ids, pages: list[Page]) -> bool:
        """Queue a prefix, taking its held pages over; False, with the pages still the caller's, when the queue is full."""
        with self._changed:
            if self._closed or len(self._jobs) >= _MOST_JOBS or not self._store.writable:
                return False
            self._jobs.append(_Job(ids, pages))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="edgeinfer-prefix-writer", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter is on its way out
                    self._jobs.pop()
                    return False
                self._thread = thread
            self._changed.notify_all()
            return True

    def flush(self, wait_s: float) -> bool:
        """Write what is queued without waiting for idleness; False when it took longer than wait_s."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._jobs and not self._at_work, wait_s)
            self._hurry = False
            return done

    def close(self, wait_s: float) -> None:
        """Write what is queued for at most wait_s, then stop; no page is read after this returns."""
        self.flush(wait_s)
        with self._changed:
            self._closed = True
            jobs, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        with self._reading:  # whoever reads a page now ends first
            pass
        for job in jobs:
            self._kv.drop(job.pages)

    def _run(self) -> None:
        while True:
            with self._changed:
                job = self._next()
                if job is None:
                    return
                self._at_work = True
            try:
                self._write(job)
            finally:
                with self._changed:
                    self._at_work = False
                    self._changed.notify_all()
                if self._done is not None:
                    self._done()

    def _next(self) -> _Job | None:
        """Wait, with the lock held, for a job whose time has come; None when closed."""
        while not self._closed:
            if not self._jobs:
                self._changed.wait()
                continue
            now = time.monotonic()
            due = min(self._used + _IDLE_S, self._jobs[0].queued + _WAIT_S)
            if self._hurry or now >= due:
                return self._jobs.popleft()
            self._changed.wait(due - now)
        return None

    def _write(self, job: _Job) -> None:
        try:
            first = self._store.covered(job.ids)
            if first < len(job.pages):
                self._store.put(job.ids, self._contents(job.pages[first:]), first)
        except _Closed:
            pass
        except Exception as error:
            self._store.turn_off(f"{type(error).__name__}: {error}")
        finally:
            self._kv.drop(job.pages)

    def _contents(self, pages: list[Page]) -> Iterator[bytes]:
        """The pages' contents, copied one at a time: a long prefix of a large model is hundreds of megabytes."""
        for page in pages:
            with self._reading:
                if self._closed:
                    raise _Closed
                data = self._kv.export(page)
            yield data


class _Closed(Exception):
    """The cache was closed while a prefix was being written."""
