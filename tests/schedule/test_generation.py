from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from edgeinfer.errors import EngineError, NumericError
from edgeinfer.generate.params import SamplingParams
from edgeinfer.schedule.generation import Gate, Generation
from edgeinfer.schedule.session import Run, Session
from tests.fakes import N_VOCAB, ByteTokenizer, ScriptedEngine


class Desk:
    """A session behind a gate, and the answers that are asked of it."""

    def __init__(self, engine: ScriptedEngine | None = None) -> None:
        self.engine = engine or ScriptedEngine()
        self.session = Session(self.engine, ByteTokenizer())
        self.gate = Gate()

    def ask(self, prompt: list[int], max_tokens: int = 6) -> Generation:
        run = Run(time.perf_counter())
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        return Generation(self.session.answer(prompt, params, run), run, self.gate, seed=7)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start work in a thread; its result, or its error, arrives in the list."""
    result: list[Any] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, result


def test_an_answer_from_start_to_end() -> None:
    desk = Desk()
    answer = desk.ask([1, 2, 3])
    assert desk.engine.calls == []  # nothing runs before the first chunk is asked for
    assert (answer.finish_reason, answer.timings.ttft_s) == (None, None)
    chunks = list(answer)
    assert (len(chunks), answer.finish_reason, answer.n_prompt, answer.seed) == (6, "length", 3, 7)
    assert answer.timings.n_out == 6
    assert list(answer) == []
    answer.close()
    answer.cancel()
    assert answer.finish_reason == "length"


def test_text_is_the_rest_in_one_piece() -> None:
    first = next(iter(whole := Desk().ask([1, 2, 3]))).text
    assert first + whole.text() == Desk().ask([1, 2, 3]).text()


@pytest.mark.parametrize("n_read", [0, 1, 3])
@pytest.mark.parametrize("leave", ["close", "drop", "with"])
def test_an_abandoned_answer_lets_the_next_one_in(leave: str, n_read: int) -> None:
    desk = Desk()
    expected = Desk().ask([5, 6, 7]).text()
    answer = desk.ask([1, 2, 3])
    for _ in range(n_read):
        next(answer)
    if leave == "close":
        answer.close()
        assert answer.finish_reason == "cancelled"
        assert list(answer) == []
    elif leave == "with":
        with answer:
            pass
        assert answer.finish_reason == "cancelled"
    else:
        del answer  # no cycle keeps it alive: the last reference ends it
    assert desk.ask([5, 6, 7]).text() == expected
    gc.collect()


def test_cancel_ends_it_with_a_chunk() -> None:
    desk = Desk()
    answer = desk.ask([1, 2, 3])
    next(answer)
    answer.cancel()
    assert [chunk.finish_reason for chunk in answer] == ["cancelled"]
    assert answer.timings.n_out == 1
    early = desk.ask([1, 2, 3])
    early.cancel()
    assert [chunk.finish_reason for chunk in early] == ["cancelled"]


def test_two_threads_take_turns() -> None:
    prompts = [[i, i + 1, i + 2] for i in range(8)]
    expected = [Desk().ask(prompt, 20).text() for prompt in prompts]
    desk = Desk()
    desk.engine.before = lambda batch: time.sleep(0.0005)  # the engine itself refuses two forwards at once
    started = [in_thread(lambda prompt=prompt: desk.ask(prompt, 20).text()) for prompt in prompts]
    for thread, _ in started:
        thread.join(20)
    assert [result for _, result in started] == [[text] for text in expected]


def test_the_same_thread_is_not_left_waiting_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "PATIENCE_S", 0.05)
    desk = Desk()
    first = desk.ask([1, 2, 3])
    next(first)
    second = desk.ask([4, 5, 6])
    with pytest.raises(EngineError, match="close"):
        next(second)
    assert (second.finish_reason, list(second)) == ("error", [])
    assert len(list(first)) == 5
    assert len(list(desk.ask([4, 5, 6]))) == 6


def test_an_answer_that_another_thread_moves_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "PATIENCE_S", 0.2)
    desk = Desk()
    first = desk.ask([1, 2, 3], 30)
    next(first)  # in this thread, the rest in another, as a pool of threads does it

    def rest() -> int:
        n = 0
        for _ in first:
            time.sleep(0.01)
            n += 1
        return n

    thread, result = in_thread(rest)
    assert len(list(desk.ask([4, 5, 6]))) == 6
    thread.join(10)
    assert result == [29]


def test_a_waiting_answer_can_be_cancelled() -> None:
    desk = Desk()
    first = desk.ask([1, 2, 3])
    next(first)
    second = desk.ask([4, 5, 6])
    thread, result = in_thread(lambda: [chunk.finish_reason for chunk in second])
    time.sleep(0.05)
    assert thread.is_alive()
    second.cancel()
    thread.join(10)
    assert result == [["cancelled"]]
    assert len(list(first)) == 5  # the other one is not disturbed


def test_close_from_another_thread_waits_for_the_step() -> None:
    desk = Desk()
    at_step, go_on = threading.Event(), threading.Event()

    def step(batch: Any) -> None:
        if len(desk.engine.calls) == 2:
            at_step.set()
            go_on.wait(10)

    desk.engine.before = step
    answer = desk.ask([1, 2, 3], 20)
    thread, result = in_thread(lambda: len(list(answer)))
    assert at_step.wait(10)
    closing, _ = in_thread(answer.close)
    time.sleep(0.02)
    assert closing.is_alive()
    go_on.set()
    thread.join(10)
    closing.join(10)
    assert result[0] <= 4
    assert answer.finish_reason == "cancelled"
    desk.engine.before = lambda batch: None
    assert len(list(desk.ask([4, 5, 6]))) == 6


def test_close_from_inside_a_step_ends_it_after_the_step() -> None:
    desk = Desk()
    answer = desk.ask([1, 2, 3], 20)
    desk.engine.before = lambda batch: answer.close() if len(desk.engine.calls) == 2 else None
    assert list(answer)[-1].finish_reason == "cancelled"
    assert answer.timings.n_out == 3
    desk.engine.before = lambda batch: None
    assert len(list(desk.ask([4, 5, 6]))) == 6


def test_an_error_lets_the_next_one_in() -> None:
    row = [float("nan")] * N_VOCAB
    desk = Desk(ScriptedEngine.says([97, row], after=3))
    answer = desk.ask([1, 2, 3])
    with pytest.raises(NumericError, match="step 1"):
        list(answer)
    assert (answer.finish_reason, list(answer)) == ("error", [])
    assert answer.timings.total_s is not None
    assert desk.ask([1, 2, 3], 1).text() == "a"
