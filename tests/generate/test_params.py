from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import SettingError
from edgeinfer.generate.params import SamplingArgs, SamplingParams


def test_defaults_are_llama_cpps() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.repeat_last_n) == (1.0, 64)
    assert not params.penalizes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("min_p", 2),
        ("repeat_penalty", 0),
        ("repeat_penalty", -1.0),
        ("repeat_last_n", -2),
        ("presence_penalty", math.inf),
        ("frequency_penalty", "x"),
        ("logit_bias", [1]),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"5": 0.0}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: math.nan}),
        ("seed", -1),
        ("seed", 1.0),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "5"),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("ignore_eos", 1),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name) as caught:
        SamplingParams(**{name: value})
    assert "wanted" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("temperature", 0, 0.0),
        ("temperature", np.float32(0.5), 0.5),
        ("top_k", np.int64(3), 3),
        ("top_p", 1, 1.0),
        ("logit_bias", {np.int32(3): -math.inf, 4: 2}, {3: -math.inf, 4: 2.0}),
        ("stop", "END", ("END",)),
        ("stop", ["a", "", "b"], ("a", "b")),
        ("stop", None, ()),
        ("stop", "", ()),
    ],
)
def test_values_are_kept_in_one_form(name: str, value: Any, kept: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == kept


def test_parameters_cannot_change_afterwards() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert params.logit_bias[1] == 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 1  # type: ignore[misc]
    assert SamplingParams(**dataclasses.asdict(params)) == params


def test_the_keyword_arguments_are_the_fields() -> None:
    assert list(SamplingArgs.__annotations__) == [field.name for field in dataclasses.fields(SamplingParams)]
