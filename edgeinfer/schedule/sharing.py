"""Who gets the cores when prompts are read and answers are written at once: a split, or rows that ride along.

    ride    one forward on all threads holds a chunk of a prompt and a row of each stream that is answering
    split   two forwards at once: the prompt's on n_prefill threads, the answers' on n_decode
    whole   prompts first: no answer goes on while a prompt is read (the yardstick of benchmarks)

Which of the first two is better depends on the machine, so the first streams that meet are served in each way for a few
steps, and the way that did more work in its time, at a gap that can be borne, is kept. Where that is to ride, whose gaps are
the longest, it is looked at again later, for what was met at first may have been short, or the machine busy for a moment.
Knows no engine and no stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import SettingError

__all__ = ["SHARINGS", "Sharing", "Way"]

SHARINGS = ("auto", "ride", "split", "whole")
STEPS, CHUNKS = 8, 3  # that a way is tried for
AGAIN, MOST_AGAIN = 256, 8192  # forwards on which to ride until the ways are tried again; 4 times as many each time
_SLACK = 1.3  # a gap this much above the target is still taken
_NEAR = 0.8  # of the most work: ways that do this much are as good, and the one with the shortest gap is kept


RowCost = Callable[[float], float]


@dataclass(frozen=True)
class Way:
    """One way of giving the cores to the two phases while both have work."""

    name: str  # "ride", "split" or "whole"
    n_prefill: int  # threads of the prefill lane
    n_decode: int

    def __str__(self) -> str:
        return f"split {self.n_prefill}+{self.n_decode}" if self.name == "split" else self.name


@dataclass
class _Trial:
    """What one way did while it was tried."""

    way: Way
    began: float | None = None
    seconds: float = 0.0
    rows: int = 0  # of prompts
    looks: int = 0  # sum of their positions
    tokens: int = 0  # of answers
    chunks: int = 0
    gaps: list[float] = field(default_factory=list)

    def restart(self) -> None:
        self.began, self.rows, self.looks, self.tokens, self.chunks = None, 0, 0, 0, 0
        self.gaps.clear()

    @property
    def gap(self) -> float:
        return sorted(self.gaps)[len(self.gaps) // 2]

    def worth(self, row_s: RowCost, token_s: float) -> float:
        """Seconds of work, each phase alone on all threads, that were done in a second.

        A way that is tried later in a prompt reads rows that look back further; each way's rows count as what they cost.
        """
        row = row_s(self.looks / max(self.rows, 1))
        return (self.rows * row + self.tokens * token_s) / self.seconds

    def figures(self, row_s: RowCost, token_s: float) -> dict[str, float]:
        """What is shown of it."""
        return {
            "prompt_rows_s": round(self.rows / self.seconds, 1),
            "tokens_s": round(self.tokens / self.seconds, 1),
            "gap_ms": round(1e3 * self.gap, 2),
            "worth": round(self.worth(row_s, token_s), 3),
        }


class Sharing:
    """The way that is used now; with "auto" and more than one to choose from, tried and chosen on first need."""

    def __init__(self, wanted: str, n_threads: int, can_split: bool) -> None:
        if wanted not in SHARINGS:
            raise SettingError(f"sharing is {wanted!r}; wanted one of {', '.join(SHARINGS)}")
        self.ride = ride = Way("ride", n_threads, n_threads)
        whole = Way("whole", n_threads, n_threads)
        splits = [Way("split", n_threads - n, n) for n in sorted({1, n_threads // 2}) if 0 < n < n_threads]
        if wanted == "split" and not (can_split and splits):
            raise SettingError("the threads cannot be split: it takes two or more and an engine that runs two lanes")
        if wanted == "auto":
            ways = [ride, *(splits if can_split else [])]
        else:
            ways = {"ride": [ride], "whole": [whole], "split": splits}[wanted]
        self._ways = ways
        self._trials: list[_Trial] = []
        self._at = 0
        self._again = 0  # forwards until the ways are tried again; 0: not at all
        self._next_again = AGAIN
        self.figures: dict[str, Any] = {}
        self.way = ways[0]
        if len(ways) > 1:
            self.reason = "not chosen yet: no prompt was read while an answer was written"
            self.measure()
        elif wanted == "auto":
            self.reason = "the only way with one thread" if n_threads == 1 else "the engine runs one forward at a time"
        else:
            self.reason = "asked for"

    @property
    def measuring(self) -> bool:
        """Whether ways are being tried."""
        return self._at < len(self._trials)

    def measure(self) -> None:
        """Try all ways (again) from the next step on at which both phases have work."""
        if len(self._ways) > 1:
            self._trials = [_Trial(way) for way in self._ways]
            self._at = self._again = 0
            self.way = self._trials[0].way

    def interrupted(self) -> None:
        """Only one phase has work now: what was counted of a trial is void."""
        if self.measuring:
            self._trials[self._at].restart()

    def note(self, way: Way, now: float, rows: int, looks: int, tokens: int, gap: float | None) -> bool:
        """Count a forward that ended while both phases have work; True when a trial is over and all are.

        It read `rows` of prompts, whose positions add up to `looks`, and made `tokens` of answers.
        """
        if not self.measuring and self._again:
            self._again -= 1
            if not self._again:
                self.measure()
        if not self.measuring or way != self.way:
            return False
        trial = self._trials[self._at]
        if trial.began is None:
            trial.began = now  # what ran before that was not all of this way
            return False
        trial.rows += rows
        trial.looks += looks
        trial.tokens += tokens
        trial.chunks += rows > 0
        if gap is not None:
            trial.gaps.append(gap)
        if len(trial.gaps) < STEPS or trial.chunks < CHUNKS:
            return False
        trial.seconds = max(now - trial.began, 1e-9)
        self._at += 1
        if self.measuring:
            self.way = self._trials[self._at].way
        return not self.measuring

    def choose(self, row_s: RowCost, token_s: float, target_s: float) -> None:
        """Keep the best way that was tried. row_s(position) and token_s are what a prompt's row and a token cost alone."""
        ranked = sorted(self._trials, key=lambda t: t.worth(row_s, token_s), reverse=True)
        most = ranked[0].worth(row_s, token_s)
        fine = [t for t in ranked if t.gap <= target_s * _SLACK and t.worth(row_s, token_s) >= _NEAR * most]
        best = min(fine or ranked, key=lambda t: t.gap)
        self.way = best.way
        if best.way is self.ride:
            self._again, self._next_again = self._next_again, min(4 * self._next_again, MOST_AGAIN)
        self.figures = {str(t.way): t.figures(row_s, token_s) for t in self._trials}
        if fine:
            others = ", ".join(f"{t.way} {t.worth(row_s, token_s):.2f}" for t in ranked if t is not best)
            self.reason = (
                f"measured: did {best.worth(row_s, token_s):.2f} s of work a second (others: {others}) "
                f"at a gap of {1e3 * best.gap:.1f} ms, target {1e3 * target_s:.1f} ms"
            )
        else:
            self.reason = (
                f"measured: the shortest gap, {1e3 * best.gap:.1f} ms; no way kept to the target of "
                f"{1e3 * target_s:.1f} ms"
            )

    def stats(self) -> dict[str, Any]:
        """What was chosen, why, and the figures behind it."""
        chosen = "measuring" if self.measuring else str(self.way)
        return {"way": chosen, "reason": self.reason, "measured": self.figures}
