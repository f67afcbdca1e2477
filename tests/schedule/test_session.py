from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import ContextOverflowError, EngineError, NumericError, SettingError
from edgeinfer.generate.chunk import Chunk
from edgeinfer.generate.params import SamplingParams
from edgeinfer.schedule.session import Run, Session
from tests.fakes import BOS, EOM, EOS, EOT, N_VOCAB, ByteTokenizer, ScriptedEngine, peak

GREEDY: dict[str, Any] = {"temperature": 0}


class Clock:
    """A clock that moves on by a second each time it is read, and as far as it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def answer(session: Session, prompt: Iterable[int], **params: Any) -> tuple[list[Chunk], Run]:
    """Run one answer to its end."""
    run = Run(0.0)
    chunks = list(session.answer(list(prompt), SamplingParams(**{**GREEDY, **params}), run))
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == run.finish_reason
    return chunks, run


def tokens(chunks: Iterable[Chunk]) -> list[int]:
    return [chunk.token for chunk in chunks if chunk.token is not None]


def text(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def scripted(pieces: list[bytes], **settings: Any) -> tuple[Session, ScriptedEngine]:
    """A session whose engine answers a prompt of two tokens with pieces, then with EOS."""
    tokenizer = ByteTokenizer(pieces)
    ids = [N_VOCAB + i for i in range(len(pieces))]
    engine = ScriptedEngine.says(ids, after=2, n_vocab=tokenizer.n_vocab, **settings)
    return Session(engine, tokenizer), engine


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
    session, _ = scripted(pieces)
    chunks, run = answer(session, PROMPT, stop=stop)
    assert [chunk.text for chunk in chunks] == shown
    assert run.finish_reason == reason


def test_a_stop_string_says_that_it_was_the_reason() -> None:
    session, engine = scripted([b"one", b"two", b"three"])
    chunks, run = answer(session, PROMPT, stop=["four", "two"])
    assert (run.stopped_by, tokens(chunks)) == ("two", [N_VOCAB, N_VOCAB + 1])
    assert engine.n_evaluated == 3  # the token that completed it was not evaluated


def test_text_held_back_comes_out_at_the_token_limit() -> None:
    session, _ = scripted([b"D", b"EF", b"GH"])
    chunks, _ = answer(session, PROMPT, stop="EFGHIJ", max_tokens=2)
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("D", None), ("EF", "length")]


def test_characters_are_never_split() -> None:
    session, _ = scripted(
        [b"\xf0\x9f\x98", b"\xb8", b"\xe6\xad", b"\xaa", b"\xf0\x9f\x98\xb8\xf0\x9f", b"\x98\xb8.", b"x"]
    )
    chunks, _ = answer(session, PROMPT)
    assert [chunk.text for chunk in chunks] == ["", "\U0001f638", "", "歪", "\U0001f638", "\U0001f638.", "x", ""]


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    session, _ = scripted([b"a", b"\xf0\x9f"])
    assert text(answer(session, PROMPT)[0]) == "a\ufffd"
    session, _ = scripted([b"a", b"\xf0\x9f", b"b"])
    assert text(answer(session, PROMPT, max_tokens=2)[0]) == "a\ufffd"


# case 24: more than one end token


@pytest.mark.parametrize("end", [EOS, EOT, EOM])
def test_every_end_token_ends_it_and_none_is_shown(end: int) -> None:
    engine = ScriptedEngine.says([*b"Hi", end, *b"no"], after=2)
    chunks, run = answer(Session(engine, ByteTokenizer()), PROMPT)
    assert text(chunks) == "Hi"
    assert chunks[-1] == Chunk("", None, "stop")
    assert (run.finish_reason, run.stopped_by) == ("stop", end)
    assert run.timings().n_out == 2


def test_an_end_token_at_once() -> None:
    engine = ScriptedEngine.says([EOT], after=2)
    chunks, run = answer(Session(engine, ByteTokenizer()), PROMPT)
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

    session = Session(ScriptedEngine(row), ByteTokenizer())
    chunks, run = answer(session, PROMPT, ignore_eos=True, max_tokens=5, temperature=temperature, top_k=1)
    assert (text(chunks), run.finish_reason) == ("aaaaa", "length")
    chunks, run = answer(session, PROMPT, ignore_eos=True)
    assert len(PROMPT) + len(tokens(chunks)) == 64
    assert answer(session, PROMPT, max_tokens=5)[1].stopped_by == EOS


# case 25: not-a-number in the logits


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_logits_end_it_naming_the_step_and_free_the_request(bad: float) -> None:
    row = np.full(N_VOCAB, bad, np.float32)
    engine = ScriptedEngine.says([97, 98, row], after=2)
    session = Session(engine, ByteTokenizer())
    chunks = session.answer(PROMPT, SamplingParams(temperature=0), Run(0.0))
    assert [next(chunks).text, next(chunks).text] == ["a", "b"]
    with pytest.raises(NumericError, match="step 2"):
        next(chunks)
    assert session.ids == (65, 66, 97, 98) == tuple(engine.kv.held[1])
    assert text(answer(session, PROMPT, max_tokens=2)[0]) == "ab"


def test_masked_logits_are_fine() -> None:
    row = np.full(N_VOCAB, -np.inf, np.float32)
    row[99] = -3.0
    engine = ScriptedEngine.says([row], after=2)
    assert text(answer(Session(engine, ByteTokenizer()), PROMPT)[0]) == "c"


# case 30: prefill in pieces


@pytest.mark.parametrize("n_batch", [1, 2, 3, 5, 12, 13, 14, 26])
def test_any_prompt_works_at_any_batch_size(n_batch: int) -> None:
    prompt = list(range(13))
    whole = tokens(answer(Session(ScriptedEngine(), ByteTokenizer()), prompt, max_tokens=6)[0])
    engine = ScriptedEngine(n_batch=n_batch)
    assert tokens(answer(Session(engine, ByteTokenizer()), prompt, max_tokens=6)[0]) == whole
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
    chunks, run = answer(Session(engine, ByteTokenizer()), [65] * n_prompt, max_tokens=max_tokens)
    assert (len(tokens(chunks)), run.finish_reason) == (n_out, "length")
    assert engine.n_evaluated <= 64


@pytest.mark.parametrize("n_prompt", [64, 65, 1000])
def test_without_room_it_is_refused_with_both_numbers_before_anything_runs(n_prompt: int) -> None:
    engine = ScriptedEngine(n_ctx=64)
    session = Session(engine, ByteTokenizer())
    with pytest.raises(ContextOverflowError, match=rf"prompt is {n_prompt} tokens .* holds 64"):
        answer(session, [65] * n_prompt)
    assert (engine.calls, engine.kv.held) == ([], {})


def test_nothing_of_the_prompt_is_dropped() -> None:
    engine = ScriptedEngine(lambda history: history[0], n_ctx=64, n_batch=7)
    chunks, _ = answer(Session(engine, ByteTokenizer()), [90, *[65] * 60])
    assert text(chunks) == "ZZZ"


def test_prompts_that_cannot_be_evaluated() -> None:
    session = Session(ScriptedEngine(), ByteTokenizer())
    with pytest.raises(SettingError, match="no token"):
        answer(session, [])
    with pytest.raises(SettingError, match=r"token id 260 at position 1"):
        answer(session, [1, 260])
    with pytest.raises(SettingError, match=r"token id -1 at position 0"):
        answer(session, [-1])
    with pytest.raises(SettingError, match="list of ints"):
        session.check([1.5])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="list of ints"):
        session.check([[1]])  # type: ignore[list-item]


# case 32: the same prompt twice


@pytest.mark.parametrize("n_prompt", [1, 15, 16, 32])
def test_the_same_prompt_three_times(n_prompt: int) -> None:
    engine = ScriptedEngine()
    session = Session(engine, ByteTokenizer())
    prompt = list(range(n_prompt))
    cold, run = answer(session, prompt, max_tokens=8)
    assert (run.n_reused, run.n_prefill) == (0, n_prompt)
    for _ in range(2):
        warm, run = answer(session, prompt, max_tokens=8)
        assert tokens(warm) == tokens(cold)
        assert (run.n_reused, run.n_prefill) == (n_prompt - 1, 1)  # at least one token is evaluated
        assert run.timings().n_reused == n_prompt - 1


def test_a_prompt_that_is_a_prefix_or_a_continuation_of_what_is_held() -> None:
    engine = ScriptedEngine()
    session = Session(engine, ByteTokenizer())
    full = list(range(20))

    def cold(prompt: list[int]) -> list[int]:
        return tokens(answer(Session(ScriptedEngine(), ByteTokenizer()), prompt, max_tokens=4)[0])

    answer(session, full, max_tokens=4)
    for prompt, n_reused in [(full[:10], 9), (full, 10), ([*full[:5], 200, 201], 5), ([9, 9], 0), ([9, 9, 7], 2)]:
        warm, run = answer(session, prompt, max_tokens=4)
        assert (tokens(warm), run.n_reused) == (cold(prompt), n_reused), prompt
    said = tokens(warm)
    _, run = answer(session, [9, 9, 7, *said, 50], max_tokens=1)
    assert run.n_reused == 6  # the last token of an answer was never evaluated
    assert len(engine.kv.held) == 1


def test_a_cache_that_can_only_rewind_further_is_believed() -> None:
    engine = ScriptedEngine(grain=4)
    session = Session(engine, ByteTokenizer())
    prompt = list(range(10))
    cold, _ = answer(session, prompt, max_tokens=4)
    warm, run = answer(session, prompt, max_tokens=4)
    assert (tokens(warm), run.n_reused, run.n_prefill) == (tokens(cold), 8, 2)


# whatever ends an answer, the cache is valid afterwards


def agree(session: Session, engine: ScriptedEngine) -> None:
    """The session and the cache know of the same tokens, and the next answer is right."""
    held = list(engine.kv.held.values())
    assert [list(session.ids)] == held or (session.ids == () and held == [])
    engine.before = engine.after = lambda batch: None
    prompt = [*range(12), 77]
    expected = tokens(answer(Session(ScriptedEngine(), ByteTokenizer()), prompt, max_tokens=5)[0])
    assert tokens(answer(session, prompt, max_tokens=5)[0]) == expected


@pytest.mark.parametrize("n_chunks", [0, 1, 3])
def test_a_reader_that_walks_away(n_chunks: int) -> None:
    engine = ScriptedEngine(n_batch=4)
    session = Session(engine, ByteTokenizer())
    run = Run(0.0)
    chunks = session.answer(list(range(10)), SamplingParams(temperature=0), run)
    for _ in range(n_chunks):
        next(chunks)
    chunks.close()
    assert run.finish_reason == ("cancelled" if n_chunks else None)
    assert len(session.ids) == (10 + n_chunks - 1 if n_chunks else 0)
    agree(session, engine)


@pytest.mark.parametrize("error", [EngineError("gone"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", [0, 1, 2, 4])
def test_an_error_in_mid_forward(error: BaseException, moment: str, call: int) -> None:
    engine = ScriptedEngine(n_batch=4)
    session = Session(engine, ByteTokenizer())

    def fail(batch: Any) -> None:
        if len(engine.calls) == call:
            raise error

    setattr(engine, moment, fail)
    run = Run(0.0)
    with pytest.raises(type(error)):
        list(session.answer(list(range(10)), SamplingParams(temperature=0), run))
    assert run.ended is not None
    agree(session, engine)


def test_a_sequence_that_cannot_be_mended_is_given_up() -> None:
    engine = ScriptedEngine()
    session = Session(engine, ByteTokenizer())

    def fail(batch: Any) -> None:
        engine.kv.broken = True
        raise EngineError("gone")

    engine.after = fail
    with pytest.raises(EngineError, match="gone"):
        answer(session, PROMPT)
    assert (session.ids, engine.kv.held) == ((), {})
    engine.kv.broken = False
    agree(session, engine)


def test_cancel_between_pieces_of_the_prompt() -> None:
    engine = ScriptedEngine(n_batch=4)
    session = Session(engine, ByteTokenizer())
    run = Run(0.0)

    def cancel(batch: Any) -> None:
        run.cancelled = len(engine.calls) == 1  # in the second piece

    engine.after = cancel
    chunks = list(session.answer(list(range(14)), SamplingParams(temperature=0), run))
    assert chunks == [Chunk("", None, "cancelled")]
    assert (run.n_prefill, len(session.ids)) == (8, 8)
    assert run.timings().ttft_s is None
    agree(session, engine)


def test_cancel_between_steps_flushes_what_was_held() -> None:
    session, _ = scripted([b"a", b"EF", b"GH"])
    run = Run(0.0)
    chunks = session.answer(PROMPT, SamplingParams(temperature=0, stop=("EFGX",)), run)
    assert [next(chunks).text, next(chunks).text] == ["a", ""]
    run.cancelled = True
    assert list(chunks) == [Chunk("EF", None, "cancelled")]


def test_reset_gives_the_sequence_back() -> None:
    engine = ScriptedEngine()
    session = Session(engine, ByteTokenizer())
    answer(session, PROMPT, max_tokens=3)
    session.reset()
    session.reset()
    assert (session.ids, engine.kv.held) == ((), {})
    assert answer(session, PROMPT, max_tokens=3)[1].n_reused == 0
    engine.close()
    session.reset()


# case 60: figures


def test_figures_with_a_clock() -> None:
    clock = Clock()
    engine = ScriptedEngine.says(b"abcd", after=2, n_batch=1)

    def work(batch: Any) -> None:
        clock.now += 10.0

    engine.before = work
    run = Run(clock(), clock)  # 101
    chunks = Session(engine, ByteTokenizer()).answer(PROMPT, SamplingParams(temperature=0, max_tokens=4), run)
    for _ in chunks:
        clock.now += 1000.0  # a reader that takes its time
    figures = run.timings(load_s=5.0, compile_s=7.0)
    assert (figures.n_prompt, figures.n_prefill, figures.n_out) == (2, 2, 4)
    assert figures.prefill_s == 22.0  # two forwards of 10, each with one more reading of the clock
    assert figures.prefill_tok_s == 2 / 22.0
    assert figures.decode_s == 33.0  # three steps after the first token, the reader excluded
    assert figures.decode_tok_s == 3 / 33.0
    assert figures.tpot_s is not None
    assert figures.tpot_s > 1000.0  # the reader's pauses are part of what the stream looked like
    assert len(figures.itl_s) == 3
    assert sum(figures.itl_s) == pytest.approx(3 * figures.tpot_s)
    assert figures.ttft_s is not None
    assert 22.0 < figures.ttft_s < 40.0
    assert (figures.load_s, figures.compile_s) == (5.0, 7.0)


def test_ttft_waits_for_the_first_text() -> None:
    clock = Clock()
    session, engine = scripted([b"\xf0\x9f", b"\x98\xb8"])

    def work(batch: Any) -> None:
        clock.now += 50.0

    engine.before = work
    run = Run(clock(), clock)
    list(session.answer(PROMPT, SamplingParams(temperature=0), run))
    ttft = run.timings().ttft_s
    assert ttft is not None
    assert 100.0 < ttft < 120.0  # prefill and one decode step: the first token alone shows nothing


def test_one_token_has_no_rate() -> None:
    run = answer(Session(ScriptedEngine(), ByteTokenizer()), [BOS], max_tokens=1)[1]
    figures = run.timings()
    assert (figures.n_out, figures.decode_s, figures.decode_tok_s, figures.tpot_s) == (1, None, None, None)
    assert figures.itl_s == ()


def test_penalties_see_the_prompt_and_the_answer() -> None:
    def row(history: tuple[int, ...]) -> Any:
        logits = np.zeros(N_VOCAB, np.float32)
        logits[[97, 98, 99]] = [3.0, 2.5, 2.0]
        return logits

    session = Session(ScriptedEngine(row), ByteTokenizer())
    chunks, _ = answer(session, [97], presence_penalty=1.0, max_tokens=4)
    assert text(chunks) == "baaa"  # a was in the prompt; after b, both are down by one and a leads with c, the lower id
    assert text(answer(session, [65], max_tokens=3)[0]) == "aaa"
