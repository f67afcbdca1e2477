"""What a run of the load generator amounts to: percentiles and rates, each with its unit in its name.

    ttft_s     arrival -> first token (waiting for a place in flight included)
    itl_s      one gap between tokens of a stream, all gaps of all streams together
    tpot_s     (t_last - t_first) / (n_out - 1) of a request
    total_tok_s   (prompt tokens read + tokens out) / wall_s
    out_tok_s     tokens out / wall_s

A figure that is not defined is None, never zero or infinity. Knows records only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..metrics import percentile, rate
from .load_generator import Record, Run

__all__ = ["Percentiles", "Summary", "summarise"]


@dataclass(frozen=True)
class Percentiles:
    """Seconds at the middle, near the top and at the top; None where nothing was measured."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Percentiles:
        """The percentiles of the values that are defined."""
        known = [value for value in values if value is not None]
        p50, p95, p99, top = (percentile(known, percent) for percent in (50.0, 95.0, 99.0, 100.0))
        return cls(len(known), p50, p95, p99, top)


@dataclass(frozen=True)
class Summary:
    """The figures of one run. Counts are requests or tokens, times seconds, rates a second."""

    target: str
    concurrency: int
    n_asked: int
    n_done: int
    n_cancelled: int
    n_refused: int
    n_failed: int
    interrupted: bool
    wall_s: float
    n_prompt_tokens: int  # of the requests whose first token came
    n_reused_tokens: int | None  # of these, found in a cache; None when the target does not say
    n_out_tokens: int
    total_tok_s: float | None
    out_tok_s: float | None
    requests_s: float | None  # requests done a second
    ttft_s: Percentiles
    itl_s: Percentiles
    tpot_s: Percentiles
    wait_s: Percentiles  # waiting inside the target before the prompt was begun, where it says so
    prefill_s: Percentiles  # the target's own account of the time for each prompt and each answer
    decode_s: Percentiles
    errors: tuple[str, ...]  # the different reasons of requests that failed or were refused, at most five

    def as_dict(self) -> dict[str, Any]:
        """Everything under its name, ready for JSON."""
        return asdict(self)


def summarise(run: Run) -> Summary:
    """The figures of a run."""
    records = run.records
    answered = [record for record in records if record.token_times]
    n_prompt = sum(record.n_prompt for record in answered)
    n_out = sum(record.n_out for record in records)
    reused = [record.n_reused for record in answered if record.n_reused is not None]

    def count(outcome: str) -> int:
        return sum(record.outcome == outcome for record in records)

    def pick(figure: str) -> Percentiles:
        return Percentiles.of(getattr(record, figure) for record in records)

    return Summary(
        target=run.target,
        concurrency=run.concurrency,
        n_asked=run.n_asked,
        n_done=count("done"),
        n_cancelled=count("cancelled"),
        n_refused=count("refused"),
        n_failed=count("failed"),
        interrupted=run.interrupted,
        wall_s=run.wall_s,
        n_prompt_tokens=n_prompt,
        n_reused_tokens=sum(reused) if reused else None,
        n_out_tokens=n_out,
        total_tok_s=rate(n_prompt + n_out, run.wall_s),
        out_tok_s=rate(n_out, run.wall_s),
        requests_s=rate(count("done"), run.wall_s),
        ttft_s=pick("ttft_s"),
        itl_s=Percentiles.of(gap for record in records for gap in record.itl_s),
        tpot_s=pick("tpot_s"),
        wait_s=pick("wait_s"),
        prefill_s=pick("prefill_s"),
        decode_s=pick("decode_s"),
        errors=_reasons(records),
    )


def _reasons(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(record.error for record in records if record.error))[:5]
