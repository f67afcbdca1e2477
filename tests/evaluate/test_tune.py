"""The sweep over thread counts: what is tried, what wins, and that it leaves the engine as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from edgeinfer.evaluate.sides import SideRun
from edgeinfer.evaluate.tune import Sweep, counts_up_to, sweep


class Engine:
    """Its threads, as a native engine counts them."""

    def __init__(self, n: int) -> None:
        self.phase_threads = {"decode": n, "batch": n}


class Side:
    """Reads n times as fast with n threads; writes no faster with more than two."""

    name = "toy"

    def __init__(self, engine: Engine) -> None:
        self.engine, self.asked, self.interrupt_at = engine, 0, -1

    def run(self, prefix: Sequence[int], prompt: Sequence[int], n_out: int) -> SideRun:
        if self.asked == self.interrupt_at:
            raise KeyboardInterrupt
        self.asked += 1
        n = self.engine.phase_threads["batch"]
        assert self.engine.phase_threads["decode"] == n
        return SideRun(len(prompt), n_out, len(prompt) / (100.0 * n), (n_out - 1) / (10.0 * min(n, 2) + 0.1 * n))


def run(n: int, **more: Any) -> tuple[Sweep, Side]:
    engine = Engine(n)
    side = Side(engine)
    side.interrupt_at = more.pop("interrupt_at", -1)
    settings: dict[str, Any] = {"n_prompt": 64, "n_out": 8, "repeats": 2, **more}
    result = sweep(engine, side, range(100), counts_up_to(n), **settings)
    assert engine.phase_threads == {"decode": n, "batch": n}
    return result, side


def test_the_fastest_counts_win_and_a_thread_that_brings_nothing_does_not() -> None:
    result, _ = run(4)
    assert Sweep.best(result.prefill) == 4
    assert Sweep.best(result.decode) == 2  # three and four write 0.5 % faster each
    assert Sweep.medians(result.prefill)[3] == pytest.approx(300.0)
    assert all(len(rates) == 2 for rates in result.decode.values())


def test_an_interrupt_keeps_whole_rounds_only() -> None:
    result, _ = run(2, interrupt_at=4 + 4 + 1, repeats=5)
    assert result.interrupted
    assert {n: len(rates) for n, rates in result.prefill.items()} == {1: 1, 2: 1}
    assert Sweep.best({}) is None


def test_counts_on_large_machines_are_thinned_out() -> None:
    assert counts_up_to(1) == (1,)
    assert counts_up_to(6) == (1, 2, 3, 4, 5, 6)
    assert counts_up_to(32) == (1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 21, 29, 32)
