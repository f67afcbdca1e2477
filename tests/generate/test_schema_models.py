"""SmolLM2 at temperature 1: whatever it says parses and fits the schema that was asked for."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

import edgeinfer

from ..models import smollm2

pytestmark = pytest.mark.slow
jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")


def schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random schema of the usual kinds, small enough for an answer to end."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "date"]
    kind = chance.choice(kinds if depth > 1 else [*kinds, "object", "object", "array", "anyOf", "ref"])
    if kind == "string":
        return {"type": "string", "maxLength": chance.randint(3, 12)}
    if kind == "integer":
        low = chance.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 500)}
    if kind == "number":
        return {"type": "number", "minimum": -10, "maximum": 10}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": chance.sample(["red", "green", 'q"uote', 7, None, True, 2.5], 3)}
    if kind == "const":
        return {"const": chance.choice(["fixed", 12, [1, 2]])}
    if kind == "pattern":
        return {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}
    if kind == "date":
        return {"type": "string", "format": "date"}
    if kind == "array":
        least = chance.randint(0, 2)
        return {"type": "array", "items": schema(chance, depth + 1), "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [schema(chance, depth + 1), {"type": "boolean"}]}
    if kind == "ref":
        if depth:
            return {"type": "null"}
        same = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
        return {**same, "additionalProperties": False, "$defs": {"a": schema(chance, 2)}}
    names = chance.sample(["name", "age", "städte", "is on", "x"], chance.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: schema(chance, depth + 1) for name in names},
        "required": names[: chance.randint(1, len(names))],
        "additionalProperties": False,
    }


@pytest.fixture(scope="module")
def llm() -> Iterator[edgeinfer.LLM]:
    with edgeinfer.load(smollm2(), n_ctx=1024) as loaded:
        yield loaded


@pytest.mark.parametrize("seed", range(16))
def test_random_schemas(llm: edgeinfer.LLM, seed: int) -> None:
    asked = schema(random.Random(seed))
    messages = [{"role": "user", "content": "Tell me about a person you know, as JSON."}]
    answer = llm.chat(messages, json_schema=asked, temperature=1.0, seed=seed, max_tokens=150)
    text = answer.text()
    if answer.finish_reason == "length":  # JSON sets no limit to the digits of a number
        assert re.search(r"[0-9]{80}$", text), text
        return
    assert answer.finish_reason == "stop", text
    jsonschema.validate(json.loads(text), asked)


def test_the_samplers_do_not_break_it(llm: edgeinfer.LLM) -> None:
    asked = {"type": "array", "items": schema(random.Random(5), 1), "minItems": 2, "maxItems": 2}
    messages = [{"role": "user", "content": "Give me a list."}]
    for sampling in (
        {"temperature": 0},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"typical_p": 0.8, "repeat_penalty": 1.3},
        {"mirostat": 2, "mirostat_tau": 6.0},
        {"dry_multiplier": 0.8, "xtc_probability": 0.5, "top_n_sigma": 1.5},
        {"dynatemp_range": 0.7, "samplers": "top_k;temperature"},
    ):
        text = llm.chat(messages, json_schema=asked, seed=1, max_tokens=200, **sampling).text()  # type: ignore[arg-type]
        jsonschema.validate(json.loads(text), asked)


def test_a_limit_inside_the_json_is_told(llm: edgeinfer.LLM) -> None:
    answer = llm.generate("A person:", json_schema={"type": "string", "minLength": 400}, max_tokens=20)
    assert answer.text().startswith('"')
    assert answer.finish_reason == "length"
