"""One stream at a time: pp (a prompt read up to its first token) and tg (tokens written after a short prompt).

    ppN        prompt tokens / time to the first token, by the caller's clock
    tgN        (n_out - 1) / time from the first token to the last; not defined for a single token
    @ dN       the same behind N tokens that are in the KV cache already
    MBU        bytes that a token must read x tok/s / read bandwidth of the same memory (evaluate/bandwidth.py)
    of peak    int8 operations of the weights' products per second / peak of the dot product (evaluate/peak.py)

Loading and compiling are no part of it, and a first round is thrown away as warm-up. Every repeat has a prompt of its
own, so that no cache of prompts helps. A rival and the two limits take turns with us in every round, so that a machine
that slows down slows all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import SettingError
from ..metrics import Spread, Timings, spread
from .sides import Side, SideRun
from .workload import make_requests

__all__ = ["SHORT_PROMPT", "Case", "Measured", "SingleStream", "cases_of", "measure_single"]

SHORT_PROMPT = 32  # tokens before those of a tg
_REST_S = 0.1  # between two sides: the other's threads go to sleep first


@dataclass(frozen=True)
class Case:
    """What one row is about: n_prompt new tokens behind `depth` held ones, then n_out tokens."""

    depth: int
    n_prompt: int
    n_out: int
    is_prefill: bool  # reading is measured, and not writing

    @property
    def label(self) -> str:
        """llama-bench's name."""
        name = f"pp{self.n_prompt}" if self.is_prefill else f"tg{self.n_out}"
        return f"{name} @ d{self.depth}" if self.depth else name

    @property
    def n_past(self) -> float:
        """Positions that a written token sees before it, on average."""
        return self.depth + self.n_prompt + self.n_out / 2


@dataclass(frozen=True)
class Measured:
    """One figure over the repeats; values that are not defined are None and are not in the spread."""

    what: str
    unit: str
    values: tuple[float | None, ...]
    n_threads: int | None = None
    rival: tuple[float | None, ...] = ()  # the other side's, in the same rounds
    limit: str = ""  # "MBU" or "of peak"
    fractions: tuple[float | None, ...] = ()  # how much of that limit each value is
    limits: tuple[float, ...] = ()  # the limit itself: bytes or operations per second

    @property
    def spread(self) -> Spread:
        """Median, least and greatest."""
        return spread(self.values)

    @property
    def ratio(self) -> float | None:
        """Our median / the rival's; None where either is not defined."""
        mine, theirs = self.spread.median, spread(self.rival).median
        return mine / theirs if mine and theirs else None

    @property
    def fraction(self) -> float | None:
        """The median part of the limit."""
        return spread(self.fractions).median

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        found, other = self.spread, spread(self.rival)
        document: dict[str, Any] = {
            "what": self.what,
            "unit": self.unit,
            "n_threads": self.n_threads,
            "n": found.n,
            "median": found.median,
            "least": found.low,
            "most": found.high,
            "values": list(self.values),
        }
        if self.rival:
            document["llamacpp"] = {"median": other.median, "least": other.low, "most": other.high}
            document["llamacpp"]["values"] = list(self.rival)
            document["ratio"] = self.ratio
        if self.limit:
            document[self.limit.lower().replace(" ", "_")] = self.fraction
            unit = "read_bytes_s" if self.limit == "MBU" else "int8_ops_s"
            document[unit] = spread(self.limits).median
        return document


class MachineLimits(Protocol):
    """`evaluate.limits.Limits`, or a stand-in."""

    def bandwidth(self) -> float:
        """Bytes per second, now."""

    def peak(self) -> float:
        """int8 operations per second, now."""

    def mbu(self, tok_s: float, n_past: float, bandwidth: float) -> float:
        """Part of the bandwidth."""

    def of_peak(self, tok_s: float, peak: float) -> float:
        """Part of the peak."""


@dataclass
class _Rounds:
    """What the repeats of a case gave."""

    mine: list[SideRun] = field(default_factory=list)
    theirs: list[SideRun] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)


