from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import ContextOverflowError, EngineError, NumericError, SettingError
from edgeinfer.generate.chunk import Chunk
from tests.fakes import BOS, EOM, EOS, EOT, N_VOCAB, ScriptedEngine, peak
from tests.schedule.desk import Desk, scripted, text, tokens, wait_until


class Clock:
    """A clock that moves on by a second each time it is read, and as far as it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


PROMPT = [65, 66]


# case 23: stop strings over token borders


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "reason"),
    [
        ([b"D", b"EF", b"GHI", b"J", b"K"], "EFGHIJ", ["D", "", "", ""], "stop"),
        ([b"?\n", b"more"], "\n", ["?"], "stop"),
        ([b"D", b"EF"], "EFGHIJ", ["D", "", "EF"], "stop"),  # the end token comes: what was held is good text
        ([b"a", b"EF", b"GX"], "EFGHIJ", ["a", "", "EFGX", ""], "stop"),
        ([b"STOP"], ["STOP"], [""], "stop"),
        ([b"ab", b"cd"], ["abcd", "bc"], ["", "a"], "stop"),
        ([b"x", b"end\xe6", b"\xad\xaa"], "end", ["x", ""], "stop"),  # the stop string ends inside a token
        ([b"\xf0\x9f", b"\x98\xb8!"], "\U0001f638", ["", ""], "stop"),
        ([b"ab"], [""], ["ab", ""], "stop"),
    ],
)
def test_stop_strings(pieces: list[bytes], stop: Any, shown: list[str], reason: str) -> None:
    desk = scripted(pieces)
    chunks, run = desk.answer(PROMPT, stop=stop)
    assert [chunk.text for chunk in chunks] == shown
    assert run.finish_reason == reason


def test_a_stop_string_says_that_it_was_the_reason() -> None:
    desk = scripted([b"one", b"two", b"three"])
    chunks, run = desk.answer(PROMPT, stop=["four", "two"])
    assert (run.stopped_by, tokens(chunks)) == ("two", [N_VOCAB, N_VOCAB + 1])
    assert desk.engine.n_evaluated == 3  # the token that completed it was not evaluated


def test_text_held_back_comes_out_at_the_token_limit() -> None:
    desk = scripted([b"D", b"EF", b"GH"])
    chunks, _ = desk.answer(PROMPT, stop="EFGHIJ", max_tokens=2)
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("D", None), ("EF", "length")]


def test_characters_are_never_split() -> None:
    desk = scripted([b"\xf0\x9f\x98", b"\xb8", b"\xe6\xad", b"\xaa", b"\xf0\x9f\x98\xb8\xf0\x9f", b"\x98\xb8.", b"x"])
    chunks, _ = desk.answer(PROMPT)
    assert [chunk.text for chunk in chunks] == ["", "\U0001f638", "", "歪", "\U0001f638", "\U0001f638.", "x", ""]


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    desk = scripted([b"a", b"\xf0\x9f"])
    assert text(desk.answer(PROMPT)[0]) == "a\ufffd"
    desk = scripted([b"a", b"\xf0\x9f", b"b"])
    assert text(desk.answer(PROMPT, max_tokens=2)[0]) == "a\ufffd"


# case 24: more than one end token


@pytest.mark.parametrize("end", [EOS, EOT, EOM])
def test_every_end_token_ends_it_and_none_is_shown(end: int) -> None:
    engine = ScriptedEngine.says([*b"Hi", end, *b"no"], after=2)
    chunks, run = Desk(engine).answer(PROMPT)
    assert text(chunks) == "Hi"
    assert chunks[-1] == Chunk("", None, "stop")
    assert (run.finish_reason, run.stopped_by) == ("stop", end)
    assert run.timings().n_out == 2


def test_an_end_token_at_once() -> None:
    engine = ScriptedEngine.says([EOT], after=2)
    chunks, run = Desk(engine).answer(PROMPT)
    assert chunks == [Chunk("", None, "stop")]
    figures = run.timings()
    assert (figures.n_out, figures.ttft_s, figures.tpot_s, figures.decode_tok_s) == (0, None, None, None)
    assert figures.prefill_tok_s is not None


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_ignore_eos_goes_on_to_the_limit(temperature: float) -> None:
    def row(history: tuple[int, ...]) -> Any:
        logits = peak(97)
        logits[[EOS, EOT, EOM]] = 40.0
        return logits

    desk = Desk(ScriptedEngine(row))
    chunks, run = desk.answer(PROMPT, ignore_eos=True, max_tokens=5, temperature=temperature, top_k=1)
    assert (text(chunks), run.finish_reason) == ("aaaaa", "length")
    chunks, run = desk.answer(PROMPT, ignore_eos=True)
    assert len(PROMPT) + len(tokens(chunks)) == 64
    assert desk.answer(PROMPT, max_tokens=5)[1].stopped_by == EOS


# case 25: not-a-number in the logits


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_logits_end_it_naming_the_step_and_free_the_request(bad: float) -> None:
    row = np.full(N_VOCAB, bad, np.float32)
    desk = Desk(ScriptedEngine.says([97, 98, row], after=2))
    chunks = desk.ask(PROMPT)
    assert [next(chunks).text, next(chunks).text] == ["a", "b"]
    with pytest.raises(NumericError, match="step 2"):
        next(chunks)
    wait_until(desk.at_rest)
    assert desk.ids == [[65, 66, 97, 98]] == list(desk.engine.kv.held.values())
    assert text(desk.answer(PROMPT, max_tokens=2)[0]) == "ab"


def test_masked_logits_are_fine() -> None:
    row = np.full(N_VOCAB, -np.inf, np.float32)
    row[99] = -3.0
    engine = ScriptedEngine.says([row], after=2)
    assert text(Desk(engine).answer(PROMPT)[0]) == "c"


# case 30: prefill in pieces


@pytest.mark.parametrize("n_batch", [1, 2, 3, 5, 12, 13, 14, 26])
def test_any_prompt_works_at_any_batch_size(n_batch: int) -> None:
    prompt = list(range(13))
    whole = tokens(Desk(ScriptedEngine()).answer(prompt, max_tokens=6)[0])
    engine = ScriptedEngine(n_batch=n_batch)
    assert tokens(Desk(engine).answer(prompt, max_tokens=6)[0]) == whole
    pieces = [n for lane, n in engine.calls if lane == "prefill"]
    assert sum(pieces) == 13
    assert all(n == n_batch for n in pieces[:-1])
    assert [n for lane, n in engine.calls if lane == "decode"] == [1] * 5  # the last token is not evaluated


# case 31: the context limit


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "n_out"), [(62, None, 2), (63, None, 1), (62, 10, 2), (62, 1, 1), (63, 1, 1)]
)
def test_what_fits_runs_to_exactly_the_context(n_prompt: int, max_tokens: int | None, n_out: int) -> None:
    engine = ScriptedEngine(n_ctx=64)
    chunks, run = Desk(engine).answer([65] * n_prompt, max_tokens=max_tokens)
    assert (len(tokens(chunks)), run.finish_reason) == (n_out, "length")
    assert engine.n_evaluated <= 64


@pytest.mark.parametrize("n_prompt", [64, 65, 1000])
def test_without_room_it_is_refused_with_both_numbers_before_anything_runs(n_prompt: int) -> None:
    engine = ScriptedEngine(n_ctx=64)
    desk = Desk(engine)
    with pytest.raises(ContextOverflowError, match=rf"prompt is {n_prompt} tokens .* holds 64"):
        desk.answer([65] * n_prompt)
    assert (engine.calls, engine.kv.held) == ([], {})


def test_nothing_of_the_prompt_is_dropped() -> None:
    engine = ScriptedEngine(lambda history: history[0], n_ctx=64, n_batch=7)
    chunks, _ = Desk(engine).answer([90, *[65] * 60])
    assert text(chunks) == "ZZZ"


def test_prompts_that_cannot_be_evaluated() -> None:
    desk = Desk()
    with pytest.raises(SettingError, match="no token"):
        desk.answer([])
    with pytest.raises(SettingError, match=r"token id 260 at position 1"):
        desk.answer([1, 260])
    with pytest.raises(SettingError, match=r"token id -1 at position 0"):
        desk.answer([-1])
    with pytest.raises(SettingError, match="list of ints"):
        desk.answer([1.5])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="list of ints"):
        desk.answer([[1]])  # type: ignore[list-item]


# case 32: the same prompt twice


@pytest.mark.parametrize("n_prompt", [1, 15, 16, 32])
def test_the_same_prompt_three_times(n_prompt: int) -> None:
    engine = ScriptedEngine()
    desk = Desk(engine)
    prompt = list(range(n_prompt))
    cold, run = desk.answer(prompt, max_tokens=8)
    assert (run.n_reused, run.n_prefill) == (0, n_prompt)
    for _ in range(2):
        warm, run = desk.answer(prompt, max_tokens=8)
        assert tokens(warm) == tokens(cold)
        assert (run.n_reused, run.n_prefill) == (n_prompt - 1, 1)  # at least one token is evaluated
        assert run.timings().n_reused == n_prompt - 1


def test_a_prompt_that_is_a_prefix_or_a_continuation_of_what_is_held() -> None:
    engine = ScriptedEngine()
    desk = Desk(engine)
    full = list(range(20))

    def cold(prompt: list[int]) -> list[int]:
        return tokens(Desk(ScriptedEngine()).answer(prompt, max_tokens=4)[0])

    desk.answer(full, max_tokens=4)
    for prompt, n_reused in [(full[:10], 9), (full, 19), ([*full[:9], 200], 9), ([9, 9], 0), ([9, 9, 7], 0)]:
        warm, run = desk.answer(prompt, max_tokens=4)
        assert (tokens(warm), run.n_reused) == (cold(prompt), n_reused), prompt
    said = tokens(warm)
    _, run = desk.answer([9, 9, 7, *said, 50], max_tokens=1)
    assert run.n_reused == 6  # the last token of an answer was never evaluated
    assert 3 <= len(engine.kv.held) <= 8  # what goes on differently leaves the first conversation alone


def test_a_cache_that_can_only_rewind_further_is_believed() -> None:
    engine = ScriptedEngine(grain=4)
    desk = Desk(engine)
    prompt = list(range(10))
    cold, _ = desk.answer(prompt, max_tokens=4)
    warm, run = desk.answer(prompt, max_tokens=4)
    assert (tokens(warm), run.n_reused, run.n_prefill) == (tokens(cold), 8, 2)


# whatever ends an answer, the cache is valid afterwards


def agree(desk: Desk) -> None:
    """The idle sessions and the cache know of the same tokens, and the next answer is right."""
    wait_until(desk.at_rest)
    assert desk.ids == list(desk.engine.kv.held.values())
    desk.engine.before = desk.engine.after = lambda batch: None
    prompt = [*range(12), 77]
    expected = tokens(Desk(ScriptedEngine()).answer(prompt, max_tokens=5)[0])
    assert tokens(desk.answer(prompt, max_tokens=5)[0]) == expected


@pytest.mark.parametrize("n_chunks", [0, 1, 3])
def test_a_reader_that_walks_away(n_chunks: int) -> None:
    desk = Desk(ScriptedEngine(n_batch=4))
    asked = desk.ask(range(10))
    for _ in range(n_chunks):
        next(asked)
    asked.close()
    assert (asked.finish_reason, list(asked)) == ("cancelled", [])
    agree(desk)


@pytest.mark.parametrize("error", [EngineError("gone"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", [0, 1, 2, 4])
def test_an_error_in_mid_forward(error: BaseException, moment: str, call: int) -> None:
    desk = Desk(ScriptedEngine(n_batch=4))

    def fail(batch: Any) -> None:
        if len(desk.engine.calls) == call:
            raise error

    setattr(desk.engine, moment, fail)
    asked = desk.ask(range(10))
    with pytest.raises(type(error)):
        list(asked)
    assert (asked.finish_reason, asked.timings.total_s is None) == ("error", False)
    agree(desk)


def test_a_sequence_that_cannot_be_mended_is_given_up() -> None:
    desk = Desk()

    def fail(batch: Any) -> None:
        desk.engine.kv.broken = True
        raise EngineError("gone")

    desk.engine.after = fail
    with pytest.raises(EngineError, match="gone"):
        desk.answer(PROMPT)
    assert (desk.ids, desk.engine.kv.held) == ([], {})
    desk.engine.kv.broken = False
    agree(desk)


def test_cancel_between_pieces_of_the_prompt() -> None:
    desk = Desk(ScriptedEngine(n_batch=4))
    asked: list[Any] = []

    def cancel(batch: Any) -> None:
        wait_until(lambda: asked)
        if len(desk.engine.calls) == 1:  # in the second piece
            asked[0].cancel()

    desk.engine.after = cancel
    asked.append(desk.ask(range(14)))
    assert list(asked[0]) == [Chunk("", None, "cancelled")]
    assert (asked[0].timings.n_prefill, asked[0].timings.ttft_s) == (8, None)
    assert desk.ids == [list(range(8))]
    agree(desk)


def test_cancel_between_steps_flushes_what_was_held() -> None:
    desk = scripted([b"a", b"EF", b"GH"])
    held = threading.Event()

    def pause(batch: Any) -> None:
        if len(desk.engine.calls) == 2:
            held.wait(10)

    desk.engine.before = pause
    asked = desk.ask(PROMPT, stop=("EFGX",))
    assert [next(asked).text, next(asked).text] == ["a", ""]
    asked.cancel()
    held.set()
    # the token of the step that was being made is left out, and with it what it would have shown
    assert [chunk.finish_reason for chunk in asked] == ["cancelled"]
    early = scripted([b"a", b"EF", b"GH"])
    early.engine.after = lambda batch: asked_now[0].cancel() if len(early.engine.calls) == 1 else None
    asked_now: list[Any] = []
    early.engine.before = lambda batch: wait_until(lambda: asked_now)
    asked_now.append(early.ask(PROMPT, stop=("EFGX",)))
    assert list(asked_now[0])[-1].finish_reason == "cancelled"


def test_reset_gives_the_sequence_back() -> None:
    desk = Desk()
    desk.answer(PROMPT, max_tokens=3)
    desk.scheduler.reset()
    desk.scheduler.reset()
    assert (desk.ids, desk.engine.kv.held) == ([], {})
    assert desk.answer(PROMPT, max_tokens=3)[1].n_reused == 0
    desk.engine.close()
    desk.scheduler.reset()


# case 60: figures


def test_figures_with_a_clock() -> None:
    clock = Clock()
    engine = ScriptedEngine.says(b"abcd", after=2, n_batch=1)

    def work(batch: Any) -> None:
        clock.now += 10.0

    engine.before = work
    asked = Desk(engine, clock=clock).ask(PROMPT, max_tokens=4)
    list(asked)
    figures = asked._stream.run.timings(load_s=5.0, compile_s=7.0)
    assert (figures.n_prompt, figures.n_prefill, figures.n_out) == (2, 2, 4)
    assert figures.prefill_s == 22.0  # two forwards of 10, each with one more reading of the clock
    assert figures.prefill_tok_s == 2 / 22.0
    assert figures.decode_s is not None
    assert 30.0 < figures.decode_s < 60.0  # three steps after the first token, each with readings of the clock
    assert figures.decode_tok_s == 3 / figures.decode_s
    assert figures.tpot_s is not None
    assert len(figures.itl_s) == 3
    assert sum(figures.itl_s) == pytest.approx(3 * figures.tpot_s)
    assert figures.ttft_s is not None
    assert 22.0 < figures.ttft_s < 60.0
    assert figures.queue_s is not None
    assert figures.queue_s < 10.0
    assert (figures.load_s, figures.compile_s) == (5.0, 7.0)


def test_a_slow_reader_does_not_count() -> None:
    desk = Desk(ScriptedEngine())
    asked = desk.ask([1, 2, 3], max_tokens=5)
    next(asked)
    time.sleep(0.2)
    list(asked)
    figures = asked.timings
    assert figures.total_s is not None
    assert figures.total_s < 0.2
    assert max(figures.itl_s) < 0.2


def test_ttft_waits_for_the_first_text() -> None:
    clock = Clock()
    desk = scripted([b"\xf0\x9f", b"\x98\xb8"], clock=clock)
    engine = desk.engine

    def work(batch: Any) -> None:
        clock.now += 50.0

    engine.before = work
    ttft = desk.answer(PROMPT)[1].timings().ttft_s
    assert ttft is not None
    assert 100.0 < ttft < 120.0  # prefill and one decode step: the first token alone shows nothing


def test_one_token_has_no_rate() -> None:
    run = Desk(ScriptedEngine()).answer([BOS], max_tokens=1)[1]
    figures = run.timings()
    assert (figures.n_out, figures.decode_s, figures.decode_tok_s, figures.tpot_s) == (1, None, None, None)
    assert figures.itl_s == ()


def test_penalties_see_the_prompt_and_the_answer() -> None:
    def row(history: tuple[int, ...]) -> Any:
        logits = np.zeros(N_VOCAB, np.float32)
        logits[[97, 98, 99]] = [3.0, 2.5, 2.0]
        return logits

    desk = Desk(ScriptedEngine(row))
    chunks, _ = desk.answer([97], presence_penalty=1.0, max_tokens=4)
    assert text(chunks) == "baaa"  # a was in the prompt; after b, both are down by one and a leads with c, the lower id
    assert text(desk.answer([65], max_tokens=3)[0]) == "aaa"
