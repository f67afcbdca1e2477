"""`edgeinfer bench --plot`: the table as a picture. The only user of matplotlib, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError, SettingError
from ..metrics import spread

if TYPE_CHECKING:
    from ..evaluate.single_stream import Measured
    from ..evaluate.verify_curve import Curve

__all__ = ["check_plot", "plot"]

_KINDS = (".png", ".svg", ".pdf")


def check_plot(file: str) -> None:
    """Refuse before anything is measured: MissingExtraError without matplotlib, SettingError for an unusable name."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--plot needs matplotlib; run: pip install 'edgeinfer[plot]'") from error
    path = Path(file)
    if path.suffix.lower() not in _KINDS:
        raise SettingError(f"--plot is {file!r}; wanted a name that ends in {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise SettingError(f"--plot is {file!r}, but there is no folder {str(path.parent)!r}")


def plot(file: str, title: str, rows: Sequence[Measured], curves: Sequence[Curve]) -> None:
    """Draw prefill, decode and the verify curve, whichever was measured. Raises SettingError when it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[str, Any]] = [
        (name, [row for row in rows if row.what.startswith(start)])
        for name, start in (("prefill", "pp"), ("decode", "tg"))
    ]
    panels = [(name, found) for name, found in panels if any(row.spread.median for row in found)]
    if curves:
        panels.append(("a step of n tokens / a step of 1", list(curves)))
    figure, axes = pyplot.subplots(1, max(1, len(panels)), figsize=(5.5 * max(1, len(panels)), 4), squeeze=False)
    for axis, (name, found) in zip(axes[0], panels, strict=False):
        axis.set_title(name)
        if name in ("prefill", "decode"):
            _bars(axis, found)
        else:
            _curves(axis, found)
    figure.suptitle(Path(title).name)
    figure.tight_layout()
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise SettingError(f"the plot cannot be written to {file!r}: {error}") from error
    finally:
        pyplot.close(figure)


def _bars(axis: Any, rows: Sequence[Measured]) -> None:
    sides = [("edgeinfer", [row.values for row in rows])]
    if any(row.rival for row in rows):
        sides.append(("llama.cpp", [row.rival for row in rows]))
    width = 0.8 / len(sides)
    for place, (name, values) in enumerate(sides):
        found = [spread(v) for v in values]
        middles = [s.median or 0.0 for s in found]
        low = [max(0.0, m - (s.low or m)) for m, s in zip(middles, found, strict=True)]
        high = [max(0.0, (s.high or m) - m) for m, s in zip(middles, found, strict=True)]
        at = [i + (place - (len(sides) - 1) / 2) * width for i in range(len(rows))]
        axis.bar(at, middles, width, yerr=[low, high], capsize=3, label=name)
    labels = [row.what + (f"\n{row.n_threads} threads" if row.n_threads else "") for row in rows]
    axis.set_xticks(range(len(rows)), labels, fontsize=8)
    axis.set_xlim(-0.8, len(rows) - 0.2)
    axis.set_ylabel("tok/s")
    axis.legend(loc="lower right")


def _curves(axis: Any, curves: Sequence[Curve]) -> None:
    for curve in curves:
        points = [(n, curve.relative(n)) for n in curve.counts]
        points = [(n, value) for n, value in points if value is not None]
        axis.plot(
            [n for n, _ in points], [v for _, v in points], marker="o", label=f"edgeinfer, {curve.n_threads} threads"
        )
        one = curve.rival(1)
        if one:
            theirs = [(n, t / one) for n in curve.counts if (t := curve.rival(n)) is not None]
            axis.plot([n for n, _ in theirs], [v for _, v in theirs], marker="x", linestyle="--", label="llama.cpp")
    axis.set_xlabel("tokens in the step")
    axis.set_xticks(sorted({n for curve in curves for n in curve.counts}))
    axis.set_ylim(bottom=0)
    axis.legend(loc="lower right")
