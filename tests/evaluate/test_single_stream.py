"""pp and tg: what counts, what is not defined, and what an interrupt leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.evaluate.single_stream import SingleStream, measure_single
from edgeinfer.generate.chunk import Chunk
from edgeinfer.metrics import Timings


class Answer:
    """An answer whose prompt took 10 ms a token and whose tokens took 0.5 s each."""

    def __init__(self, n_prompt: int, n_out: int) -> None:
        times = [n_prompt * 0.01 + i * 0.5 for i in range(n_out)]
        self.timings = Timings(
            n_prompt=n_prompt,
            n_reused=0,
            n_prefill=n_prompt,
            n_out=n_out,
            ttft_s=times[0] + 0.005,
            prefill_s=n_prompt * 0.01,
            decode_s=0.5 * (n_out - 1) if n_out > 1 else None,
            t_first=times[0],
            t_last=times[-1],
            itl_s=(0.5,) * (n_out - 1),
            load_s=5.0,
            compile_s=60.0,
        )
        self.cancelled = False

    def __iter__(self) -> Iterator[Chunk]:
        yield Chunk("x", 1, "length")

    def cancel(self) -> None:
        self.cancelled = True


class Model:
    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self.interrupt_at = -1

    def generate(self, prompt: list[int], *, max_tokens: int, **more: Any) -> Answer:
        assert more == {"temperature": 0.0, "ignore_eos": True}
        if len(self.prompts) == self.interrupt_at:
            raise KeyboardInterrupt
        self.prompts.append(tuple(prompt))
        return Answer(len(prompt), max_tokens)


def measure(model: Model | None = None, **more: Any) -> SingleStream:
    settings: dict[str, Any] = {"n_prompt": 512, "n_out": 128, "repeats": 3, **more}
    return measure_single((model or Model()).generate, range(1000), **settings)


def rows(result: SingleStream) -> dict[str, tuple[float | None, str]]:
    return {row.what: (row.spread.median, row.unit) for row in result.rows()}


def test_each_figure_has_its_unit_and_loading_is_in_none() -> None:
    assert rows(measure()) == {
        "pp512": (pytest.approx(100.0), "tok/s"),
        "pp512 TTFT": (pytest.approx(5125.0), "ms"),
        "tg128": (pytest.approx(2.0), "tok/s"),  # 127 intervals in 63.5 s
        "tg128 TPOT": (pytest.approx(500.0), "ms"),
        "tg128 longest gap": (pytest.approx(500.0), "ms"),
    }


def test_a_single_token_leaves_decode_undefined() -> None:
    result = measure(n_out=1)
    found = rows(result)
    assert found["tg1"] == (None, "tok/s")
    assert found["tg1 TPOT"] == (None, "ms")
    document = json.loads(json.dumps([row.as_dict() for row in result.rows()], allow_nan=False))
    assert document[2] == {
        "what": "tg1", "unit": "tok/s", "n": 0, "median": None, "least": None, "most": None, "values": [None] * 3,
    }  # fmt: skip


def test_a_prompt_of_one_token_is_measured() -> None:
    assert rows(measure(n_prompt=1))["pp1"] == (pytest.approx(100.0), "tok/s")


def test_either_half_can_be_left_out() -> None:
    assert [*rows(measure(n_out=0))] == ["pp512", "pp512 TTFT"]
    assert [*rows(measure(n_prompt=0))] == ["tg128", "tg128 TPOT", "tg128 longest gap"]


def test_every_repeat_has_a_prompt_of_its_own_and_the_first_is_thrown_away() -> None:
    model, seen = Model(), []
    result = measure(model, done=seen.append, bos=3)
    assert seen == ["warm-up", "repeat 1", "repeat 2", "repeat 3"]
    assert len({prompt[1:5] for prompt in model.prompts}) == 8
    assert {prompt[0] for prompt in model.prompts} == {3}
    assert (len(result.prefills), len(result.answers)) == (3, 3)
    assert result.warm_up_s is not None


def test_an_interrupt_keeps_what_was_measured() -> None:
    model = Model()
    model.interrupt_at = 5  # in the second repeat, after its prompt
    result = measure(model)
    assert result.interrupted
    assert (len(result.prefills), len(result.answers)) == (1, 1)


@pytest.mark.parametrize("more", [{"repeats": 0}, {"n_prompt": 0, "n_out": 0}, {"n_prompt": -1}])
def test_nothing_to_measure_is_refused(more: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="leave nothing to measure"):
        measure(**more)
