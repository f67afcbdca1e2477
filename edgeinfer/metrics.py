"""Every figure that edgeinfer prints about speed, each with its formula; a figure that is not defined is None.

    TTFT            request accepted -> first text out (template, tokenise, waiting, prefill and sampling included)
    queue           request accepted -> the first forward that holds a part of its prompt begins
    TPOT            (t_last - t_first) / (n_out - 1), by the clock of the engine: a slow reader does not count
    ITL             one gap between tokens, by the same clock
    prefill tok/s   prompt tokens really evaluated (the reused prefix excluded) / time of their forwards
    decode tok/s    (n_out - 1) / time of the steps that made the tokens after the first, waiting for others excluded

Loading and compiling are never part of these; they are figures of their own. All times are in seconds.
Knows nothing of engines and requests: it turns counts and clock readings into figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Spread", "Timings", "percentile", "rate", "spread", "tpot"]


def rate(count: int, seconds: float | None) -> float | None:
    """Count per second; None when nothing was counted or no time was measured."""
    if seconds is None or seconds <= 0.0 or count <= 0:
        return None
    return count / seconds


def tpot(t_first: float | None, t_last: float | None, n_out: int) -> float | None:
    """Seconds per output token after the first: (t_last - t_first) / (n_out - 1); None below two tokens."""
    if t_first is None or t_last is None or n_out < 2:
        return None
    return (t_last - t_first) / (n_out - 1)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The percentile (0 to 100) of values, linear between ranks; None when there are none."""
    ranked = sorted(values)
    if not ranked:
        return None
    rank = min(max(percent, 0.0), 100.0) / 100.0 * (len(ranked) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (rank - low)


@dataclass(frozen=True)
class Spread:
    """The middle and the edges of repeated measurements; None where nothing was measured."""

    n: int
    median: float | None
    low: float | None
    high: float | None


def spread(values: Iterable[float | None]) -> Spread:
    """Median, least and greatest of the values that are defined."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(0, None, None, None)
    return Spread(len(known), percentile(known, 50.0), min(known), max(known))


@dataclass(frozen=True)
class Timings:
    """What one answer cost. Counts are tokens, times are seconds, undefined figures are None."""

    n_prompt: int  # tokens of the prompt
    n_reused: int  # of these, found in the KV cache
    n_prefill: int  # of these, really evaluated so far
    n_out: int  # tokens of the answer; an end token that is not shown is not counted
    queue_s: float | None = None  # request accepted -> its first forward begins
    ttft_s: float | None = None
    prefill_s: float | None = None  # time of the prompt's forwards
    decode_s: float | None = None  # time of the steps that made the tokens after the first
    t_first: float | None = None  # clock reading of the first token of the answer
    t_last: float | None = None  # clock reading of its last token
    total_s: float | None = None  # request accepted -> last chunk out
    itl_s: tuple[float, ...] = ()  # gaps between tokens, in order
    load_s: float | None = None  # loading the model, once per process, compiling excluded
    compile_s: float | None = None  # compiling or loading kernels, once per process

    @property
    def tpot_s(self) -> float | None:
        """TPOT in seconds."""
        return tpot(self.t_first, self.t_last, self.n_out)

    @property
    def prefill_tok_s(self) -> float | None:
        """Prefill tok/s."""
        return rate(self.n_prefill, self.prefill_s)

    @property
    def decode_tok_s(self) -> float | None:
        """Decode tok/s."""
        return rate(self.n_out - 1, self.decode_s)

    def itl_percentile_s(self, percent: float) -> float | None:
        """The percentile of the gaps between tokens, in seconds."""
        return percentile(self.itl_s, percent)

    def as_dict(self) -> dict[str, float | int | None]:
        """The counts and figures under their names, ready for JSON: null where undefined, never zero or infinity."""
        return {
            "n_prompt": self.n_prompt,
            "n_reused": self.n_reused,
            "n_prefill": self.n_prefill,
            "n_out": self.n_out,
            "queue_s": self.queue_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "itl_p50_s": self.itl_percentile_s(50.0),
            "itl_p99_s": self.itl_percentile_s(99.0),
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "total_s": self.total_s,
            "prefill_tok_s": self.prefill_tok_s,
            "decode_tok_s": self.decode_tok_s,
            "load_s": self.load_s,
            "compile_s": self.compile_s,
        }
