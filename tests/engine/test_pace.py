"""The number of threads beside other programs: on a machine made of figures, and on one core for two threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.pace import FULL_STEPS, Pace
from tests.models import ROOT
from tests.tiny import build_tiny

# Seconds of a forward, the part of it that its threads wait for late ones, the part without a core: by threads.
Machine = dict[int, tuple[float, float, float]]
QUIET: Machine = {1: (0.0040, 0.0, 0.01), 2: (0.0026, 0.02, 0.01)}
BUSY: Machine = {1: (0.0053, 0.0, 0.30), 2: (0.0072, 0.35, 0.40)}
ONE_OF_FOUR: Machine = {1: (0.010, 0.0, 0.0), 2: (0.006, 0.0, 0.0), 3: (0.004, 0.02, 0.0), 4: (0.006, 0.40, 0.0)}
NO_USE: Machine = {1: (0.0200, 0.0, 0.30), 2: (0.0072, 0.35, 0.40)}


class Model:
    """Forwards on a machine that only counts; the spread of their times is that of an exponential part."""

    def __init__(self, most: int = 2) -> None:
        self.now, self.most = 0.0, most
        self.pace = Pace(lambda: self.now)
        self.random = np.random.default_rng(1)

    def run(self, machine: Machine, until: Callable[[int], bool], rows: int = 1, idle: float = 0.0003) -> list[int]:
        """The threads of each forward until `until`, which is given their number; `idle` seconds follow each."""
        threads: list[int] = []
        while not until(len(threads)):
            n = self.pace.threads(self.most)
            mean, late, away = machine[n]
            seconds = (mean / 2 + self.random.exponential(mean / 2)) * (1 + 0.2 * (rows - 1))
            self.now += seconds + idle
            self.pace.note(self.most, rows, seconds, late * seconds * n, away * seconds)
            threads.append(n)
        return threads

    def steps(self, machine: Machine, n: int, rows: int = 1) -> list[int]:
        return self.run(machine, lambda done: done >= n, rows)

    def seldom(self, machine: Machine, n: int) -> list[int]:
        return self.run(machine, lambda done: done >= n, 32, 0.5)

    def seconds(self, machine: Machine, s: float) -> list[int]:
        end = self.now + s
        return self.run(machine, lambda _: self.now >= end)


def test_on_a_quiet_machine_all_threads_stay() -> None:
    assert set(Model().steps(QUIET, 5000)) == {2}


@pytest.mark.parametrize("rows", [1, 8, 128])
def test_beside_neighbours_fewer_are_used_and_more_tried_seldom(rows: int) -> None:
    model = Model()
    model.steps(QUIET, 100, rows)
    model.steps(BUSY, 150, rows)
    later = model.steps(BUSY, 3000, rows)
    assert later.count(2) < 0.12 * len(later)
    assert later.count(2) > 0  # it goes on asking


def test_it_comes_back_soon_after_they_have_gone() -> None:
    model = Model()
    model.seconds(BUSY, 60)
    model.seconds(QUIET, 2)
    assert set(model.seconds(QUIET, 5)) == {2}


def test_a_neighbour_on_one_of_four_cores_costs_one_thread() -> None:
    model = Model(most=4)
    model.seconds(ONE_OF_FOUR, 2)
    later = model.seconds(ONE_OF_FOUR, 20)
    assert later.count(3) > 0.85 * len(later)


def test_where_fewer_are_no_faster_it_seldom_tries() -> None:
    model = Model()
    model.seconds(NO_USE, 20)
    later = model.seconds(NO_USE, 60)
    assert later.count(1) < 0.03 * len(later)


def test_forwards_that_are_seldom_are_seldom_tried_with_fewer() -> None:
    """Short prompts, each after a pause: a core that slept is late, and a trial takes as many prompts as ever."""
    slow_to_wake: Machine = {1: (0.0036, 0.0, 0.0), 2: (0.0034, 0.25, 0.0)}
    model = Model()
    model.seldom(slow_to_wake, 300)
    later = model.seldom(slow_to_wake, 600)
    assert later.count(1) < 0.06 * len(later)


def test_a_hopeless_trial_ends_at_once() -> None:
    """One forward that takes longer than all of a trial would now: no second one."""
    model = Model()
    model.steps(BUSY, 150)
    stalled: Machine = {**BUSY, 2: (FULL_STEPS * 0.0053 * 4, 0.9, 0.9)}
    later = model.steps(stalled, 3000)
    assert 0 < later.count(2) <= 8


def test_each_most_has_a_number_of_its_own() -> None:
    model = Model()
    model.steps(BUSY, 200)
    assert model.pace.threads(2) == 1
    assert model.pace.threads(3) == 3
    model.pace.note(1, 1, 0.1, 0.0, 0.0)  # one thread: nothing to choose


CROWDED = """
    import os, sys
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before the threads are made: they inherit it
    from pathlib import Path
    from tests.engine.open import forward, open_engine
    with open_engine(Path(sys.argv[1]), n_threads=2, n_ctx=2048) as engine:
        lane, pace = engine._lanes["decode"], engine._paces["decode"]
        seq = engine.kv.open()
        used = []
        for i in range(400):
            used.append(pace.threads(2))
            forward(engine, seq, [7], "decode")
        print(lane.waited_s(2), used[0], used[-200:].count(1))
"""


def test_two_threads_on_one_core_become_one(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", {"default": "Q8_0"}, n_layer=2)
    command = [sys.executable, "-c", textwrap.dedent(CROWDED), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    waited, first, ones = done.stdout.split()
    assert float(waited) > 0
    assert int(first) == 2
    assert int(ones) > 150
