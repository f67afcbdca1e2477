from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import SettingError
from edgeinfer.schedule.options import ScheduleSettings
from edgeinfer.schedule.sharing import AGAIN
from edgeinfer.schedule.work import Work
from tests.schedule.board import Board, cpu


def chunks(board: Board) -> list[int]:
    """The rows of prompts in each forward that had any."""
    return [work.rows - work.n_steps for _, _, work in board.works if work.rows > work.n_steps]


def answering(board: Board, n: int = 1, n_most: int = 4000) -> list[Any]:
    """n streams that answer, past the first tokens."""
    streams = [board.add(40, n_most) for _ in range(n)]
    board.run(lambda: all(len(s.answer) > 20 for s in streams))
    return streams


# the gap while another prompt is read


@pytest.mark.parametrize("sharing", ["ride", "split", "auto"])
@pytest.mark.parametrize("n_answering", [1, 8])
def test_the_longest_gap_while_a_long_prompt_is_read(sharing: str, n_answering: int) -> None:
    board = Board(sharing=sharing)
    streams = answering(board, n_answering)
    usual = board.gaps(streams[0])[-1]
    began = board.now
    reader = board.add(4096, 1)
    board.run(lambda: reader.over)
    longest = max(max(board.gaps(s, began, board.now)) for s in streams)
    assert longest <= max(4 * usual, 0.020)
    assert board.now - began < 4 * cpu(Work("prefill", 2, [], None, rows=4096, looks=4096 * 2048), False)


