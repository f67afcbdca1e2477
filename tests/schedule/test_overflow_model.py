"""The overflow policies on a real engine with a context of 64 tokens: what is documented, token for token."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import ContextOverflowError, EngineError
from edgeinfer.llm import LLM
from tests.tiny import build_tiny

N_CTX = 64
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 250, 200)]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = build_tiny(tmp_path_factory.mktemp("overflow") / "m.gguf")
    with edgeinfer.load(path, n_ctx=N_CTX, n_threads=1) as loaded:
        yield loaded


def ask(llm: LLM, prompt: Any, max_tokens: int | None, **more: Any) -> tuple[list[int], str | None, Any]:
    """The tokens, the finish reason, and what was dropped, of a greedy answer that no end token ends."""
    call = llm.generate if isinstance(prompt[0], int) else llm.chat
    answer = call(prompt, temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)
    tokens = [chunk.token for chunk in answer if chunk.token is not None]
    return tokens, answer.finish_reason, answer.dropped


def message_of(llm: LLM, n: int) -> list[dict[str, str]]:
    """One message whose prompt is n tokens."""
    assert llm.template is not None
    for n_letters in range(1, n):
        messages = [{"role": "user", "content": "q" * n_letters}]
        if len(llm.template.encode(messages)) == n:
            return messages
    raise AssertionError(n)


@pytest.mark.parametrize(("n", "max_tokens", "n_out"), [
    (62, 1, 1), (62, 10, 2), (62, None, 2), (63, 1, 1), (63, 10, 1), (63, None, 1),
])  # fmt: skip
def test_what_fits_runs_to_exactly_the_context(llm: LLM, n: int, max_tokens: int | None, n_out: int) -> None:
    tokens, reason, dropped = ask(llm, IDS[:n], max_tokens)
    assert (len(tokens), reason, dropped) == (n_out, "length", None)
    for policy in ("error", "drop-oldest-turns", "summarise"):
        tokens, reason, dropped = ask(llm, message_of(llm, n), max_tokens, overflow=policy)
        assert (len(tokens), reason, dropped) == (n_out, "length", None)


@pytest.mark.parametrize("n", [64, 65])
@pytest.mark.parametrize("max_tokens", [1, 10, None])
def test_without_room_it_is_refused_with_both_numbers(llm: LLM, n: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextOverflowError, match=rf"{n} tokens.* holds 64"):
        ask(llm, IDS[:n], max_tokens)
    for policy in ("error", "drop-oldest-turns", "summarise", "shift"):
        with pytest.raises(ContextOverflowError, match=rf"{n} tokens.* holds 64"):
            ask(llm, message_of(llm, n), max_tokens, overflow=policy)


@pytest.mark.parametrize("n", [62, 63, 64, 65, 150])
@pytest.mark.parametrize(("max_tokens", "n_out"), [(1, 1), (10, 10), (None, 64)])
def test_a_shifted_answer_ends(llm: LLM, n: int, max_tokens: int | None, n_out: int) -> None:
    tokens, reason, dropped = ask(llm, IDS[:n], max_tokens, overflow="shift")
    assert (len(tokens), reason) == (n_out, "length")
    assert (dropped is None) == (n + n_out <= N_CTX)
    expected, prompt, answer = [], IDS[:n], 0  # the same by hand: each piece is a prompt of its own, from nothing
    if n >= N_CTX:
        prompt = prompt[-N_CTX // 2 :]
    while len(expected) < n_out:
        llm.reset()
        piece, _, _ = ask(llm, prompt, min(N_CTX - len(prompt), n_out - len(expected)))
        expected += piece
        prompt = [*prompt, *piece][-N_CTX // 2 :]
        answer += 1
    assert tokens == expected
    assert dropped is None or dropped.n_shifts == answer - 1


def test_the_answer_is_that_of_the_shorter_conversation(llm: LLM) -> None:
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "world"},
        {"role": "user", "content": "what is"},
        {"role": "assistant", "content": "the"},
        {"role": "user", "content": "today"},
    ]
    assert llm.template is not None
    n = len(llm.template.encode(talk))
    tokens, _, dropped = ask(llm, talk, 8, overflow="drop-oldest-turns")
    if n + 8 <= N_CTX:
        pytest.fail(f"the conversation of {n} tokens fits")
    assert dropped is not None
    kept = [m for i, m in enumerate(talk) if i not in dropped.messages]
    assert kept[0] == talk[0]
    assert kept[-1] == talk[-1]
    assert dropped.n_prompt == n
    llm.reset()
    assert tokens == ask(llm, kept, 8)[0]
    with pytest.raises(ContextOverflowError):
        ask(llm, [*talk[:1], *talk[1:] * 3], 8)


LONG_TALK = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "world"},
    {"role": "user", "content": "what is"},
    {"role": "assistant", "content": "the"},
    {"role": "user", "content": "today"},
]


def slow_summaries(llm: LLM, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """Summaries take that long, and are "s"; returns the threads that they are written in."""
    threads: list[str] = []

    def write(messages: Any, n_tokens: int) -> str:
        threads.append(threading.current_thread().name)
        time.sleep(seconds)
        return "s"

    monkeypatch.setattr(llm, "_summary", write)
    return threads


def test_a_summary_does_not_hold_up_the_event_loop(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "overflow": "summarise"}
    threads = slow_summaries(llm, monkeypatch, 0.4)
    expected = llm.chat(LONG_TALK, **how).text()
    threads.clear()

    async def both() -> tuple[str, float, Any, Any]:
        began = time.perf_counter()
        answer = llm.achat(LONG_TALK, **how)
        with pytest.raises(EngineError, match="has not begun"):
            _ = answer.timings
        waiting = asyncio.create_task(answer.text())
        longest, last = time.perf_counter() - began, time.perf_counter()
        while not waiting.done():
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return await waiting, longest, answer.dropped, answer.timings

    text, longest, dropped, timings = asyncio.run(both())
    assert text == expected
    assert longest < 0.3  # the summary takes 0.4 s
    assert dropped is not None
    assert timings.n_out == 8
    assert threads
    assert "MainThread" not in threads


def test_an_answer_that_has_not_begun_can_be_ended(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "overflow": "summarise"}
    slow_summaries(llm, monkeypatch, 0.2)

    async def ends() -> None:
        answer = llm.achat(LONG_TALK, **how)
        answer.cancel()
        assert [chunk.finish_reason async for chunk in answer] == ["cancelled"]
        answer = llm.achat(LONG_TALK, **how)
        reading = asyncio.create_task(answer.text())
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert answer.finish_reason == "cancelled"
        async with llm.achat(LONG_TALK, **how) as unread:
            pass
        assert unread.finish_reason == "cancelled"

    asyncio.run(ends())
    planner = llm.scheduler.planner
    until = time.perf_counter() + 10
    while planner.n_active and time.perf_counter() < until:
        time.sleep(0.01)
    assert planner.n_active == 0
