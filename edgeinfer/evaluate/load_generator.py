"""Load on a server of answers: requests are made when they are due, and what each one saw is written down.

At most `concurrency` requests are in flight; one that arrives while no place is free waits, and its wait counts, for its
arrival is the moment at which it was due. The same generator drives any `Target`: it must not know an engine or HTTP.
All times are seconds; those of a record count from the start of the run.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import BusyError, EdgeInferError, SettingError
from ..metrics import tpot
from .workload import Request

__all__ = ["Clock", "Record", "Run", "Stream", "Target", "run_load"]


class Stream(Protocol):
    """A request that a target works on: iterate for its token ids, each when it arrives (-1: the id is not known)."""

    def __iter__(self) -> Iterator[int]:
        """The tokens, as they come."""

    def cancel(self) -> None:
        """Ask for the end; any thread may."""

    def figures(self) -> dict[str, float | None]:
        """What the target itself says, when the stream has ended: any of wait_s, prefill_s, decode_s, n_reused."""


class Target(Protocol):
    """What load is put on."""

    name: str

    def start(self, request: Request) -> Stream:
        """Take a request. Raises BusyError when it is refused because too many wait."""


class Clock:
    """Time as the generator sees it; tests have their own."""

    def now(self) -> float:
        """A reading in seconds."""
        return time.perf_counter()

    def wait(self, until: float, stop: threading.Event) -> None:
        """Sleep until a reading, or until `stop` is set."""
        stop.wait(max(0.0, until - self.now()))


@dataclass(frozen=True)
class Record:
    """What one request saw. Times are seconds from the start of the run; None for what never happened."""

    index: int
    n_prompt: int
    arrival: float  # when it was due
    outcome: str  # done, cancelled, refused or failed
    started: float | None = None  # when the target took it; arrival to here is waiting for a place in flight
    token_times: tuple[float, ...] = ()
    end: float | None = None
    tokens: tuple[int, ...] = ()
    error: str = ""
    wait_s: float | None = None  # the target's own figures: waiting inside it, forwards of the prompt and of the answer
    prefill_s: float | None = None
    decode_s: float | None = None
    n_reused: int | None = None

    @property
    def n_out(self) -> int:
        """Tokens that arrived."""
        return len(self.token_times)

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return self.token_times[0] - self.arrival if self.token_times else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """The gaps between tokens."""
        times = self.token_times
        return tuple(b - a for a, b in itertools.pairwise(times))

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first."""
        return tpot(self.token_times[0], self.token_times[-1], self.n_out) if self.token_times else None


@dataclass(frozen=True)
class Run:
    """Every record of one run, in the order of the requests, and how it ended."""

    target: str
    concurrency: int
    records: tuple[Record, ...]
    wall_s: float  # first arrival to last end
    n_asked: int
    interrupted: bool = False


class _Driver:
    """The threads that keep at most `concurrency` requests in flight."""

    def __init__(
        self, target: Target, requests: Sequence[Request], clock: Clock, done: Callable[[Record], None] | None
    ):
        self._target, self._clock, self._done = target, clock, done
        self._waiting = iter(requests)
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self.stop = threading.Event()
        self.records: list[Record] = []
        self.start_s = clock.now()

    def work(self) -> None:
        """One place in flight: take the next request until there is none."""
        while not self.stop.is_set():
            with self._lock:
                request = next(self._waiting, None)
            if request is None:
                return
            record = self._ask(request)
            if record is None:
                return
            with self._lock:
                self.records.append(record)
                if self._done:
                    self._done(record)

    def cancel(self) -> None:
        """End every stream and take no more requests."""
        self.stop.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()

    def _now(self) -> float:
        return self._clock.now() - self.start_s

    def _ask(self, request: Request) -> Record | None:
        """Make one request and read its tokens; None when the run was stopped before it was due."""
        if request.due is not None:
            self._clock.wait(self.start_s + request.due, self.stop)
            if self.stop.is_set():
                return None
        arrival = self._now() if request.due is None else request.due
        started: float | None = None
        times: list[float] = []
        tokens: list[int] = []
        own: dict[str, float | None] = {}
        outcome, error = "failed", ""
        try:
            stream = self._target.start(request)
            started = self._now()
            with self._lock:
                self._streams.add(stream)
            if self.stop.is_set():
                stream.cancel()
            try:
                for token in stream:
                    times.append(self._now())
                    tokens.append(token)
                own = stream.figures()
            finally:
                with self._lock:
                    self._streams.discard(stream)
            outcome = "cancelled" if self.stop.is_set() and len(tokens) < request.max_tokens else "done"
        except BusyError as refusal:
            outcome, error = "refused", str(refusal)
        except (EdgeInferError, OSError) as failure:
            outcome, error = ("cancelled" if self.stop.is_set() else "failed"), str(failure)
        n_reused = own.get("n_reused")
        return Record(
            request.index,
            len(request.prompt),
            arrival,
            outcome,
            started,
            tuple(times),
            self._now(),
            tuple(tokens),
            error,
            own.get("wait_s"),
            own.get("prefill_s"),
            own.get("decode_s"),
            None if n_reused is None else int(n_reused),
        )


def run_load(
    target: Target,
    requests: Sequence[Request],
    concurrency: int,
    *,
    clock: Clock | None = None,
    done: Callable[[Record], None] | None = None,
) -> Run:
    """Make every request with at most `concurrency` in flight; `done` is told of each record as it ends.

    An interrupt (Ctrl-C) cancels what is in flight and returns what was measured so far; a second one is raised.
    Raises SettingError, and whatever unexpected error a target raised.
    """
    if concurrency < 1:
        raise SettingError(f"concurrency is {concurrency}; wanted at least 1 request in flight")
    driver = _Driver(target, requests, clock or Clock(), done)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            driver.work()
        except BaseException as error:  # a bug must not look like an answer
            failures.append(error)
            driver.cancel()

    threads = [
        threading.Thread(target=work, name=f"load-{i}", daemon=True) for i in range(min(concurrency, len(requests)))
    ]
    for thread in threads:
        thread.start()
    interrupted = False
    while True:
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)  # a join without a limit could not be interrupted on every platform
            break
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            driver.cancel()
    if failures:
        raise failures[0]
    records = tuple(sorted(driver.records, key=lambda record: record.index))
    ends = [record.end for record in records if record.end is not None]
    wall = max(ends) - min(record.arrival for record in records) if ends else 0.0
    return Run(target.name, concurrency, records, wall, len(requests), interrupted)