def test_a_gap_that_was_asked_for() -> None:
    board = Board(sharing="ride", target_gap_s=0.05)
    (stream,) = answering(board)
    began, reader = board.now, board.add(4096, 1)
    board.run(lambda: reader.over)
    gaps = board.gaps(stream, began)
    assert max(gaps) < 0.056
    assert sorted(gaps)[len(gaps) // 2] > 0.04  # the time is used


def test_chunks_fill_tiles_and_are_never_below_one() -> None:
    board = Board(sharing="ride", target_gap_s=0.0001)
    answering(board, 3)
    n = len(board.works)
    reader = board.add(999, 1)
    board.run(lambda: reader.over)
    works = [work for _, _, work in board.works[n:] if work.rows > work.n_steps]
    assert {work.rows - work.n_steps for work in works[:-2]} == {3}  # with an answer half a tile
    board = Board(sharing="ride", target_gap_s=0.03)
    answering(board, 3)
    n = len(board.works)
    reader = board.add(999, 1)
    board.run(lambda: reader.over)
    works = [work for _, _, work in board.works[n:] if work.rows > work.n_steps]
    assert all(work.rows % 8 == 0 for work in works[:-2])


def test_a_machine_that_slows_down() -> None:
    slow = [1.0]
    board = Board(lambda work, other: slow[0] * cpu(work, other), sharing="ride")
    (stream,) = answering(board)
    reader = board.add(2000, 1)
    board.run(lambda: len(board.gaps(stream)) > 60)
    slow[0] = 2.5
    board.run(lambda: len(board.gaps(stream)) > 75)
    began = board.now
    board.run(lambda: reader.over)
    target = 3.2 * 2.5 * 0.0065
    assert max(board.gaps(stream, began, board.now)) < 1.3 * target


# alone


def test_a_prompt_alone_leaves_a_cancel_soon_heard() -> None:
    board = Board()
    board.add(8000, 1)
    board.run()
    took = [end - start for start, end, _ in board.works]
    assert max(took) < 0.030
    rows = chunks(board)
    assert max(rows) == 32
    assert all(n % 8 == 0 for n in rows[:-1])
    assert all(work.n_threads == 2 for _, _, work in board.works)


@pytest.mark.parametrize(("sharing", "most"), [("auto", 128), ("whole", 512)])
def test_chunks_grow_on_a_fast_machine(sharing: str, most: int) -> None:
    board = Board(lambda work, other: 1e-5 * work.rows, sharing=sharing)
    board.add(8000, 1)
    board.run()
    assert max(chunks(board)) == most


def test_short_prompts_share_a_forward() -> None:
    board = Board()
    board.add(300, 1)
    board.run()  # so that the cost is known
    n = len(board.works)
    for _ in range(4):
        board.add(10, 5)
    board.run()
    assert len(board.works[n][2].pieces) >= 3


def test_whole_reads_every_prompt_before_answers_go_on() -> None:
    board = Board(sharing="whole")
    (stream,) = answering(board)
    began, n = board.now, len(board.works)
    first, second = board.add(1500, 300), board.add(700, 300)
    board.run(lambda: len(first.answer) > 2 and len(second.answer) > 2)
    works = [work for _, _, work in board.works[n:]]
    assert [work.rows for work in works if work.lane == "prefill"] == [512] * 4 + [1500 + 700 - 4 * 512]
    lanes = [name for name, _ in itertools.groupby(work.lane for work in works)]
    assert lanes in (["prefill", "decode"], ["decode", "prefill", "decode"])
    assert max(board.gaps(stream, began)) > 0.5


# who gets the cores


def test_one_thread_can_only_ride() -> None:
    board = Board(n_threads=1)
    answering(board)
    reader = board.add(500, 1)
    board.run(lambda: reader.over)
    assert board.planner.sharing.stats()["way"] == "ride"
    assert "one thread" in board.planner.sharing.reason
    with pytest.raises(SettingError, match="two or more"):
        Board(n_threads=1, sharing="split")


@pytest.mark.parametrize(("serial", "way"), [(0.0, "ride"), (0.9, "split 1+1")])
def test_the_better_way_is_found_by_trying(serial: float, way: str) -> None:
    """Where one thread is nearly as fast as two, two forwards at once do more; where it is half as fast, riding does."""
    board = Board(lambda work, other: cpu(work, other, serial=serial))
    answering(board, 2)
    reader = board.add(4000, 1)
    board.run(lambda: reader.over)
    stats = board.planner.stats()["sharing"]
    assert stats["way"] == way
    assert stats["reason"].startswith("measured")
    assert set(stats["measured"]) == {"ride", "split 1+1"}
    assert all(figures["tokens_s"] > 0 for figures in stats["measured"].values())
    board.planner.sharing.measure()
    assert board.planner.stats()["sharing"]["way"] == "measuring"


def test_a_choice_to_ride_is_looked_at_again() -> None:
    """A machine on which a split does little while it is tried first, and more than riding later."""
    settled: list[bool] = []
    board = Board(lambda work, other: cpu(work, other, serial=0.9 if settled else 0.0))
    answering(board, 2, n_most=1500)
    board.add(8000, 1)
    sharing = board.planner.sharing
    board.run(lambda: not sharing.measuring)
    assert str(sharing.way) == "ride"
    settled.append(True)
    board.run(lambda: sharing.measuring)
    assert sum(work.way is sharing.ride for _, _, work in board.works) >= AGAIN
    board.run(lambda: not sharing.measuring)
    assert str(sharing.way) == "split 1+1"
    board.run()
    assert str(sharing.way) == "split 1+1"


def test_four_threads_try_more_than_one_split() -> None:
    board = Board(lambda work, other: cpu(work, other, n_threads=4), n_threads=4)
    answering(board, 2)
    reader = board.add(6000, 1)
    board.run(lambda: reader.over)
    assert set(board.planner.stats()["sharing"]["measured"]) == {"ride", "split 3+1", "split 2+2"}


def test_threads_are_never_lent_twice_and_all_are_used() -> None:
    board = Board(sharing="split")
    answering(board, 2, n_most=300)
    board.add(3000, 2)
    board.run()
    used = {(work.lane, work.n_threads, work.way is not None) for _, _, work in board.works}
    assert used == {("prefill", 2, False), ("decode", 2, False), ("prefill", 1, True), ("decode", 1, True)}


# who is next


def test_priorities_and_aging() -> None:
    board = Board(max_streams=1, aging_s=1.0)
    busy = board.add(10, 200, "voice")  # nobody takes its place
    board.run(lambda: len(busy.answer) > 2)
    late = board.add(10, 100, "background")
    board.now += 0.1
    mid = board.add(10, 100, "interactive")
    board.now += 0.1
    voice = board.add(10, 100, "voice")
    board.run(lambda: busy.over)
    board.now += 2.0
    second = board.add(10, 100, "voice")  # the background has waited two steps' worth longer
    board.run()
    assert board.finished == [busy, voice, mid, late, second]


def test_a_voice_takes_the_place_of_the_background() -> None:
    board = Board(max_streams=2)
    streams = [board.add(10, 500, "background") for _ in range(2)]
    board.run(lambda: all(len(s.answer) > 5 for s in streams))
    voice = board.add(10, 10, "voice")
    began = board.now
    board.run(lambda: voice.over)
    assert board.now - began < 0.5
    assert board.planner.n_preempted == 1
    board.run()
    assert len(board.finished) == 3
    assert [len(s.answer) for s in streams] == [500, 500]


def test_streams_that_outgrow_the_pages_take_turns() -> None:
    board = Board(n_pages=10, n_ctx=640)
    streams = [board.add(60, 400) for _ in range(4)]
    board.run()
    assert [len(s.answer) for s in streams] == [400] * 4
    assert board.planner.n_preempted > 0
    assert streams[0].run.n_preempted == 0  # the first one never had to give way
    assert board.planner.ledger.reserved == 0


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 500),
            st.integers(1, 200),
            st.sampled_from(["voice", "interactive", "background"]),
            st.integers(0, 30),
        ),
        min_size=1,
        max_size=12,
    ),
    n_pages=st.integers(11, 40),
    max_streams=st.integers(1, 6),
    sharing=st.sampled_from(["auto", "ride", "split", "whole"]),
    cancel_at=st.integers(0, 60),
)
def test_whatever_comes_ends_and_gives_everything_back(
    requests: list[tuple[int, int, str, int]], n_pages: int, max_streams: int, sharing: str, cancel_at: int
) -> None:
    board = Board(n_pages=n_pages, n_ctx=704, max_streams=max_streams, sharing=sharing)
    streams = []
    for n_prompt, n_most, priority, steps in requests:
        streams.append(board.add(n_prompt, n_most, priority))
        for _ in range(steps):
            board.step()
    for _ in range(cancel_at):
        board.step()
    streams[0].cancelled = True
    board.run()
    assert set(board.finished) == set(streams)
    assert all(len(s.answer) == s.n_most for s in streams[1:])
    planner = board.planner
    assert (planner.ledger.reserved, planner.n_active, len(planner.line), planner.running) == (0, 0, 0, {})
    for stream in streams:  # decoding never skips a stream: its tokens are in order of the clock
        assert stream.run.times == sorted(stream.run.times)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("max_streams", 0),
        ("max_streams", 1.5),
        ("max_queue", -1),
        ("sharing", "both"),
        ("target_gap_s", 0),
        ("max_wait_s", float("inf")),
        ("aging_s", "long"),
    ],
)
def test_settings_that_cannot_be_used(name: str, bad: Any) -> None:
    with pytest.raises(SettingError, match=name):
        ScheduleSettings(**{name: bad})
