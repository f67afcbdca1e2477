from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from edgeinfer.errors import EngineError, NumericError
from tests.fakes import N_VOCAB, ScriptedEngine
from tests.schedule.desk import Desk, wait_until


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


def slow(seconds: float = 0.002, **settings: Any) -> ScriptedEngine:
    """An engine that takes its time."""
    engine = ScriptedEngine(**settings)
    engine.before = lambda batch: time.sleep(seconds)
    return engine


def test_an_answer_from_start_to_end() -> None:
    answer = Desk().ask([1, 2, 3], max_tokens=6)
    assert answer.finish_reason is None
    chunks = list(answer)
    assert (len(chunks), answer.finish_reason, answer.n_prompt, answer.seed) == (6, "length", 3, 7)
    assert answer.timings.n_out == 6
    assert list(answer) == []
    answer.close()
    answer.cancel()
    assert answer.finish_reason == "length"


def test_text_is_the_rest_in_one_piece() -> None:
    first = next(iter(whole := Desk().ask([1, 2, 3], max_tokens=6))).text
    assert first + whole.text() == Desk().ask([1, 2, 3], max_tokens=6).text()


def test_text_is_the_same_when_asked_again() -> None:
    answer = Desk().ask([1, 2, 3], max_tokens=6)
    text = answer.text()
    assert (answer.text(), answer.text()) == (text, text)
    assert len(text) == 6
    begun = Desk().ask([1, 2, 3], max_tokens=6)
    next(begun)
    assert (begun.text(), begun.text()) == (text[1:], text[1:])  # the rest, both times

    async def read() -> list[str]:
        late = Desk().ask_async([1, 2, 3], max_tokens=6)
        return [await late.text(), await late.text()]

    assert asyncio.run(read()) == [text, text]


def test_an_answer_is_made_whether_or_not_it_is_read() -> None:
    desk = Desk()
    answer = desk.ask([1, 2, 3], max_tokens=6)
    wait_until(desk.at_rest)
    assert answer.finish_reason is None  # what the reader knows of it
    assert answer.timings.n_out == 6
    assert len(list(answer)) == 6


@pytest.mark.parametrize("n_read", [0, 1, 3])
@pytest.mark.parametrize("leave", ["close", "drop", "with"])
def test_an_abandoned_answer_is_ended_and_its_pages_returned(leave: str, n_read: int) -> None:
    desk = Desk(slow(n_ctx=4096))
    expected = Desk().ask([5, 6, 7], max_tokens=6).text()
    answer = desk.ask([1, 2, 3])
    for _ in range(n_read):
        next(answer)
    if leave == "close":
        answer.close()
        assert desk.at_rest()  # close waits for the step
        assert answer.finish_reason == "cancelled"
        assert list(answer) == []
    elif leave == "with":
        with answer:
            pass
        assert desk.at_rest()
        assert answer.finish_reason == "cancelled"
    else:
        del answer  # no cycle keeps it alive: the last reference ends it
    wait_until(desk.at_rest)
    assert desk.ask([5, 6, 7], max_tokens=6).text() == expected
    gc.collect()


def test_cancel_ends_it_with_a_chunk() -> None:
    desk = Desk(slow(n_ctx=4096))
    answer = desk.ask([1, 2, 3])
    next(answer)
    answer.cancel()
    assert [chunk.finish_reason for chunk in answer] == ["cancelled"]
    assert answer.timings.n_out < 100
    assert desk.at_rest()
    early = desk.ask([1, 2, 3])
    early.cancel()
    assert [chunk.finish_reason for chunk in early] == ["cancelled"]


def test_cancel_leaves_out_what_was_not_read() -> None:
    desk = Desk()
    answer = desk.ask([1, 2, 3], max_tokens=6)
    next(answer)
    wait_until(desk.at_rest)
    answer.cancel()
    assert [(chunk.text, chunk.finish_reason) for chunk in answer] == [("", "cancelled")]
    assert answer.finish_reason == "cancelled"


def test_threads_are_answered_together() -> None:
    prompts = [[i, i + 1, i + 2] for i in range(8)]
    expected = [Desk().ask(prompt, max_tokens=20).text() for prompt in prompts]
    desk = Desk(slow())  # the engine itself refuses two forwards at once
    started = [in_thread(lambda prompt=prompt: desk.ask(prompt, max_tokens=20).text()) for prompt in prompts]
    for thread, _ in started:
        thread.join(20)
    assert [result for _, result in started] == [[text] for text in expected]
    assert len(desk.engine.calls) < 8 * 20 / 2


def test_one_thread_may_hold_several_answers() -> None:
    desk = Desk(slow())
    first, second = desk.ask([1, 2, 3], max_tokens=6), desk.ask([4, 5, 6], max_tokens=6)
    mixed = [(next(first).token, next(second).token) for _ in range(6)]
    assert [a for a, _ in mixed] == [chunk.token for chunk in Desk().ask([1, 2, 3], max_tokens=6)]
    assert [b for _, b in mixed] == [chunk.token for chunk in Desk().ask([4, 5, 6], max_tokens=6)]


def test_two_threads_may_read_one_answer() -> None:
    answer = Desk(slow(n_ctx=4096)).ask([1, 2, 3], max_tokens=200)
    readers = [in_thread(lambda: [chunk.token for chunk in answer]) for _ in range(3)]
    for thread, _ in readers:
        thread.join(20)
        assert not thread.is_alive()
    read = [token for _, (result,) in readers for token in result]
    assert sorted(read) == sorted(
        chunk.token or 0 for chunk in Desk(slow(0, n_ctx=4096)).ask([1, 2, 3], max_tokens=200)
    )


