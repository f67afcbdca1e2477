"""Chats that every published template is rendered for, here and by Transformers (scripts/template_goldens.py)."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "NOW", "TOKENS", "Case"]

NOW = datetime.datetime(2026, 3, 7, 14, 5, 9)  # what the clock shows to templates
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # as tests.tiny_tokenizers.spm has them


@dataclass(frozen=True)
class Case:
    """What a template is given."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = _function(
    "get_weather",
    "Wetter <für> \"é\" & 'x'",
    {
        "city": {"type": "string", "description": "the city"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
    },
    ["city"],
)
BOOK = _function(
    "book",
    "Books\na table.",
    {
        "guests": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "when": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "a time"},
        "options": {"type": "object", "properties": {"smoke": {"type": "boolean"}}, "required": ["smoke"]},
        "price": {"type": ["number", "null"], "minimum": 0},
    },
    ["guests", "when"],
)
USER = {"role": "user", "content": "What is the weather in Paris?"}
SYSTEM = {"role": "system", "content": "You are terse."}


def _call(arguments: Any, index: int = 0, name: str = "get_weather") -> dict[str, Any]:
    return {"id": f"call{index:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(content: str, index: int = 0, name: str = "get_weather") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{index:05d}", "name": name, "content": content}


def _asks(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


PARIS, ROME = {"city": "Paris", "unit": "C"}, {"city": "Rom 罗马 <b>"}
TALK = [
    {"role": "user", "content": "  Hello é 你好 🙂 <b>&amp;</b> "},
    {"role": "assistant", "content": "Hi.\n"},
    {"role": "user", "content": "Again,\n\nplease."},
]
ON = {"enable_thinking": True, "thinking": True, "reasoning": True}
OFF = {"enable_thinking": False, "thinking": False, "reasoning": False}

CASES: dict[str, Case] = {
    "plain": Case([USER]),
    "conversation": Case(TALK),
    "system": Case([SYSTEM, USER]),
    "system and conversation": Case([SYSTEM, *TALK]),
    "empty texts": Case([{"role": "system", "content": ""}, {"role": "user", "content": ""}]),
    "no generation prompt": Case([*TALK, {"role": "assistant", "content": "Done."}], add_generation_prompt=False),
    "ends with the assistant": Case([*TALK, {"role": "assistant", "content": "Well"}]),
    "tools": Case([USER], [WEATHER]),
    "tools and system": Case([SYSTEM, USER], [WEATHER, BOOK]),
    "no tools": Case([USER], []),
    "tool call": Case([USER, _asks(_call(PARIS))], [WEATHER], add_generation_prompt=False),
    "tool result": Case([USER, _asks(_call(PARIS)), _result('{"t": 21.5}')], [WEATHER]),
    "tool result answered": Case(
        [
            USER,
            _asks(_call(PARIS)),
            _result("21"),
            {"role": "assistant", "content": "21 degrees."},
            {"role": "user", "content": "And Rome?"},
        ],
        [WEATHER],
    ),
    "two tool calls": Case(
        [SYSTEM, USER, _asks(_call(PARIS), _call(ROME, 1)), _result("21"), _result("25", 1)], [WEATHER, BOOK]
    ),
    "tool call with content": Case([USER, {**_asks(_call(PARIS)), "content": "Let me see."}, _result("21")], [WEATHER]),
    "tool call without content": Case([USER, {**_asks(_call(PARIS)), "content": None}, _result("21")], [WEATHER]),
    "tool arguments as text": Case([USER, _asks(_call('{"city": "Paris"}')), _result("21")], [WEATHER]),
    "tool result without call": Case([USER, _result("21")], [WEATHER]),
    "thinking on": Case([USER], variables=ON),
    "thinking off": Case([USER], variables=OFF),
    "thinking off with tools": Case([SYSTEM, USER], [WEATHER], OFF),
    "thinking in the text": Case([USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSun."}, *TALK], None, ON),
    "thinking beside the text": Case([USER, {"role": "assistant", "content": "Sun.", "reasoning_content": "hm"}, *TALK]),
    "thinking before a tool call": Case(
        [USER, _asks(_call(PARIS), reasoning_content="I look it up."), _result("21")], [WEATHER], ON
    ),
    "effort": Case([USER], variables={"reasoning_effort": "low", "thinking_budget": 0, "thinking_mode": "disabled"}),
    "parts": Case([{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]}]),
    "documents": Case([USER], variables={"documents": [{"title": "Paris", "text": "It rains."}]}),
    "developer": Case([{"role": "developer", "content": "Be brief."}, USER]),
    "two users": Case([USER, USER]),
    "assistant first": Case([{"role": "assistant", "content": "Hello?"}, USER]),
    "late system": Case([USER, {"role": "assistant", "content": "Sun."}, SYSTEM, USER]),
    "unknown role": Case([{"role": "narrator", "content": "It rained."}, USER]),
    "nothing": Case([]),
}  # fmt: skip
