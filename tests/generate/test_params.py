from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import SettingError
from edgeinfer.generate.params import SamplingArgs, SamplingParams, merged


def test_defaults_are_llama_cpps() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.repeat_last_n) == (1.0, 64)
    assert not params.penalizes
    # common_params_sampling of llama.cpp
    assert (params.typical_p, params.top_n_sigma, params.min_keep) == (1.0, -1.0, 0)
    assert (params.xtc_probability, params.xtc_threshold) == (0.0, 0.1)
    assert (params.dynatemp_range, params.dynatemp_exponent) == (0.0, 1.0)
    assert (params.mirostat, params.mirostat_tau, params.mirostat_eta) == (0, 5.0, 0.1)
    assert (params.dry_multiplier, params.dry_base, params.dry_allowed_length) == (0.0, 1.75, 2)
    assert (params.dry_penalty_last_n, params.dry_sequence_breakers) == (64, ("\n", ":", '"', "*"))
    assert not params.constrained


def test_what_excludes_each_other() -> None:
    with pytest.raises(SettingError, match="json_schema and regex are both given"):
        SamplingParams(json_schema={}, regex="a")
    with pytest.raises(SettingError, match="ignore_eos goes on past the end of what grammar allows"):
        SamplingParams(grammar="start: /a/", ignore_eos=True)


def test_broken_json_is_told_with_its_place() -> None:
    with pytest.raises(SettingError, match=r"json_schema is no JSON document: .*line 2 column 9"):
        SamplingParams(json_schema='{\n"type": }')


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
        ("dynatemp_range", -0.5),
        ("dynatemp_exponent", -1),
        ("typical_p", 1.5),
        ("top_n_sigma", -2),
        ("top_n_sigma", math.nan),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.1),
        ("min_keep", -1),
        ("mirostat", 1),
        ("mirostat", 3),
        ("mirostat", "2"),
        ("mirostat_tau", -1.0),
        ("mirostat_eta", 1.5),
        ("dry_multiplier", -0.1),
        ("dry_base", 0.9),
        ("dry_allowed_length", 0),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", [1]),
        ("samplers", "top_k;nonsense"),
        ("samplers", "top_k;top-k"),
        ("samplers", 5),
        ("samplers", [5]),
        ("json_schema", "{"),
        ("json_schema", "[]"),
        ("json_schema", 5),
        ("json_schema", {"a": {1, 2}}),
        ("regex", ""),
        ("regex", 5),
        ("grammar", "  "),
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
        ("top_n_sigma", -1, -1.0),
        ("samplers", "top_k; temp;typical", ("top_k", "temperature", "typ_p")),
        ("samplers", ["MIN-P"], ("min_p",)),
        ("samplers", "", ()),
        ("dry_sequence_breakers", None, ()),
        ("dry_sequence_breakers", ["", "x"], ("x",)),
        ("json_schema", {}, "{}"),
        ("json_schema", True, "true"),
        ("json_schema", ' {"type" :"string"}', '{"type": "string"}'),
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


def test_another_seed_changes_nothing_else() -> None:
    params = SamplingParams(temperature=0.5, stop="end", logit_bias={3: -math.inf}, seed=1)
    twin = params.seeded(2)
    assert twin == dataclasses.replace(params, seed=2)
    assert params.seed == 1


def test_what_is_left_out_keeps_what_was_given_before() -> None:
    given = SamplingParams(top_k=3)
    assert merged(None, {}) == SamplingParams()
    assert merged(given, {}) == given
    assert merged(given, {"top_p": 0.5}) == SamplingParams(top_k=3, top_p=0.5)
    with pytest.raises(SettingError, match="there is no sampling parameter 'top_q'"):
        merged(given, {"top_q": 0.5})