def test_close_ends_the_wait_of_another_thread() -> None:
    desk = Desk()
    go_on = threading.Event()
    desk.engine.before = lambda batch: go_on.wait(10)
    answer = desk.ask([1, 2, 3], max_tokens=20)
    thread, result = in_thread(lambda: len(list(answer)))
    time.sleep(0.02)
    closing, _ = in_thread(answer.close)
    time.sleep(0.02)
    assert closing.is_alive()  # the step is waited for
    go_on.set()
    thread.join(10)
    closing.join(10)
    assert not thread.is_alive()
    assert not closing.is_alive()
    assert result[0] <= 1
    assert answer.finish_reason == "cancelled"
    assert len(list(desk.ask([4, 5, 6], max_tokens=6))) == 6


def test_close_from_inside_a_step_does_not_wait_for_itself() -> None:
    desk = Desk()
    box: list[Any] = []

    def close(batch: Any) -> None:
        wait_until(lambda: box)
        if len(desk.engine.calls) == 2:
            box[0].close()

    desk.engine.before = close
    box.append(desk.ask([1, 2, 3], max_tokens=20))
    list(box[0])
    wait_until(desk.at_rest)
    assert box[0].finish_reason == "cancelled"
    desk.engine.before = lambda batch: None
    assert len(list(desk.ask([4, 5, 6], max_tokens=6))) == 6


def test_an_error_ends_its_own_answer_only() -> None:
    def row(history: tuple[int, ...]) -> Any:
        return [float("nan")] * N_VOCAB if history[0] == 1 and len(history) == 4 else 97

    desk = Desk(ScriptedEngine(row))
    desk.engine.before = lambda batch: time.sleep(0.002)
    bad, good = desk.ask([1, 2, 3], max_tokens=20), desk.ask([4, 5, 6], max_tokens=20)
    with pytest.raises(NumericError, match="step 1"):
        list(bad)
    assert (bad.finish_reason, list(bad)) == ("error", [])
    assert bad.timings.total_s is not None
    assert good.text() == "a" * 20


# asyncio


def test_async_answers() -> None:
    prompts = [[i, i + 1, i + 2] for i in range(8)]
    expected = [Desk().ask(prompt, max_tokens=20).text() for prompt in prompts]
    desk = Desk(slow())

    async def all_at_once() -> list[str]:
        return list(await asyncio.gather(*(desk.ask_async(prompt, max_tokens=20).text() for prompt in prompts)))

    assert asyncio.run(all_at_once()) == expected


def test_async_iteration_and_its_end() -> None:
    desk = Desk()

    async def read() -> None:
        async with desk.ask_async([1, 2, 3], max_tokens=6) as answer:
            chunks = [chunk async for chunk in answer]
        assert [chunk.finish_reason for chunk in chunks] == [None] * 5 + ["length"]
        assert (answer.finish_reason, answer.timings.n_out) == ("length", 6)
        with pytest.raises(StopAsyncIteration):
            await answer.__anext__()

    asyncio.run(read())


def test_the_event_loop_is_not_blocked() -> None:
    desk = Desk(slow(0.05))

    async def read() -> float:
        answer = desk.ask_async([1, 2, 3], max_tokens=4)
        task = asyncio.ensure_future(answer.text())
        longest, last = 0.0, time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        await task
        return longest

    assert asyncio.run(read()) < 0.045


@pytest.mark.parametrize("how", ["task", "aclose", "cancel", "timeout", "drop"])
def test_async_cancel(how: str) -> None:
    desk = Desk(slow(n_ctx=4096))

    async def read() -> None:
        answer = desk.ask_async([1, 2, 3])
        await answer.__anext__()
        if how == "task":
            task = asyncio.ensure_future(answer.text())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert answer.finish_reason == "cancelled"
        elif how == "aclose":
            await answer.aclose()
            assert [chunk async for chunk in answer] == []
        elif how == "cancel":
            answer.cancel()
            assert [chunk.finish_reason async for chunk in answer] == ["cancelled"]
        elif how == "timeout":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(answer.text(), 0.02)

    asyncio.run(read())
    wait_until(desk.at_rest)
    assert desk.ask([4, 5, 6], max_tokens=6).finish_reason is None


def test_an_async_answer_whose_loop_is_gone() -> None:
    desk = Desk(slow(n_ctx=4096))
    kept: list[Any] = []

    async def read() -> None:
        kept.append(desk.ask_async([1, 2, 3]))
        await kept[0].__anext__()

    asyncio.run(read())
    time.sleep(0.02)  # it goes on, for nobody
    assert len(desk.ask([4, 5, 6], max_tokens=6).text()) >= 1
    kept.clear()
    wait_until(desk.at_rest)


def test_async_errors_are_raised_at_the_reader() -> None:
    desk = Desk(ScriptedEngine.says([97, [float("nan")] * N_VOCAB], after=3))

    async def read() -> None:
        answer = desk.ask_async([1, 2, 3])
        with pytest.raises(NumericError, match="step 1"):
            await answer.text()
        assert answer.finish_reason == "error"

    asyncio.run(read())


def test_after_a_close_nothing_is_answered() -> None:
    desk = Desk(slow(n_ctx=4096))
    running = desk.ask([1, 2, 3])
    next(running)
    desk.close()
    desk.close()
    assert [chunk.finish_reason for chunk in running][-1] == "cancelled"
    with pytest.raises(EngineError, match="closed"):
        desk.ask([1, 2, 3])
    assert desk.engine.kv.held == {}
