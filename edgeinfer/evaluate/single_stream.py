"""One stream at a time: pp (a prompt read up to its first token) and tg (tokens written after a short prompt).

    ppN   prompt tokens / time of their forwards, and the time to the first token
    tgN   (n_out - 1) / time spent on the tokens after the first; not defined for a single token

Loading and compiling are no part of it, and a first round is thrown away as warm-up. Every repeat has a prompt of its
own, so that no cache of prompts helps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import SettingError
from ..metrics import Spread, Timings, spread
from .targets import Answer
from .workload import make_requests

__all__ = ["SHORT_PROMPT", "Measured", "SingleStream", "measure_single"]

SHORT_PROMPT = 32  # tokens before those of a tg


@dataclass(frozen=True)
class Measured:
    """One figure over the repeats; values that are not defined are None and are not in the spread."""

    what: str
    unit: str
    values: tuple[float | None, ...]

    @property
    def spread(self) -> Spread:
        """Median, least and greatest."""
        return spread(self.values)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        found = self.spread
        return {
            "what": self.what,
            "unit": self.unit,
            "n": found.n,
            "median": found.median,
            "least": found.low,
            "most": found.high,
            "values": list(self.values),
        }


@dataclass
class SingleStream:
    """What was measured: the timings of every repeat."""

    n_prompt: int  # 0: not measured
    n_out: int
    warm_up_s: float | None = None
    prefills: list[Timings] = field(default_factory=list)
    answers: list[Timings] = field(default_factory=list)
    interrupted: bool = False

    def rows(self) -> list[Measured]:
        """The figures, those of the prompt first."""
        rows: list[tuple[str, str, list[Timings], Callable[[Timings], float | None]]] = []
        if self.n_prompt:
            rows += [
                (f"pp{self.n_prompt}", "tok/s", self.prefills, lambda t: t.prefill_tok_s),
                (f"pp{self.n_prompt} TTFT", "ms", self.prefills, lambda t: _ms(t.ttft_s)),
            ]
        if self.n_out:
            rows += [
                (f"tg{self.n_out}", "tok/s", self.answers, lambda t: t.decode_tok_s),
                (f"tg{self.n_out} TPOT", "ms", self.answers, lambda t: _ms(t.tpot_s)),
                (f"tg{self.n_out} longest gap", "ms", self.answers, lambda t: _ms(t.itl_percentile_s(100.0))),
            ]
        return [Measured(what, unit, tuple(of(t) for t in timings)) for what, unit, timings, of in rows]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def measure_single(
    generate: Callable[..., Answer],
    pool: Sequence[int],
    *,
    n_prompt: int,
    n_out: int,
    repeats: int,
    seed: int = 0,
    bos: int | None = None,
    done: Callable[[str], None] | None = None,
) -> SingleStream:
    """Measure pp and tg `repeats` times each; 0 tokens leave one out. An interrupt keeps what was measured so far.

    `done` is told the name of each measurement as it ends. Raises SettingError and what `generate` raises.
    """
    if n_prompt < 0 or n_out < 0 or not (n_prompt or n_out) or repeats < 1:
        raise SettingError(
            f"{n_prompt} prompt tokens, {n_out} tokens out and {repeats} repeats leave nothing to measure; wanted at "
            "least 1 repeat and 1 token of either"
        )
    result = SingleStream(n_prompt, n_out)
    lengths = [n for n in (n_prompt, SHORT_PROMPT if n_out else 0) if n]
    cases = {
        n: make_requests(repeats + 1, pool, (n, n), 1, seed=seed + place, bos=bos) for place, n in enumerate(lengths)
    }

    def ask(length: int, number: int, max_tokens: int) -> Timings:
        prompt = list(cases[length][number].prompt)
        answer = generate(prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        try:
            for _ in answer:
                pass
        except BaseException:
            answer.cancel()
            raise
        return answer.timings

    try:
        for number in range(repeats + 1):
            started = time.perf_counter()
            if n_prompt:
                prefill = ask(n_prompt, number, 1)
            if n_out:
                timings = ask(SHORT_PROMPT, number, n_out)
            if number == 0:
                result.warm_up_s = time.perf_counter() - started
            else:
                if n_prompt:
                    result.prefills.append(prefill)
                if n_out:
                    result.answers.append(timings)
            if done:
                done("warm-up" if number == 0 else f"repeat {number}")
    except KeyboardInterrupt:
        result.interrupted = True
    return result
