"""Two prompts read at once, each on a part of the threads, while nobody is answered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from edgeinfer.schedule.company import HOLD_PART
from edgeinfer.schedule.cost import GRAIN
from edgeinfer.schedule.stream import Stream
from edgeinfer.schedule.work import Work
from tests.fakes import ScriptedEngine
from tests.schedule.board import Board
from tests.schedule.desk import Desk
from tests.schedule.test_scheduler import TwoLanes


def machine(gain: float) -> Callable[[Work, bool], float]:
    """Two threads do `gain` times what one does; a row of a prompt takes 1 ms on one thread, a step 4 ms."""

    def cost(work: Work, other: bool) -> float:
        seconds = 0.003 + 0.001 * (work.rows - work.n_steps) + 0.0005 * work.n_steps + 1e-7 * work.spans
        return seconds / (gain if work.n_threads == 2 else 1.0)

    return cost


def backlog(gain: float, n: int = 12, n_prompt: int = 600, waited_s: float = 5.0, n_most: int = 40) -> Board:
    """A board on which costs are known and n prompts wait, for waited_s already."""
    board = Board(machine(gain), sharing="split", max_streams=n + 2)
    board.planner.max_wait_s, board.planner.max_part_s = 0.25, 0.125  # as where a forward can be stopped
    for _ in range(2):  # an answer is written while a prompt is read: all three kinds of forwards were seen
        board.add(300, 60)
    board.run()
    board.works.clear()
    board.began = board.now
    board.rest = [board.add(n_prompt, n_most) for _ in range(n)]
    for stream in board.rest:
        stream.run.accepted = board.now - waited_s
    return board


def abreast(board: Board) -> list[Work]:
    """The decode lane's forwards of prompts."""
    return [work for _, _, work in board.works if work.lane == "decode" and not work.n_steps]


def test_two_lanes_read_where_that_is_quicker() -> None:
    board = backlog(1.4)
    board.run()
    assert all(len(s.answer) == 40 for s in board.rest)
    assert sum(work.rows for work in abreast(board)) > 1000  # of 7,200
    both = backlog(2.0)  # nothing is gained where all threads are twice as quick
    both.run()
    assert sum(work.rows for work in abreast(both) if work.rows > GRAIN) < 300


def test_a_backlog_is_over_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    board = backlog(1.4)
    board.run()
    monkeypatch.setattr("edgeinfer.schedule.planner.HOLD_PART", -1.0)
    after = backlog(1.4)
    after.run()
    assert not [work for work in abreast(after) if work.rows > GRAIN]
    assert board.now - board.began < 0.95 * (after.now - after.began)


def test_the_first_is_later_by_a_part_of_its_wait_at_most() -> None:
    board = backlog(1.4, n=6, n_prompt=2000, waited_s=0.2)  # which take 1.5 s on two threads and 2.1 on one
    first = board.rest[0]
    board.run(lambda: bool(first.run.times))
    assert first.run.times[0] - board.began < 1.5 + HOLD_PART * (first.run.times[0] - first.run.accepted) + 0.15


def test_an_answer_that_has_begun_does_not_wait_for_a_chunk() -> None:
    board = backlog(1.4)
    board.run()
    assert abreast(board)
    for stream in board.rest:
        assert max(b - a for a, b in pairwise(stream.run.times)) < 0.02  # a chunk takes 0.13 s


def test_one_who_is_served_first_is_not_read_beside_the_background() -> None:
    board = Board(machine(1.4), sharing="split", max_streams=8)
    board.planner.max_wait_s = 0.25
    for _ in range(2):
        board.add(300, 60)
    board.run()
    board.works.clear()
    voice = board.add(600, 10, "voice")
    background = [board.add(600, 10, "background") for _ in range(2)]
    for stream in (voice, *background):
        stream.run.accepted = board.now - 60.0
    board.run(lambda: bool(voice.run.times))
    assert not abreast(board)


def test_a_prompt_of_few_tokens_is_not_passed_over() -> None:
    board = backlog(1.4)
    board.run(lambda: bool(abreast(board)))
    short = board.add(3, 5)
    short.place = (0.0, 0)
    board.run(lambda: short.over)
    assert short.run.times[0] - short.run.accepted < 0.4  # two chunks at most


@pytest.mark.parametrize(("n_batch", "n_out"), [(32, 64), (512, 4)])
def test_no_forward_is_larger_than_the_engine_takes(n_batch: int, n_out: int) -> None:
    """Nor are more rows of logits asked for, however many short prompts wait behind a long one."""
    board = backlog(1.4, n=1, n_prompt=2000)
    board.planner.max_streams, board.planner.n_batch, board.planner.n_out = 16, n_batch, n_out
    short = [board.add(8, 5) for _ in range(14)]
    for stream in short:
        stream.run.accepted = board.now - 5.0
    board.run(lambda: all(s.run.times for s in short))
    assert abreast(board)
    assert max(work.rows for work in abreast(board)) <= n_batch
    assert max(sum(p.n_rows for p in work.pieces) for work in abreast(board)) <= n_out


def test_what_a_step_looks_at_is_what_it_reads() -> None:
    """A step reads all keys that its tokens look at, and no row of a prompt: its cost is forecast by both."""
    board = Board(machine(1.4), sharing="split")
    stream = board.add(300, 20)
    board.run(lambda: stream.over)
    steps = [work for _, _, work in board.works if work.n_steps]
    assert [(w.looks, w.spans, w.chunk_looks) for w in steps] == [(300 + i, 300 + i, 0) for i in range(19)]


def test_both_threads_of_a_scheduler_read() -> None:
    """The thread that sleeps is called when the other one leaves it something, and all is answered as if alone."""

    def answers(desk: Desk) -> list[list[int]]:
        made = [desk.ask([65 + i] * 400, max_tokens=20) for i in range(6)]
        return [[c.token for c in answer if c.token is not None] for answer in made]

    alone = answers(Desk(ScriptedEngine(n_ctx=512), sharing="ride"))
    desk = Desk(TwoLanes(n_ctx=512), sharing="split")
    planner = desk.scheduler.planner
    planner._abreast = lambda: not planner.writing and len(planner.reading) > 1  # type: ignore[method-assign]
    read: list[Stream] = []
    original = planner.done

    def done(work: Work, *arguments: float) -> None:
        if work.lane == "decode" and not work.n_steps:
            read.extend(piece.stream for piece in work.pieces)
        original(work, *arguments)

    planner.done = done  # type: ignore[method-assign]
    assert answers(desk) == alone
    assert read
