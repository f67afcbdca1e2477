"""The soak notices what it is made for: on a sound model it is content, on each broken one it says what is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import soak

from edgeinfer.errors import BusyError
from edgeinfer.load import LLM
from edgeinfer.schedule.prefix_cache import PrefixCache
from tests.fakes import ByteTokenizer, PagedCache, ScriptedEngine

POOL = range(97, 123)


@contextmanager
def model(**settings: Any) -> Iterator[LLM]:
    kv: Any = PagedCache(2000)
    engine: Any = ScriptedEngine(n_ctx=soak.N_CTX, kv=kv)
    tokenizer: Any = ByteTokenizer()
    with LLM(engine, tokenizer, None, prefix=PrefixCache(kv), **settings) as llm:
        yield llm


def seen(llm: Any, cases: Any, minutes: float = 0.02, **more: Any) -> dict[str, Any]:
    return soak.soak(llm, cases, minutes, clients=4, seed=3, flat=1.0, **more)


def test_a_sound_model_has_nothing_wrong() -> None:
    with model() as llm:
        cases = soak.bank(llm, POOL, 6, seed=1)
        assert any(a.prompt[:128] == b.prompt[:128] for a in cases for b in cases if a is not b)  # pages are shared
        assert {case.sampling["temperature"] for case in cases} == {0.0, 0.8}
        result = seen(llm, cases, 0.05)
    assert result["wrong"] == []
    assert result["counts"]["finished"] > 0
    assert result["counts"]["cancelled"] + result["counts"]["dropped"] > 0
    assert result["sentence"].endswith("all answers as alone, all pages returned")


class Broken:
    """A model whose answers pass through `change`."""

    def __init__(self, llm: LLM, change: Any) -> None:
        self._llm, self._change = llm, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, *args: Any, **more: Any) -> Any:
        return Changed(self._llm.generate(*args, **more), self._change)


class Changed:
    def __init__(self, answer: Any, change: Any) -> None:
        self._answer, self._change = answer, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)

    def __iter__(self) -> Iterator[Any]:
        return self._change(self._answer)


def mixed(answer: Any) -> Iterator[Any]:
    for chunk in answer:
        token = None if chunk.token is None else (chunk.token + random.randint(0, 1)) % 256
        yield type(chunk)(chunk.text, token, chunk.finish_reason)


def lost(answer: Any) -> Iterator[Any]:
    for n, chunk in enumerate(answer):
        if n != 2:
            yield chunk


def test_a_mixed_token_is_noticed() -> None:
    with model() as llm:
        result = seen(Broken(llm, mixed), soak.bank(llm, POOL, 4, seed=1), 0.2)
    assert "came alone" in result["wrong"][0]


def test_a_lost_token_is_noticed() -> None:
    with model() as llm:
        result = seen(Broken(llm, lost), soak.bank(llm, POOL, 4, seed=1), 0.2)
    assert "came alone" in result["wrong"][0]


def test_an_error_of_an_answer_is_noticed() -> None:
    def fails(answer: Any) -> Iterator[Any]:
        raise RuntimeError("step 3")
        yield

    with model() as llm:
        result = seen(Broken(llm, fails), soak.bank(llm, POOL, 4, seed=1), 0.2)
    assert "RuntimeError: step 3" in result["wrong"][0]


def test_a_page_that_is_not_returned_is_noticed() -> None:
    with model() as llm:
        cases = soak.bank(llm, POOL, 2, seed=1)
        kv: Any = llm._engine.kv
        kv.held[kv.open()] = [1, 2, 3]
        assert soak.rest(llm, 0.1) == 1
        assert seen(llm, cases[:0] + cases, 0.0)["wrong"] == ["1 of 2000 pages were not returned"]


def test_a_refusal_is_counted_and_not_wrong() -> None:
    with model() as llm:
        cases = soak.bank(llm, POOL, 2, seed=1)

        class Busy(Broken):
            def generate(self, *args: Any, **more: Any) -> Any:
                raise BusyError("full")

        result = seen(Busy(llm, None), cases)
    assert result["wrong"] == []
    assert result["counts"]["refused"] > 0


def test_the_trend_of_memory() -> None:
    assert soak.trend([(float(t), 1000.0 + t) for t in range(101)]) == pytest.approx(100 / 1050)
    assert soak.trend([(float(t), 1000.0 + t % 2) for t in range(101)]) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.slow
def test_half_a_minute_on_a_real_model(smollm2_path: Path) -> None:
    result = soak.run(smollm2_path, 0.5, clients=6, threads=2, seed=5, n_cases=10, flat=0.05)  # pages are still touched
    assert result["wrong"] == []
    assert result["counts"]["finished"] >= 5
