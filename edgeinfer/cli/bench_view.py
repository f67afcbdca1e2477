"""What `edgeinfer bench` shows: a bar while it works, and tables of figures. Undefined figures are a dash."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..evaluate.contest import FIGURES, Contestant
from ..evaluate.load_report import Percentiles, Summary
from ..evaluate.single_stream import Measured
from .terminal import say, visible

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from ..evaluate.verify_curve import Curve

__all__ = ["Counter", "print_contest", "print_curves", "print_profile", "print_rates", "print_sweep"]

_LINE_EVERY_S = 10.0  # between lines about progress where there is no terminal


class Counter:
    """Counts up to a total on stderr: a bar on a terminal, elsewhere a line now and then. With `quiet`, nothing.

    It is drawn from the first count on, since loading a model shows a line of its own.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._label, self._total, self._n = "", 0, 0
        self._said_at = 0.0

    def start(self, label: str, total: int) -> None:
        """Begin at 0 of total."""
        self.stop()
        self._label, self._total, self._n = visible(label), total, 0
        self._said_at = time.monotonic()

    def count(self) -> None:
        """One more is done."""
        import sys

        self._n += 1
        if self._quiet:
            return
        if sys.stderr.isatty():
            self._draw()
        elif time.monotonic() - self._said_at >= _LINE_EVERY_S:
            self._said_at = time.monotonic()
            say(f"{self._label}: {self._n} of {self._total}")

    def _draw(self) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bars.add_task(self._label.replace("[", r"\["), total=self._total)
            self._bars.start()
        assert self._task is not None
        self._bars.update(self._task, completed=self._n)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = None


def print_rates(rows: Sequence[Measured], several: bool) -> None:
    """The table of pp and tg; columns that no row fills are left out. `several`: more than one thread count."""
    versus, bounded = any(row.rival for row in rows), any(row.limit for row in rows)
    table = [
        (
            "", *(["threads"] if several else []), "median", "least", "most", "unit", "n",
            *(["llama.cpp", "ratio"] if versus else []), *(["limit"] if bounded else []),
        )
    ]  # fmt: skip
    for row in rows:
        found = row.spread
        cells = [row.what, *([str(row.n_threads or "-")] if several else [])]
        cells += [_number(found.median), _number(found.low), _number(found.high), row.unit, str(found.n)]
        if versus:
            cells += [_number(_middle(row.rival)), _number(row.ratio)]
        if bounded:
            cells.append("" if not row.limit else f"{row.limit} {_number(row.fraction)}")
        table.append(tuple(cells))
    _print(table)


def print_curves(curves: Sequence[Curve]) -> None:
    """The verify curves: a step of n tokens beside a step of one."""
    versus = any(curve.theirs for curve in curves)
    table = [
        ("step of", "threads", "median", "least", "most", "unit", "t(n)/t(1)", *(["llama.cpp ms"] if versus else []))
    ]
    for curve in curves:
        for n in curve.counts:
            found = curve.spread(n)
            cells = [str(n), str(curve.n_threads or "-"), _ms(found.median), _ms(found.low), _ms(found.high), "ms"]
            table.append((*cells, _number(curve.relative(n)), *([_ms(curve.rival(n))] if versus else [])))
    _print(table)


def print_profile(phase: Any, n_threads: int | None, bandwidth: float | None) -> None:
    """Where the time of a phase went."""
    times = phase.times
    per = phase.n_tokens or 1
    click.echo(f"{phase.label}, {n_threads or '?'} threads: {phase.wall_s / per * 1e3:.3f} ms a token")
    table = [("", "ms a token", "part %", "GB/s", "MBU", "int8 Gop/s")]

    def line(label: str, seconds: float, bytes_s: float | None = None, ops_s: float | None = None) -> None:
        mbu = bytes_s / bandwidth if bytes_s and bandwidth and times.phase == "decode" else None
        giga = tuple(_number(None if x is None else x / 1e9) for x in (bytes_s, ops_s))
        share = _number(100 * seconds / phase.wall_s)
        table.append((label, f"{seconds / per * 1e3:.4f}", share, giga[0], _number(mbu), giga[1]))

    document = times.as_dict()
    for entry in document["operations"]:
        line(entry["operation"], entry["seconds"], entry["bytes_s"], entry["int8_ops_s"])
    inside = sum(entry["seconds"] for entry in document["operations"])
    line("sampling", phase.sampling_s)
    line("threads woken and joined", max(0.0, times.forward_s - inside))
    line("scheduling, text, Python", max(0.0, phase.wall_s - times.forward_s - phase.sampling_s))
    _print(table)


