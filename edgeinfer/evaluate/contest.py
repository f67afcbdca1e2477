"""The same load on several targets that take turns, so that a machine that slows down slows all of them.

A turn opens a target, warms it up, puts the load on it and closes it; the order is turned round from run to run.
Knows only how to open a target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ..metrics import Spread, spread
from .load_generator import Record, Run, Target, run_load
from .load_report import Summary, summarise
from .workload import Request

__all__ = ["FIGURES", "Contestant", "Figure", "contest", "warm_up"]

_WARM_OUT = 16  # tokens that a warm-up request makes
_WARM_PROMPT = 256  # and most of its prompt, but for the longest one


@dataclass(frozen=True)
class Figure:
    """A figure that targets are compared by."""

    name: str
    of: Callable[[Summary], float | None]
    less_is_better: bool


FIGURES = (
    Figure("itl_p99_s", lambda s: s.itl_s.p99, True),
    Figure("ttft_p99_s", lambda s: s.ttft_s.p99, True),
    Figure("total_tok_s", lambda s: s.total_tok_s, False),
)


@dataclass
class Contestant:
    """A target that is opened anew for each of its turns, and what its turns gave."""

    name: str
    open: Callable[[], AbstractContextManager[Target]]
    runs: list[Summary] = field(default_factory=list)
    warm_up_s: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # how it was set up; filled when it is opened

    def spread(self, figure: Figure) -> Spread:
        """The figure's median and edges over the runs."""
        return spread(figure.of(run) for run in self.runs)

    def ratio(self, other: Contestant, figure: Figure) -> float | None:
        """How many times better this one's median is than the other's; None where either is not defined."""
        mine, theirs = self.spread(figure).median, other.spread(figure).median
        if not mine or not theirs:
            return None
        return theirs / mine if figure.less_is_better else mine / theirs

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        spreads = {figure.name: self.spread(figure) for figure in FIGURES}
        return {
            "name": self.name,
            "settings": self.facts,
            "warm_up_s": self.warm_up_s,
            "runs": [run.as_dict() for run in self.runs],
            "over_runs": {
                name: {"n": found.n, "median": found.median, "least": found.low, "most": found.high}
                for name, found in spreads.items()
            },
        }


def warm_up(target: Target, requests: Sequence[Request], concurrency: int) -> float:
    """Put the longest prompt and a few short ones on a target; return the seconds it took.

    Memory is touched, threads are started and costs are learnt here and not in what is measured. The prompts are
    turned round, so that no cache holds a beginning of those that follow.
    """
    started = time.perf_counter()
    longest = max(requests, key=lambda request: len(request.prompt)).prompt
    prompts = [longest, *(request.prompt[-_WARM_PROMPT:] for request in requests[: min(concurrency, 8)])]
    few = [Request(i, tuple(reversed(prompt)), _WARM_OUT) for i, prompt in enumerate(prompts)]
    if run_load(target, few, concurrency).interrupted:
        raise KeyboardInterrupt
    return time.perf_counter() - started


def contest(
    contestants: Sequence[Contestant],
    requests: Sequence[Request],
    concurrency: int,
    *,
    runs: int = 1,
    begin: Callable[[Contestant, int], None] | None = None,
    done: Callable[[Record], None] | None = None,
) -> bool:
    """Give every contestant `runs` turns; False when an interrupt ended it early, with what was measured so far kept.

    `begin` is told of each turn before it starts, `done` of each request as it ends.
    """
    for number in range(runs):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            if begin:
                begin(contestant, number)
            try:
                run = _turn(contestant, requests, concurrency, done)
            except KeyboardInterrupt:
                return False
            contestant.runs.append(summarise(run))
            if run.interrupted:
                return False
    return True


def _turn(
    contestant: Contestant, requests: Sequence[Request], concurrency: int, done: Callable[[Record], None] | None
) -> Run:
    with contestant.open() as target:
        contestant.warm_up_s.append(warm_up(target, requests, concurrency))
        return run_load(target, requests, concurrency, done=done)
