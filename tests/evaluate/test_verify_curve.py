"""The verify curve: whose time it is, in which order, and what an interrupt leaves."""

from __future__ import annotations

import json

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.evaluate.verify_curve import measure_curve


class Stepper:
    """A step of n tokens takes base + slope * n seconds; it says so without waiting."""

    def __init__(self, base: float, slope: float) -> None:
        self.base, self.slope, self.asked, self.interrupt_at = base, slope, [], -1  # type: ignore[var-annotated]

    def step(self, n: int) -> float:
        if len(self.asked) == self.interrupt_at:
            raise KeyboardInterrupt
        self.asked.append(n)
        return self.base + self.slope * n


def test_the_curve_is_relative_to_a_step_of_one() -> None:
    curve = measure_curve(Stepper(0.9, 0.1), [8, 2], repeats=3, rival=Stepper(0.0, 1.0), rest_s=0.0)
    assert curve.counts == (1, 2, 8)
    assert curve.relative(1) == 1.0
    assert curve.relative(8) == pytest.approx(1.7)
    assert curve.rival(8) == pytest.approx(8.0)
    assert curve.spread(2).n == 3
    points = json.loads(json.dumps(curve.as_dict(), allow_nan=False))
    assert [(point["n"], point["llamacpp_seconds"]) for point in points] == [(1, 1.0), (2, 2.0), (8, 8.0)]


def test_the_first_round_is_a_warm_up() -> None:
    stepper = Stepper(1.0, 0.0)
    measure_curve(stepper, [2], repeats=2, in_a_row=3)
    assert stepper.asked == ([1] * 4 + [2] * 4) * 3  # one that wakes the threads, then three


def test_an_interrupt_keeps_what_was_measured() -> None:
    stepper = Stepper(1.0, 0.0)
    stepper.interrupt_at = 2 * 2 * 2 + 3
    curve = measure_curve(stepper, [2], repeats=5, in_a_row=1)
    assert curve.interrupted
    assert (curve.spread(1).n, curve.spread(2).n) == (2, 1)
    assert curve.relative(2) == 1.0


def test_what_was_not_measured_is_not_defined() -> None:
    curve = measure_curve(Stepper(1.0, 0.0), [4], repeats=1)
    assert curve.relative(3) is None
    assert curve.rival(4) is None


@pytest.mark.parametrize(("counts", "repeats"), [([0], 1), ([2, -1], 1), ([2], 0)])
def test_counts_that_are_none_are_refused(counts: list[int], repeats: int) -> None:
    with pytest.raises(SettingError, match="--batch wants"):
        measure_curve(Stepper(1.0, 0.0), counts, repeats=repeats)