@dataclass
class SingleStream:
    """What was measured: the runs of every case."""

    cases: tuple[Case, ...]
    n_threads: int | None = None
    warm_up_s: float | None = None
    rounds: list[_Rounds] = field(default_factory=list)
    interrupted: bool = False
    _limits: MachineLimits | None = None

    def rows(self) -> list[Measured]:
        """The figures: a row for each case, behind each those that only we have."""
        rows: list[Measured] = []
        for case, found in zip(self.cases, self.rounds, strict=True):
            rows.append(self._rate(case, found))
            timings = [run.timings for run in found.mine]
            for what, of in _DETAILS[case.is_prefill]:
                values = tuple(None if t is None else of(t) for t in timings)
                rows.append(Measured(f"{case.label} {what}", "ms", values, self.n_threads))
        return rows

    def rates(self) -> list[Measured]:
        """The row of each case alone."""
        return [self._rate(case, found) for case, found in zip(self.cases, self.rounds, strict=True)]

    def _rate(self, case: Case, found: _Rounds) -> Measured:
        def rate(run: SideRun) -> float | None:
            return run.prefill_tok_s if case.is_prefill else run.decode_tok_s

        values = tuple(rate(run) for run in found.mine)
        fractions: tuple[float | None, ...] = ()
        name = ""
        if self._limits is not None and found.limits:
            name = "of peak" if case.is_prefill else "MBU"
            fractions = tuple(
                None if value is None else self._part(case, value, limit)
                for value, limit in zip(values, found.limits, strict=False)
            )
        theirs = tuple(rate(run) for run in found.theirs)
        return Measured(case.label, "tok/s", values, self.n_threads, theirs, name, fractions, tuple(found.limits))

    def _part(self, case: Case, tok_s: float, limit: float) -> float:
        assert self._limits is not None
        return self._limits.of_peak(tok_s, limit) if case.is_prefill else self._limits.mbu(tok_s, case.n_past, limit)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


_DETAILS: dict[bool, tuple[tuple[str, Callable[[Timings], float | None]], ...]] = {
    True: (("TTFT", lambda t: _ms(t.ttft_s)),),
    False: (("TPOT", lambda t: _ms(t.tpot_s)), ("longest gap", lambda t: _ms(t.itl_percentile_s(100.0)))),
}


def cases_of(prompts: Sequence[int], outs: Sequence[int], depths: Sequence[int] = (0,)) -> tuple[Case, ...]:
    """A prefill of each length and an answer of each length, at each depth; 0 leaves one out. Raises SettingError."""
    if any(n < 0 for n in (*prompts, *outs, *depths)):
        raise SettingError("a length or depth is below 0; wanted whole numbers, 0 to leave one out")
    cases = []
    for depth in depths or (0,):
        cases += [Case(depth, n, 1, True) for n in prompts if n]
        cases += [Case(depth, SHORT_PROMPT, n, False) for n in outs if n]
    if not cases:
        raise SettingError("0 prompt tokens and 0 tokens out leave nothing to measure; wanted at least 1 of either")
    return tuple(dict.fromkeys(cases))


def measure_single(
    ours: Side,
    pool: Sequence[int],
    cases: Sequence[Case],
    *,
    repeats: int,
    rival: Side | None = None,
    limits: MachineLimits | None = None,
    n_threads: int | None = None,
    seed: int = 0,
    bos: int | None = None,
    done: Callable[[str], None] | None = None,
) -> SingleStream:
    """Measure each case `repeats` times, in rounds over all of them. An interrupt keeps what was measured so far.

    `done` is told the name of each case as it ends. Raises SettingError and what the sides raise.
    """
    if repeats < 1:
        raise SettingError(f"{repeats} repeats leave nothing to measure; wanted at least 1")
    result = SingleStream(tuple(cases), n_threads, rounds=[_Rounds() for _ in cases], _limits=limits)
    depths = sorted({case.depth for case in cases if case.depth})
    prefixes = {
        n: make_requests(1, pool, (n, n), 1, seed=seed + 7919 + n, bos=bos)[0].prompt for n in depths
    }  # held from round to round
    prompts = [
        make_requests(repeats + 1, pool, (case.n_prompt,) * 2, 1, seed=seed + place, bos=None if case.depth else bos)
        for place, case in enumerate(cases)
    ]
    started = time.perf_counter()
    try:
        for number in range(repeats + 1):
            for place, case in enumerate(cases):
                asked = (prefixes.get(case.depth, ()), prompts[place][number].prompt, case.n_out)
                if number == 0 and case.depth:
                    ours.run(asked[0], asked[1][:1], 1)  # the prefix is read here, and found in its cache from now on
                runs = _turns(ours, rival, asked, number % 2 == 1)
                limit = None if limits is None else limits.peak() if case.is_prefill else limits.bandwidth()
                if number:
                    _note(result.rounds[place], runs, limit)
                if done:
                    done(case.label)
            if number == 0:
                result.warm_up_s = time.perf_counter() - started
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _turns(
    ours: Side, rival: Side | None, asked: tuple[Sequence[int], Sequence[int], int], we_first: bool
) -> tuple[SideRun, SideRun | None]:
    """A run of each side, in turns."""
    if rival is None:
        return ours.run(*asked), None
    found = {}
    for side in (ours, rival) if we_first else (rival, ours):
        time.sleep(_REST_S)
        found[side.name] = side.run(*asked)
    return found[ours.name], found[rival.name]


def _note(rounds: _Rounds, runs: tuple[SideRun, SideRun | None], limit: float | None) -> None:
    """Write a round down, all of it at once: an interrupt leaves no half."""
    rounds.mine.append(runs[0])
    if runs[1] is not None:
        rounds.theirs.append(runs[1])
    if limit is not None:
        rounds.limits.append(limit)