def print_sweep(
    counts: Sequence[int],
    prefill: dict[int, float],
    decode: dict[int, float],
    best_prefill: int | None,
    best_decode: int | None,
) -> None:
    """Tokens per second by thread count, the chosen ones marked."""
    table = [("threads", "prefill tok/s", "decode tok/s")]
    for n in counts:
        marks = (" *" if n == best_prefill else "  ", " *" if n == best_decode else "  ")
        table.append((str(n), _number(prefill.get(n)) + marks[0], _number(decode.get(n)) + marks[1]))
    _print(table)


def print_contest(contestants: Sequence[Contestant]) -> None:
    """The table of every target's figures, then how the first compares with the others."""
    measured = [contestant for contestant in contestants if contestant.runs]
    if not measured:
        click.echo("nothing was measured")
    for contestant in measured:
        runs = contestant.runs
        click.echo(f"{contestant.name}: {_requests(runs)}")
        table = [("", "p50", "p95", "p99", "max", "unit")]
        for label, name in (("TTFT", "ttft_s"), ("gap between tokens", "itl_s"), ("TPOT", "tpot_s")):
            table.append((label, *_percentiles([getattr(run, name) for run in runs]), "ms"))
        _print(table)
        total, out = (_middle([getattr(run, name) for run in runs]) for name in ("total_tok_s", "out_tok_s"))
        click.echo(f"  prompt and answer {_number(total)} tok/s, answer alone {_number(out)} tok/s")
        gap = contestant.spread(FIGURES[0])
        if gap.n > 1 and gap.low is not None and gap.high is not None:
            click.echo(
                f"  p99 gap over {gap.n} runs: {gap.low * 1e3:.1f} to {gap.high * 1e3:.1f} ms, "
                f"spread {(gap.high - gap.low) * 1e3:.1f} ms"
            )
    for other in measured[1:]:
        first = measured[0]
        ratios = [_number(first.ratio(other, figure)) for figure in FIGURES]
        click.echo(
            f"{first.name} against {other.name}: p99 gap {ratios[0]} times better, p99 TTFT {ratios[1]} times better, "
            f"tok/s {ratios[2]} times"
        )


def _requests(runs: Sequence[Summary]) -> str:
    counts = {
        name: sum(getattr(run, f"n_{name}") for run in runs) for name in ("done", "cancelled", "refused", "failed")
    }
    shown = ", ".join(f"{n} {name}" for name, n in counts.items() if n or name == "done")
    return f"{shown} of {sum(run.n_asked for run in runs)} requests in {sum(run.wall_s for run in runs):.1f} s"


def _percentiles(found: Sequence[Percentiles]) -> tuple[str, str, str, str]:
    """p50, p95, p99 and the maximum in milliseconds: medians over runs, and the maximum of all."""
    tops = [p.max for p in found if p.max is not None]
    p50, p95, p99 = (_middle([getattr(p, name) for p in found]) for name in ("p50", "p95", "p99"))
    return _ms(p50), _ms(p95), _ms(p99), _ms(max(tops) if tops else None)


def _middle(values: Sequence[float | None]) -> float | None:
    from ..metrics import spread

    return spread(values).median


def _ms(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds * 1e3)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _print(table: Sequence[Sequence[str]]) -> None:
    """Columns of a width that fits, the first one and the unit to the left."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    left = {0, len(table[0]) - 1, *(i for i, head in enumerate(table[0]) if head == "unit")}
    for row in table:
        cells = (
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        click.echo(("  " + "  ".join(cells)).rstrip())
