"""Prompts that wait for each other, so that their answers begin together."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgeinfer.schedule.company import HOLD_PART, Company
from edgeinfer.schedule.stream import Stream
from edgeinfer.schedule.work import Work
from tests.schedule.board import Board


def small_model(work: Work, other: bool) -> float:
    """Memory is what a step takes, 0.8 ms a row what a prompt does, on one of two cores twice of it."""
    return (0.002 + 0.0004 * work.rows) * (2 if work.n_threads == 1 else 1)


def waiting(n: int, n_most: int = 100) -> Board:
    """A board on which a stream answers and n prompts wait behind it, for three seconds already."""
    board = Board(small_model, sharing="split")
    first = board.add(400, n_most)
    rest = [board.add(400, n_most) for _ in range(n)]
    board.now += 3.0
    board.run(lambda: first.over)
    board.rest = rest
    return board


def begun(stream: Stream) -> float:
    return stream.run.times[0]


def test_answers_begin_in_pairs_and_all_is_over_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    board = waiting(8)
    board.run()
    assert all(len(s.answer) == 100 for s in board.rest)
    apart = sorted(b - a for a, b in pairwise(sorted(map(begun, board.rest))))
    assert apart[2] < 0.06 < apart[4]  # three of them begin with the one before
    steps = [work.n_steps for _, _, work in board.works if work.n_steps]
    assert max(steps) <= 3  # of which one is about to end
    n_steps, now = len(steps), board.now
    monkeypatch.setattr("edgeinfer.schedule.company.HOLD_PART", 0.0)
    alone = waiting(8)
    alone.run()
    assert n_steps < 0.9 * sum(work.n_steps > 0 for _, _, work in alone.works)
    assert now - 3 < 0.97 * (alone.now - 3)


def test_nobody_is_held_much_longer_than_they_waited() -> None:
    board = waiting(8)
    held: dict[int, float] = {}
    while board.step():
        for stream in board.planner.reading:
            if stream.held_since is not None:
                held.setdefault(id(stream), stream.held_since - stream.run.accepted)
    chunk_s = 0.15
    for stream in board.rest:
        if id(stream) in held:
            waited = held[id(stream)]
            assert begun(stream) - stream.run.accepted < (1 + HOLD_PART) * waited + chunk_s
    assert len(held) >= 3


def test_who_waits_alone_is_not_held() -> None:
    board = waiting(1)
    while board.step():
        assert all(s.held_since is None for s in board.planner.reading)
    assert len(board.rest[0].answer) == 100


def test_a_voice_is_not_held_for_the_background() -> None:
    board = Board(small_model, sharing="split")
    board.add(400, 100, "voice")
    voice = board.add(400, 100, "voice")
    background = [board.add(400, 100, "background") for _ in range(3)]
    board.now += 1.0
    while board.step():
        assert voice.held_since is None
    assert all(begun(voice) < begun(s) for s in background)


@pytest.mark.parametrize("n_most", [1, 15])
def test_short_answers_are_not_held(n_most: int) -> None:
    board = waiting(4, n_most=n_most)
    while board.step():
        assert all(s.held_since is None for s in board.planner.reading)


def some_held(board: Board) -> Stream:
    """Play until a prompt is held and at rest; that one."""
    board.run(lambda: any(s.held_since is not None and not s.in_flight for s in board.planner.reading))
    return next(s for s in board.planner.reading if s.held_since is not None)


def test_a_prompt_goes_on_when_those_it_waits_for_are_cancelled() -> None:
    board = waiting(5)
    held, since = some_held(board), board.now
    for stream in board.rest:
        stream.cancelled = stream is not held and not stream.over
    board.run(lambda: bool(held.run.times))
    assert begun(held) - since < 0.2
    board.run()
    assert len(held.answer) == 100
    assert board.planner.n_active == 0


@pytest.mark.parametrize(
    ("step_ms", "n_writing", "waits"),
    [(4.8, 0, True), (5.0, 0, False), (3.2, 1, True), (5.0, 1, True)],  # of 9.8 ms, 0.7 of the target gap
)
def test_a_step_that_would_take_too_long_is_not_made_longer(step_ms: float, n_writing: int, waits: bool) -> None:
    """Two are not brought together where their step is too long; one waits for another's end for the same reason."""
    company = Company(lambda streams: 1e-3 * step_ms * len(streams), lambda stream: 0.1, lambda: 0.014)
    streams = [Board(small_model).add(400, 100) for _ in range(3)]
    streams[0].run.accepted = -5.0
    writing = streams[2:] * n_writing
    assert company.held_rows(streams[0], 50, streams[:2], writing, 0.0) == (8 if waits else 0)
    assert (streams[0].held_since is not None) == waits
    assert company.ready(streams[:2], writing, True, 0.1) == streams[waits:2]
    assert company.ready(streams[:2], writing, True, 1.3) == streams[:2]  # a quarter of 5 s is over


def test_one_that_gives_its_place_up_is_not_held_any_more() -> None:
    board = waiting(5)
    held = some_held(board)
    board.planner.preempt(held)
    held.session = None
    assert held.held_since is None
    board.run()
    assert all(len(s.answer) == 100 for s in board.rest)
