"""The load generator on a fake target and a clock that only moves when everybody sleeps: exact numbers."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edgeinfer.errors import BusyError, EngineError, SettingError
from edgeinfer.evaluate.contest import FIGURES, Contestant, contest, warm_up
from edgeinfer.evaluate.load_generator import Clock, Record, Run, run_load
from edgeinfer.evaluate.load_report import summarise
from edgeinfer.evaluate.workload import Arrivals, Request, make_requests, parse_arrivals

POOL = range(1000, 2000)


class VirtualClock(Clock):
    """Time that stands still while any of the run's threads works, and jumps to the next wake-up when all sleep."""

    def __init__(self, n_threads: int) -> None:
        self._n, self._now = n_threads, 0.0
        self._changed = threading.Condition()
        self._seen: set[threading.Thread] = set()
        self._wakes: dict[threading.Thread, float] = {}

    def now(self) -> float:
        self._meet()
        return self._now

    def _meet(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._seen.add(threading.current_thread())

    def wait(self, until: float, stop: threading.Event) -> None:
        self._meet()
        me = threading.current_thread()
        with self._changed:
            self._wakes[me] = max(until, self._now)
            while self._wakes[me] > self._now and not stop.is_set():
                working = [t for t in self._seen if t.is_alive() and t not in self._wakes]
                if len(self._seen) == self._n and not working:
                    self._now = min(self._wakes.values())
                if self._wakes[me] > self._now:
                    self._changed.wait(0.001)
            del self._wakes[me]


class FakeTarget:
    """Reads a prompt at 100 tokens a second and writes a token every 0.1 s, however many ask at once."""

    name = "fake"

    def __init__(self, clock: VirtualClock, most: int = 99, fail: int = -1) -> None:
        self.clock, self.most, self.fail = clock, most, fail
        self.in_flight = self.peak = 0
        self.asked: list[Request] = []
        self.after: Any = lambda index, n_out: None

    def start(self, request: Request) -> FakeStream:
        self.asked.append(request)
        if self.in_flight >= self.most:
            raise BusyError("the model is busy: 2 requests wait already")
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        return FakeStream(self, request)


class FakeStream:
    def __init__(self, target: FakeTarget, request: Request) -> None:
        self.target, self.request = target, request
        self.stop = threading.Event()

    def __iter__(self) -> Iterator[int]:
        clock, request = self.target.clock, self.request
        try:
            seconds = len(request.prompt) / 100
            for n_out in range(1, request.max_tokens + 1):
                clock.wait(clock.now() + seconds, self.stop)
                if self.stop.is_set():
                    return
                seconds = 0.1
                if request.index == self.target.fail and n_out == 3:
                    raise EngineError("step 3 went wrong")
                yield n_out
                self.target.after(request.index, n_out)
        finally:
            self.target.in_flight -= 1

    def cancel(self) -> None:
        self.stop.set()

    def figures(self) -> dict[str, float | None]:
        return {"prefill_s": len(self.request.prompt) / 100, "decode_s": 0.5, "n_reused": 3}


def prompts(*lengths: int, max_tokens: int = 3, due: tuple[float | None, ...] = ()) -> list[Request]:
    return [Request(i, (7,) * n, max_tokens, due[i] if due else None) for i, n in enumerate(lengths)]


def load(requests: list[Request], concurrency: int, **target: Any) -> tuple[Run, FakeTarget]:
    clock = VirtualClock(min(concurrency, len(requests)))
    fake = FakeTarget(clock, **target)
    return run_load(fake, requests, concurrency, clock=clock), fake


def test_one_request_is_recorded_exactly() -> None:
    run, _ = load(prompts(50), 1)
    (record,) = run.records
    assert record == Record(
        index=0,
        n_prompt=50,
        arrival=0.0,
        outcome="done",
        started=0.0,
        token_times=pytest.approx((0.5, 0.6, 0.7)),
        end=pytest.approx(0.7),
        tokens=(1, 2, 3),
        prefill_s=0.5,
        decode_s=0.5,
        n_reused=3,
    )
    assert record.ttft_s == pytest.approx(0.5)
    assert record.itl_s == pytest.approx((0.1, 0.1))
    assert record.tpot_s == pytest.approx(0.1)
    assert run.wall_s == pytest.approx(0.7)


def test_closed_arrivals_keep_the_places_full() -> None:
    run, target = load(prompts(100, 200, 100, 100), 2)
    assert target.peak == 2
    # the first place: 0 to 1.2; the second: 0 to 2.2; then 1.2 to 2.4 and 2.2 to 3.4
    assert [record.arrival for record in run.records] == pytest.approx([0.0, 0.0, 1.2, 2.2])
    assert [record.ttft_s for record in run.records] == pytest.approx([1.0, 2.0, 1.0, 1.0])
    assert run.wall_s == pytest.approx(3.4)


def test_the_wait_for_a_place_in_flight_counts() -> None:
    run, _ = load(prompts(100, 100, due=(0.0, 0.5)), 1)
    late = run.records[1]
    assert late.arrival == 0.5
    assert late.started == pytest.approx(1.2)
    assert late.ttft_s == pytest.approx(1.7)  # 0.7 for the place, 1.0 for its prompt
    assert run.wall_s == pytest.approx(2.4)


def test_the_wall_clock_starts_with_the_first_arrival() -> None:
    run, _ = load(prompts(100, due=(2.0,)), 1)
    assert run.records[0].ttft_s == pytest.approx(1.0)
    assert run.wall_s == pytest.approx(1.2)


def test_summary_is_exact_and_fits_json() -> None:
    run, _ = load(prompts(100, 200, 100, 100), 2)
    summary = summarise(run)
    assert (summary.n_asked, summary.n_done, summary.n_prompt_tokens, summary.n_out_tokens) == (4, 4, 500, 12)
    assert summary.n_reused_tokens == 12
    assert summary.total_tok_s == pytest.approx(512 / 3.4)
    assert summary.out_tok_s == pytest.approx(12 / 3.4)
    assert summary.requests_s == pytest.approx(4 / 3.4)
    assert summary.itl_s.n == 8
    assert summary.ttft_s.p50 == pytest.approx(1.0)
    assert summary.ttft_s.p99 == pytest.approx(1.97)
    assert summary.ttft_s.max == pytest.approx(2.0)
    document = json.loads(json.dumps(summary.as_dict(), allow_nan=False))
    assert document["itl_s"]["p99"] == pytest.approx(0.1)
    assert document["wait_s"] == {"n": 0, "p50": None, "p95": None, "p99": None, "max": None}


def test_one_token_has_no_gap_and_no_tpot() -> None:
    summary = summarise(load(prompts(10, max_tokens=1), 1)[0])
    assert (summary.itl_s.p99, summary.tpot_s.p50) == (None, None)
    assert summary.ttft_s.p50 == pytest.approx(0.1)


def test_refused_requests_are_counted_and_make_no_figures() -> None:
    run, _ = load(prompts(100, 100, due=(0.0, 0.5)), 2, most=1)
    assert [record.outcome for record in run.records] == ["done", "refused"]
    summary = summarise(run)
    assert (summary.n_refused, summary.ttft_s.n, summary.n_prompt_tokens) == (1, 1, 100)
    assert summary.errors == ("the model is busy: 2 requests wait already",)


def test_a_failed_request_keeps_what_it_saw_and_the_load_goes_on() -> None:
    run, _ = load(prompts(100, 100), 1, fail=0)
    first, second = run.records
    assert (first.outcome, first.n_out, first.error) == ("failed", 2, "step 3 went wrong")
    assert second.outcome == "done"


def test_a_bug_in_a_target_is_not_an_answer() -> None:
    clock = VirtualClock(1)
    target = FakeTarget(clock)

    def broken(index: int, n_out: int) -> None:
        raise ZeroDivisionError

    target.after = broken
    with pytest.raises(ZeroDivisionError):
        run_load(target, prompts(10, 10), 1, clock=clock)


def test_done_is_told_of_every_record() -> None:
    clock, seen = VirtualClock(2), []
    run_load(FakeTarget(clock), prompts(10, 20, 30), 2, clock=clock, done=lambda record: seen.append(record.index))
    assert sorted(seen) == [0, 1, 2]


class SlowTarget(FakeTarget):
    """The fake on a real clock, a hundred times faster."""

    def __init__(self) -> None:
        real: Any = _Hundredfold()
        super().__init__(real)


class _Hundredfold(Clock):
    def wait(self, until: float, stop: threading.Event) -> None:
        stop.wait(max(0.0, until - self.now()) / 100)


def test_an_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SlowTarget()
    join, interrupts = threading.Thread.join, itertools.count()

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        if next(interrupts) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    run = run_load(target, prompts(*[10] * 500, max_tokens=1000), 2)
    assert run.interrupted
    assert 1 <= len(run.records) <= 4
    assert run.records[-1].outcome == "cancelled"
    assert 0 < run.records[-1].n_out < 1000
    assert summarise(run).interrupted
    assert target.in_flight == 0


def test_a_load_without_requests_in_flight_is_refused() -> None:
    with pytest.raises(SettingError, match="concurrency is 0"):
        run_load(SlowTarget(), prompts(1), 0)


# ---- what a load consists of ----------------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_load() -> None:
    rule = Arrivals("poisson", rate=4.0)
    one = make_requests(40, POOL, (32, 2048), 128, arrivals=rule, seed=5)
    assert one == make_requests(40, POOL, (32, 2048), 128, arrivals=rule, seed=5)
    assert one != make_requests(40, POOL, (32, 2048), 128, arrivals=rule, seed=6)
    lengths = [len(request.prompt) for request in one]
    assert min(lengths) >= 32
    assert max(lengths) <= 2048
    assert len(set(lengths)) > 30
    assert all(token in POOL for request in one for token in request.prompt)


def test_lengths_reach_both_ends() -> None:
    lengths = {len(request.prompt) for request in make_requests(60, POOL, (3, 5), 1)}
    assert lengths == {3, 4, 5}


def test_prompts_share_no_beginning_unless_asked() -> None:
    apart = make_requests(30, POOL, (200, 300), 1)
    assert len({request.prompt[:4] for request in apart}) == 30
    shared = make_requests(30, POOL, (200, 300), 1, n_shared=100, bos=1)
    assert len({request.prompt[:101] for request in shared}) == 1
    assert len({request.prompt[101:105] for request in shared}) == 30
    assert {request.prompt[0] for request in shared} == {1}
    assert all(200 <= len(request.prompt) <= 300 for request in shared)


def test_poisson_arrivals_have_the_stated_rate() -> None:
    times = [time for time in Arrivals("poisson", rate=4.0).times(4000, 1) if time is not None]
    assert times == sorted(times)
    assert times[-1] / 4000 == pytest.approx(0.25, rel=0.05)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # exp(-1): exponential


def test_bursts_arrive_together() -> None:
    assert Arrivals("burst", size=3, period_s=2.0).times(7, 0) == [0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 4.0]
    assert Arrivals().times(2, 0) == [None, None]


@pytest.mark.parametrize("text", ["closed", "poisson:2.5", "burst:8@5"])
def test_arrival_rules_can_be_written_and_read(text: str) -> None:
    assert str(parse_arrivals(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "open", "closed:1", "poisson", "poisson:0", "poisson:-1", "poisson:inf", "poisson:nan"),
        *("burst:0@1", "burst:3", "burst:x@1", "burst:3@-1"),
    ],
)
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="wanted closed, poisson:RATE"):
        parse_arrivals(text)


