"""Thinking through the whole of `llm.chat`: chunks, budget, stop strings, cancelling, and what goes back as history."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.errors import SettingError
from edgeinfer.load import LLM
from edgeinfer.model.thinking import FORMATS, Thinking
from tests.fakes import EOS, ByteTokenizer, ScriptedEngine
from tests.thinkers import THINK, ThinkingTemplate, marked, spelled
from tests.tiny import build_tiny

ASK = [{"role": "user", "content": "hi"}]


def model(script: list[int] | bytes, thinking: Any = None, *, opens: bool = False, **more: Any) -> LLM:
    """A model that says a script whatever it is asked; forced tokens take the place of its own."""
    tokenizer, made = thinking if isinstance(thinking, tuple) else (ByteTokenizer(), thinking or spelled())
    template: Any = ThinkingTemplate(tokenizer, made, opens)
    words = list(script)

    def answer(history: tuple[int, ...]) -> int:
        place = len(history) - template.n
        return words[place] if place < len(words) else EOS

    engine: Any = ScriptedEngine(answer, n_ctx=500, n_vocab=tokenizer.n_vocab)
    any_tokenizer: Any = tokenizer
    return LLM(engine, any_tokenizer, template, seed=1, **more)


def test_reasoning_chunks_come_first_and_text_is_the_answer() -> None:
    with model(b"<think>\nhm\n</think>\n\nYes.") as llm:
        answer = llm.chat(ASK)
        chunks = list(answer)
    assert "".join(chunk.text for chunk in chunks if chunk.reasoning) == "hm\n" == answer.reasoning
    assert "".join(chunk.text for chunk in chunks if not chunk.reasoning) == "Yes."
    kinds = [chunk.reasoning for chunk in chunks if chunk.text]
    assert kinds == sorted(kinds, reverse=True)
    assert bytes(chunk.token for chunk in chunks if chunk.token is not None) == b"<think>\nhm\n</think>\n\nYes."
    assert [chunk.finish_reason for chunk in chunks][-1] == "stop"
    with model(b"<think>\nhm\n</think>\n\nYes.") as llm:
        assert llm.chat(ASK).text() == "Yes."


def test_a_template_that_opens_the_thinking() -> None:
    with model(b"hm</think>Yes.", opens=True) as llm:
        answer = llm.chat(ASK)
        assert (answer.text(), answer.reasoning) == ("Yes.", "hm")
    with model(b"hm</think>Yes.", opens=False) as llm:
        assert llm.chat(ASK).text() == "hm</think>Yes."  # nothing opened it: it is text


def test_asynchronously() -> None:
    async def ask() -> tuple[str, str]:
        with model(b"<think>hm</think>Yes.") as llm:
            answer = llm.achat(ASK)
            return await answer.text(), answer.reasoning

    assert asyncio.run(ask()) == ("Yes.", "hm")


def test_one_token_may_end_the_thinking_and_begin_the_answer() -> None:
    tokenizer = ByteTokenizer([b"m</think>Y"])
    with model([*b"<think>h", 260, *b"es"], (tokenizer, spelled(tokenizer=tokenizer))) as llm:
        chunks = list(llm.chat(ASK))
    texts = [(chunk.text, chunk.token, chunk.reasoning) for chunk in chunks if chunk.text]
    assert texts == [("h", ord("h"), True), ("m", None, True), ("Y", 260, False), ("e", 101, False), ("s", 115, False)]


@pytest.mark.parametrize("budget", [0, 3])
def test_the_budget_ends_it(budget: int) -> None:
    tokenizer, thinking = marked()
    start, end = thinking.marks.values()
    with model([start, *b"ponder for a long time"], (tokenizer, thinking)) as llm:
        answer = llm.chat(ASK, think_budget=budget, max_tokens=12)
        chunks = list(answer)
    tokens = [chunk.token for chunk in chunks if chunk.token is not None]
    assert tokens[: budget + 4] == [start, *b"ponder"[:budget], end, 10, 10]
    assert answer.reasoning == "ponder"[:budget]
    assert len(tokens) == 12
    assert (
        "".join(chunk.text for chunk in chunks if not chunk.reasoning) == bytes(tokens[budget + 4 :]).decode().lstrip()
    )


def test_no_thinking_by_the_switch_or_by_force() -> None:
    switched = Thinking(THINK, on={"enable_thinking": True}, off={"enable_thinking": False}, tail=spelled().tail)
    with model(b"Yes.", switched, opens=True) as llm:
        template: Any = llm.template
        llm.chat(ASK, thinking=False).text()
        assert template.asked[-1] == {"enable_thinking": False}
        llm.chat(ASK, thinking=True).text()
        assert template.asked[-1] == {"enable_thinking": True}
        llm.chat(ASK).text()
        assert template.asked[-1] == {}
    with model(b"ponder", opens=True) as llm:  # without a switch
        answer = llm.chat(ASK, thinking=False, max_tokens=14)
        tokens = [chunk.token for chunk in answer]
        assert bytes(tokens[:10]) == b"</think>\n\n"  # type: ignore[arg-type]
        assert answer.reasoning == ""


def test_stop_strings_look_at_the_answer_only() -> None:
    with model(b"<think>one\ntwo</think>a\nb") as llm:
        answer = llm.chat(ASK, stop="\n")
        assert (answer.text(), answer.reasoning, answer.stopped_by) == ("a", "one\ntwo", "\n")


def test_an_end_in_the_middle_of_thinking_loses_nothing() -> None:
    with model(b"<think>hm </th") as llm:
        answer = llm.chat(ASK)
        assert (answer.text(), answer.reasoning, answer.finish_reason) == ("", "hm </th", "stop")
        answer = llm.chat(ASK, max_tokens=9)
        assert (answer.text(), answer.reasoning, answer.finish_reason) == ("", "hm", "length")


def test_completion_and_models_without_thinking_are_left_alone() -> None:
    with model(b"<think>hm</think>Yes.") as llm:
        n = len(llm.template.encode(ASK))  # type: ignore[union-attr]
        assert llm.generate(list(range(n))).text() == "<think>hm</think>Yes."
        llm.template.thinking = None  # type: ignore[union-attr]
        assert llm.chat(ASK).text() == "<think>hm</think>Yes."
        with pytest.raises(SettingError, match="knows no thinking"):
            llm.chat(ASK, thinking=True)
        assert llm.chat(ASK, thinking=False, think_budget=3).text() == "<think>hm</think>Yes."


def test_timings_count_the_first_thought_as_text() -> None:
    with model(b"<think>hm</think>Yes.") as llm:
        answer = llm.chat(ASK, max_tokens=9)
        assert answer.text() == ""
        assert answer.timings.ttft_s is not None


# -- a real file, engine and tokenizer --------------------------------------------------------------------------------

QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}"
)


def test_a_tiny_model_whose_template_opens_the_thinking(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "tiny.gguf", template=QWEN3)
    with edgeinfer.load(path, seed=3) as llm:
        assert llm.template is not None
        assert llm.template.thinking is not None
        answer = llm.chat(ASK, think_budget=6, max_tokens=40, temperature=0, ignore_eos=True)
        chunks = list(answer)
        tokens = [chunk.token for chunk in chunks if chunk.token is not None]
        close = list(llm.template.thinking.close_ids)
        assert tokens[6 : 6 + len(close)] == close
        assert len(tokens) == 40
        assert "</think>" not in answer.reasoning
        assert all(not chunk.reasoning for chunk in chunks[-20:])
        text = "".join(chunk.text for chunk in chunks if not chunk.reasoning)
        whole = llm.tokenizer.decode(tokens)
        assert whole.startswith(answer.reasoning + "</think>")
        assert whole.endswith(text)
        plain = llm.chat(ASK, thinking=False, max_tokens=9, temperature=0, ignore_eos=True)
        assert (plain.text() != "", plain.reasoning) == (True, "")
        free = llm.chat(ASK, max_tokens=9, temperature=0, ignore_eos=True)
        assert free.text() == ""
        assert free.reasoning.startswith(answer.reasoning[:3])


# -- grammars hold for the answer only --------------------------------------------------------------------------------


def asked(llm: LLM, **more: Any) -> tuple[str, str, str | None, bytes]:
    """Answer, thinking, how it ended, and the tokens that are bytes (others as '#')."""
    answer = llm.chat(ASK, temperature=0, **more)
    chunks = list(answer)
    text = "".join(chunk.text for chunk in chunks if not chunk.reasoning)
    tokens = bytes(chunk.token if chunk.token < 256 else ord("#") for chunk in chunks if chunk.token is not None)
    return text, answer.reasoning, answer.finish_reason, tokens


@pytest.mark.parametrize("regex", ["[0-9]{2}", "(42|hm)", "[0-9]+"])
def test_a_grammar_sleeps_while_an_opened_thinking_goes_on(regex: str) -> None:
    with model(b"12 or 42?</think>\n42", opens=True) as llm:
        template: Any = llm.template
        text, thoughts, reason, _ = asked(llm, regex=regex, max_tokens=40)
        assert template.opens
        assert thoughts == "12 or 42?"
        # the script's new line is not allowed behind the mark; what comes in its place is, and the script goes on
        assert re.fullmatch(regex, text)
        assert reason == "stop"


@pytest.mark.parametrize("budget", [None, 4])
def test_a_grammar_begins_behind_the_mark_and_what_models_see_behind_it(budget: int | None) -> None:
    tokenizer, thinking = marked()
    start, end = thinking.marks.values()
    thoughts = b"9999" if budget else b"99999"
    said = [start, *thoughts, *([] if budget else [end]), *([0] * (3 if budget else 2)), *b"42."]
    with model(said, (tokenizer, thinking)) as llm:
        text, found, reason, tokens = asked(llm, regex="[0-9]{2}", think_budget=budget)
    assert (text, found, reason) == ("42", thoughts.decode(), "stop")
    assert tokens == b"#" + thoughts + b"#\n\n42"


def test_a_model_that_answers_at_once_is_held_from_its_first_token() -> None:
    for thinking in (marked(), spelled()):
        with model(b"Yes. 42", thinking) as llm:
            text, thoughts, reason, _ = asked(llm, regex="[0-9]{2}")
            assert re.fullmatch("[0-9]{2}", text)
            assert (thoughts, reason) == ("", "stop")
    tokenizer, switched = marked()
    with model([switched.marks["<think>"], *b"42"], (tokenizer, switched)) as llm:  # no thinking is asked for
        text, thoughts, _, tokens = asked(llm, regex="[0-9]{2}", thinking=False)
        assert (len(text), thoughts, b"#" in tokens) == (2, "", False)


def test_an_end_token_in_the_thinking_ends_the_thinking_only() -> None:
    with model([*b"hm", EOS, *b"__________42"], opens=True) as llm:
        text, thoughts, reason, tokens = asked(llm, json_schema={"type": "integer", "minimum": 10, "maximum": 99})
    assert (thoughts, reason) == ("hm", "stop")
    assert tokens.startswith(b"hm</think>\n\n")
    assert 10 <= int(text) <= 99


def test_an_answer_glued_to_the_mark_is_held_to_the_grammar() -> None:
    tokenizer = ByteTokenizer([b">\n4", b">Y"])
    for glued, wanted in ((260, "42"), (261, None)):
        with model([*b"hm</think", glued, *b"2"], (tokenizer, spelled(tokenizer=tokenizer)), opens=True) as llm:
            text, thoughts, reason, _ = asked(llm, regex="[0-9]{2}")
            assert re.fullmatch("[0-9]{2}", text)
            assert text == (wanted or text)
            assert (thoughts.startswith("hm"), reason) == (True, "stop")


def test_white_space_and_marks_that_the_grammar_wants_are_the_answer() -> None:
    with model(b"hm</think>\n<think>x", opens=True) as llm:
        assert asked(llm, regex="\n<think>x")[:2] == ("\n<think>x", "hm")


def test_channels_with_a_grammar() -> None:
    tokenizer, thinking = marked(FORMATS[0])
    channel, message, end, start = thinking.marks.values()
    final = [start, *b"assistant", channel, *b"final", message]
    with model(
        [channel, *b"analysis", message, *b"hm 7", end, *([0] * len(final)), *b"42."], (tokenizer, thinking)
    ) as llm:
        text, thoughts, reason, _ = asked(llm, regex="[0-9]{2}")
        assert (text, thoughts, reason) == ("42", "hm 7", "stop")
    with model([channel, *b"final", message, *b"42."], (tokenizer, thinking)) as llm:
        assert asked(llm, regex="[0-9]{2}")[:3] == ("42", "", "stop")


def test_heads_with_a_grammar() -> None:
    solar = next(known for known in FORMATS if known.name == "solar")
    tokenizer, thinking = marked(solar)
    begin, end, think, content, _ = thinking.marks.values()
    rest = [0] * (len(thinking.close_ids) - 1)  # what the script says where the marks behind the thinking are forced
    with model([think, *b"hm 7", end, *rest, *b"42."], (tokenizer, thinking)) as llm:
        answer = llm.chat(ASK, temperature=0, regex="[0-9]{2}")
        tokens = [chunk.token for chunk in answer if chunk.token is not None]
        assert tokens == [think, *b"hm 7", end, begin, *b"assistant", content, *b"42"]
        assert asked(llm, regex="[0-9]{2}")[:3] == ("42", "hm 7", "stop")
    with model([content, *b"42."], (tokenizer, thinking)) as llm:
        assert asked(llm, regex="[0-9]{2}")[:3] == ("42", "", "stop")
    with model([think, *b"hm 7", end, begin, *b"assistant", content, *b"Yes."], (tokenizer, thinking)) as llm:
        assert asked(llm)[:3] == ("Yes.", "hm 7", "stop")
        assert asked(llm, think_budget=2)[1] == "hm"


def test_a_limit_inside_the_thinking_is_told() -> None:
    with model(b"ponder for long", opens=True) as llm:
        assert asked(llm, regex="[0-9]{2}", max_tokens=6)[:3] == ("", "ponder", "length")


@pytest.mark.parametrize("seed", range(4))
def test_a_tiny_model_with_a_schema_whatever_it_thinks(tmp_path: Path, seed: int) -> None:
    path = build_tiny(tmp_path / "tiny.gguf", template=QWEN3)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    with edgeinfer.load(path, seed=seed) as llm:
        shape = {**schema, "additionalProperties": False}
        answer = llm.chat(ASK, json_schema=shape, think_budget=9, temperature=1.5, max_tokens=120)
        text = answer.text()
        assert answer.reasoning
        if answer.finish_reason == "stop":
            assert json.loads(text).keys() == {"n"}
        free = llm.chat(ASK, think_budget=9, temperature=1.5, max_tokens=9, seed=3)
        held = llm.chat(ASK, think_budget=9, temperature=1.5, max_tokens=9, seed=3, json_schema=shape)
        assert (free.text(), free.reasoning) == (held.text(), held.reasoning)  # thoughts are chosen freely
