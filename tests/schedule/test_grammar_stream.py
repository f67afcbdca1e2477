"""Answers with a schema, a regex or a grammar, from the scripted engine through the scheduler."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import SettingError
from edgeinfer.llm import LLM
from tests.fakes import EOS, ByteTokenizer, ScriptedEngine, ToyTemplate, hashed

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "on": {"type": "boolean"}},
    "required": ["n", "on"],
    "additionalProperties": False,
}


def llm(answer: Any = hashed, n_ctx: int = 400) -> LLM:
    tokenizer: Any = ByteTokenizer()
    engine: Any = ScriptedEngine(answer, n_ctx=n_ctx)
    template: Any = ToyTemplate(tokenizer)
    return LLM(engine, tokenizer, template, seed=1)


def test_the_answer_fits_and_ends_by_itself() -> None:
    with llm() as model:
        for seed in range(8):
            answer = model.chat([{"role": "user", "content": "hi"}], json_schema=SCHEMA, seed=seed, temperature=1.5)
            text = answer.text()
            found = json.loads(text)
            assert found.keys() == {"n", "on"}
            assert type(found["n"]) is int
            assert (answer.finish_reason, answer.stopped_by) == ("stop", None)
            assert (
                text
                == model.chat(
                    [{"role": "user", "content": "hi"}], json_schema=json.dumps(SCHEMA), seed=seed, temperature=1.5
                ).text()
            )


def test_a_limit_inside_the_json_is_told_as_length() -> None:
    with llm() as model:
        answer = model.generate("x", json_schema=SCHEMA, seed=1, max_tokens=5)
        text = answer.text()
        assert answer.finish_reason == "length"
        with pytest.raises(ValueError, match="JSON|delimiter|value|string"):
            json.loads(text)
        short = model.generate("x", regex="abc", max_tokens=3)
        assert (short.text(), short.finish_reason) == ("abc", "stop")  # it is whole at its limit
        full = model.generate("x" * 390, json_schema={}, seed=2, temperature=2.0, top_k=0)
        full.text()
        assert full.finish_reason in ("stop", "length")


def test_no_forward_is_spent_on_an_end_that_is_certain() -> None:
    with llm() as model:
        engine: Any = model._engine
        answer = model.generate("x", regex="abc")
        assert answer.text() == "abc"
        assert engine.n_evaluated == 1 + 2


def test_the_end_token_ends_where_the_grammar_may() -> None:
    def wants_to_end(history: tuple[int, ...]) -> Any:
        row = np.zeros(260, np.float32)
        row[EOS] = 30.0
        row[ord("b")] = 10.0
        return row

    with llm(wants_to_end) as model:
        answer = model.generate("x", regex="b{3,9}", temperature=0)
        assert answer.text() == "bbb"
        assert (answer.finish_reason, answer.stopped_by) == ("stop", EOS)


def test_stop_strings_and_grammars_together() -> None:
    with llm() as model:
        answer = model.generate("x", regex="[ab]{4}END[ab]{4}", stop="END", seed=3)
        assert len(answer.text()) == 4
        assert answer.stopped_by == "END"


def test_streams_have_matchers_of_their_own() -> None:
    with llm() as model:
        answers = [model.generate("x", regex=f"[a-c]{{{n}}}", seed=n) for n in range(2, 12)]
        texts = [answer.text() for answer in answers]
        assert [len(text) for text in texts] == list(range(2, 12))
        alone = [model.generate("x", regex=f"[a-c]{{{n}}}", seed=n).text() for n in range(2, 12)]
        assert texts == alone


def test_mistakes_are_raised_before_anything_is_evaluated() -> None:
    with llm() as model:
        for shape in ({"regex": "a("}, {"json_schema": "{"}, {"grammar": "root ::= x"}, {"json_schema": {"type": 1}}):
            with pytest.raises(SettingError, match=next(iter(shape))):
                model.generate("x", **shape)  # type: ignore[arg-type]
        engine: Any = model._engine
        assert engine.n_evaluated == 0
        assert model.generate("x", max_tokens=2).text()