@pytest.mark.parametrize(("n", "lengths", "out"), [(0, (1, 2), 1), (1, (0, 2), 1), (1, (3, 2), 1), (1, (1, 2), 0)])
def test_an_empty_load_is_refused(n: int, lengths: tuple[int, int], out: int) -> None:
    with pytest.raises(SettingError, match="cannot be made"):
        make_requests(n, POOL, lengths, out)


# ---- taking turns ---------------------------------------------------------------------------------------------------


class _Opened:
    """A target that answers in no time; its gaps are what the record says they are not: it notes opening and closing."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __enter__(self) -> _Opened:
        self.log.append(f"open {self.name}")
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(f"close {self.name}")

    def start(self, request: Request) -> Any:
        self.log.append(f"{self.name} {len(request.prompt)}x{request.max_tokens}")
        return _Instant(request)


class _Instant:
    def __init__(self, request: Request) -> None:
        self.request = request

    def __iter__(self) -> Iterator[int]:
        for token in range(self.request.max_tokens):
            time.sleep(0.001)
            yield token

    def cancel(self) -> None: ...

    def figures(self) -> dict[str, float | None]:
        return {}


def test_targets_take_turns_and_the_order_turns_round() -> None:
    log: list[str] = []
    entered = [Contestant(name, lambda name=name: _Opened(name, log)) for name in "ab"]  # type: ignore[misc]
    begun: list[tuple[str, int]] = []
    assert contest(entered, prompts(4, 5), 1, runs=2, begin=lambda c, n: begun.append((c.name, n)))
    assert begun == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert [line for line in log if "open" in line] == ["open a", "open b", "open b", "open a"]
    assert log[:6] == ["open a", "a 5x16", "a 4x16", "a 4x3", "a 5x3", "close a"]  # warmed up, then the load
    assert [len(contestant.runs) for contestant in entered] == [2, 2]
    assert entered[0].ratio(entered[0], FIGURES[0]) == 1.0
    document = json.loads(json.dumps(entered[0].as_dict(), allow_nan=False))
    assert document["over_runs"]["itl_p99_s"]["n"] == 2
    assert len(document["warm_up_s"]) == 2


def test_ratios_say_how_many_times_better() -> None:
    def measured(gap: float, rate: float) -> Contestant:
        times = (0.0, gap)
        record = Record(0, 8, 0.0, "done", token_times=times, end=gap)
        contestant: Any = Contestant("x", lambda: None)  # type: ignore[arg-type, return-value]
        contestant.runs.append(summarise(Run("x", 1, (record,), 10.0 / rate, 1)))
        return contestant

    fast, slow = measured(0.1, 4.0), measured(0.4, 1.0)
    by_name = {figure.name: figure for figure in FIGURES}
    assert fast.ratio(slow, by_name["itl_p99_s"]) == pytest.approx(4.0)
    assert fast.ratio(slow, by_name["total_tok_s"]) == pytest.approx(4.0)
    assert fast.ratio(slow, by_name["ttft_p99_s"]) is None  # both are 0: no ratio


def test_the_warm_up_warms_no_cache_of_the_load() -> None:
    asked: list[tuple[int, ...]] = []

    class Target:
        name = "x"

        def start(self, request: Request) -> _Instant:
            asked.append(request.prompt)
            return _Instant(request)

    requests = make_requests(6, POOL, (100, 400), 4)
    assert warm_up(Target(), requests, 2) > 0
    assert len(asked) == 3
    assert max(map(len, asked)) == max(len(request.prompt) for request in requests)
    assert not {prompt[:4] for prompt in asked} & {request.prompt[:4] for request in requests}


def test_an_interrupt_of_the_warm_up_ends_the_contest(monkeypatch: pytest.MonkeyPatch) -> None:
    join, interrupts = threading.Thread.join, itertools.count()

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        if next(interrupts) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    log: list[str] = []
    contestant: Any = Contestant("a", lambda: _Opened("a", log))  # type: ignore[arg-type, return-value]
    assert not contest([contestant], prompts(*[4] * 500, max_tokens=500), 1)
    assert contestant.runs == []
    assert log[-1] == "close a"
