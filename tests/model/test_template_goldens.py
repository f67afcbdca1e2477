"""Every published template against Transformers' own rendering of it, recorded by scripts/template_goldens.py."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import TemplateError
from edgeinfer.model import sandbox
from edgeinfer.model.template import ChatTemplate
from tests import vocabularies
from tests.template_cases import CASES, NOW, TOKENS
from tests.tiny_tokenizers import spm

GOLDENS = json.loads((Path(__file__).parent.parent / "data" / "template_goldens.json").read_text())
TEMPLATES = GOLDENS["templates"]
# what must work for everybody: these may only be refused by a rule that the template itself states, or for its own fault
WANTED = ("plain", "system", "tools", "tool result", "thinking on", "thinking off")
FAULTS = {  # templates whose own code fails in Transformers too
    "CohereForAI-c4ai-command-r-plus-tool_use.jinja": "made for tools in its own form",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja": "made for tools only",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": "made for tools only",
    "Kimi-K2-Instruct.jinja": "appends to a list, which the sandbox forbids",
    "Kimi-K2-Thinking.jinja": "appends to a list, which the sandbox forbids",
    "fireworks-ai-llama-3-firefunction-v2.jinja": "wants a variable `functions`",
    "llama-cpp-deepseek-r1.jinja": "writes a generator as JSON",
    "meetkai-functionary-medium-v3.2.jinja": "wants arguments as text",
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return NOW

    monkeypatch.setattr(sandbox, "datetime", Frozen)


@cache
def tokenizer() -> Any:
    return spm()


def render(template: ChatTemplate, name: str) -> str:
    case = CASES[name]
    return template.render(case.messages, case.add_generation_prompt, case.tools, **case.variables)


def test_the_goldens_are_of_these_chats() -> None:
    assert len(TEMPLATES) == 70
    assert all(list(entry["cases"]) == list(CASES) for entry in TEMPLATES.values())
    found = {path.name for path in (vocabularies.folder() / "templates").glob("*.jinja")}
    assert found == set(TEMPLATES)
    assert {name: tokenizer().token_text(i) for name, i in zip(TOKENS, (1, 2, 0), strict=True)} == TOKENS


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(name: str, clock: None) -> None:
    path = vocabularies.folder() / "templates" / name
    assert hashlib.sha256(path.read_bytes()).hexdigest() == TEMPLATES[name]["sha256"], "another version of the template"
    template, wrong = ChatTemplate(path.read_bytes().decode(), tokenizer()), []
    for case, expected in TEMPLATES[name]["cases"].items():
        try:
            text: str | None = render(template, case)
        except TemplateError as error:
            text, message = None, str(error)
        if isinstance(expected, str):
            if text is None or hashlib.sha256(text.encode()).hexdigest()[:16] != expected:
                wrong.append((case, message if text is None else text))
            elif case in GOLDENS["texts"].get(name, {}):
                assert text == GOLDENS["texts"][name][case]
            continue
        kind, why = expected
        if text is not None or not re.match(r"the chat template (refused the messages|failed) in line \d+: ", message):
            wrong.append((case, text if text is not None else message))
        elif kind == "TemplateError":
            assert message.startswith("the chat template refused the messages in line ")
            assert message.endswith(why)
    assert not wrong, f"{len(wrong)} of {len(CASES)}: {wrong[0]}"


def test_what_is_refused_is_refused_by_the_template_itself() -> None:
    for name, entry in TEMPLATES.items():
        for case in WANTED:
            found = entry["cases"][case]
            if isinstance(found, list):
                assert found[0] == "TemplateError" or name in FAULTS, (name, case, found)


def test_whole_texts_are_recorded_for_reading() -> None:
    texts = GOLDENS["texts"]
    assert sum(len(found) for found in texts.values()) == 11
    assert texts["Qwen-Qwen3-0.6B.jinja"]["thinking off"].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
