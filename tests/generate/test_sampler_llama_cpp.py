"""Our chain against llama.cpp's own samplers on the same rows: which candidates remain, and how likely each is."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.generate.params import SamplingParams
from edgeinfer.generate.sampler import Sampler
from edgeinfer.generate.tools import SamplerTools
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer
from tests.fakes import RowLogits

from ..models import gemma3, smollm2

pytestmark = pytest.mark.llama_cpp

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def make(api: Any, name: str, params: SamplingParams, n_vocab: int, vocab: Any) -> Any:
    """One sampler of llama.cpp."""
    if name == "penalties":
        return api.llama_sampler_init_penalties(
            n_vocab, params.repeat_last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty
        )
    if name == "dry":
        texts = [text.encode() for text in params.dry_sequence_breakers]
        return api.llama_sampler_init_dry(
            vocab, params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n,
            (ctypes.c_char_p * len(texts))(*texts), len(texts),
        )  # fmt: skip
    if name == "xtc":
        return api.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, params.min_keep, 1)
    if name == "temperature":
        return api.llama_sampler_init_temp_ext(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
    if name == "top_n_sigma":
        return api.llama_sampler_init_top_n_sigma(params.top_n_sigma)
    if name == "top_k":
        return api.llama_sampler_init_top_k(params.top_k)
    start = {"top_p": api.llama_sampler_init_top_p, "min_p": api.llama_sampler_init_min_p}
    value = {"top_p": params.top_p, "min_p": params.min_p, "typ_p": params.typical_p}[name]
    return start.get(name, api.llama_sampler_init_typical)(value, params.min_keep)


def theirs(
    row: NDArray[np.float32], params: SamplingParams, history: list[int], vocab: Any = None, least: float = 0.0
) -> dict[int, float]:
    """What llama.cpp's chain, put together as its `common_sampler` does, leaves of a row (n_vocab,)."""
    import llama_cpp as api

    n_vocab = len(row)
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    if params.logit_bias:
        biases = (api.llama_logit_bias * len(params.logit_bias))(*params.logit_bias.items())
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
    for name in params.samplers:
        if name != "dry" or vocab:
            api.llama_sampler_chain_add(chain, make(api, name, params, n_vocab, vocab))
    for token in history:
        api.llama_sampler_accept(chain, token)
    data = np.zeros(n_vocab, CANDIDATE)
    data["id"], data["logit"] = np.arange(n_vocab), row
    pointer = data.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
    candidates = api.llama_token_data_array(data=pointer, size=n_vocab, selected=-1, sorted=False)
    api.llama_sampler_apply(chain, ctypes.byref(candidates))
    buffer = (api.llama_token_data * candidates.size).from_address(ctypes.addressof(candidates.data.contents))
    left = np.frombuffer(buffer, CANDIDATE).copy()
    api.llama_sampler_free(chain)
    left = left[left["logit"] > -np.inf]
    weights = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    weights /= weights.sum()
    return {token: p for token, p in zip(left["id"].tolist(), weights.tolist(), strict=True) if p > least}


OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    OFF,
    {**OFF, "temperature": 0.5, "top_p": 0.8},
    {**OFF, "temperature": 1.7, "top_p": 0.999},
    {**OFF, "top_k": 7},
    {**OFF, "min_p": 0.1},
    {**OFF, "top_p": 0.0},
    {"temperature": 1.0, "top_k": 100_000, "top_p": 0.5, "min_p": 0.3},
    {"repeat_penalty": 1.3, "repeat_last_n": 64},
    {"repeat_penalty": 1.3, "repeat_last_n": 3, "presence_penalty": 0.4, "frequency_penalty": 0.25},
    {"temperature": 0.0, "repeat_penalty": 1.9, "frequency_penalty": 0.5},
    {"logit_bias": {0: 4.0, 5: -math.inf, 9: -1.5}, "repeat_penalty": 1.2},
    # min_keep
    {**OFF, "top_p": 0.2, "min_keep": 5},
    {**OFF, "min_p": 0.9, "min_keep": 6},
    {**OFF, "top_k": 20, "min_p": 0.9, "top_p": 0.1, "min_keep": 4},
    # typical
    {**OFF, "typical_p": 0.9},
    {**OFF, "typical_p": 0.25},
    {**OFF, "typical_p": 0.0},
    {**OFF, "typical_p": 0.3, "min_keep": 9},
    {"typical_p": 0.7},
    # top-n-sigma
    {**OFF, "top_n_sigma": 1.0},
    {**OFF, "top_n_sigma": 2.3},
    {"top_n_sigma": 1.0},
    # XTC
    {**OFF, "xtc_probability": 1.0},
    {**OFF, "xtc_probability": 1.0, "xtc_threshold": 0.03},
    {**OFF, "xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05, "min_keep": 3},
    {"top_k": 4, "xtc_probability": 1.0, "xtc_threshold": 0.05, "min_keep": 4},
    # dynamic temperature
    {**OFF, "dynatemp_range": 0.5},
    {**OFF, "temperature": 0.8, "dynatemp_range": 1.5, "dynatemp_exponent": 2.5},
    {"dynatemp_range": 0.4, "dynatemp_exponent": 0.5},
    {"temperature": 0.0, "dynatemp_range": 0.7},
    # order
    {"samplers": "temperature;top_k;top_p;min_p", "temperature": 0.4},
    {"samplers": "min_p;top_p;top_k;typ_p", "typical_p": 0.8, "top_k": 9, "top_p": 0.9},
    {"samplers": "top_k;penalties;temperature;top_p", "repeat_penalty": 1.5, "top_k": 12},
    {"samplers": "temperature;xtc;top_n_sigma", "xtc_probability": 1.0, "top_n_sigma": 1.4, "temperature": 1.6},
    {"samplers": ""},
]


@pytest.mark.parametrize("n_vocab", [30, 3000])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_chain_is_llama_cpps(number: int, n_vocab: int) -> None:
    params = SamplingParams(**CASES[number])
    for seed in range(5):
        random = np.random.default_rng([number, seed])
        row = random.normal(0.0, 3.0, n_vocab).astype(np.float32)
        history = np.argsort(-row)[random.integers(0, 10, 12)].tolist()  # likely tokens, some of them repeated
        ids, probabilities = Sampler(params, n_vocab=n_vocab, history=history).distribution(RowLogits([row]))
        ours = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
        other = theirs(row, params, history)
        # llama.cpp adds up probabilities in float32, which can move the edge of a very wide top-p by a token
        n_edge, edge = (1, 1e-4) if len(other) > 1000 else (0, 1e-7)
        assert len(ours.keys() ^ other.keys()) <= n_edge
        everything = {token: ours.get(token, 0.0) for token in ours.keys() | other.keys()}
        assert everything == pytest.approx({token: other.get(token, 0.0) for token in everything}, rel=1e-4, abs=edge)


# -- DRY, which asks a vocabulary where its breakers are --------------------------------------------------------------


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m"])
def vocabulary(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Tokenizer, SamplerTools]]:
    import llama_cpp as api

    path = smollm2() if request.param == "smollm2-135m" else gemma3()
    api.llama_backend_init()
    settings = api.llama_model_default_params()
    settings.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), settings)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    yield api.llama_model_get_vocab(model), tokenizer, SamplerTools(tokenizer)
    api.llama_model_free(model)


DRY: list[dict[str, Any]] = [
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 1.5, "dry_base": 1.0, "dry_allowed_length": 1},
    {"dry_multiplier": 0.3, "dry_base": 3.0, "dry_allowed_length": 4, "dry_penalty_last_n": 300},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": ["the", "ing ", "xyz"]},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
    {"dry_multiplier": 1e-30, "dry_base": 4.0, "dry_penalty_last_n": 500},
]
TEXTS = [
    "the cat sat on the mat and the cat sat on the",
    "one, two: one, two: one, two: one, two:",
    "Bring the thing. Bring the thing. Bring the thing. Bring",
    'say "hello there" and say "hello there" and say "hello',
    "a b c d e f\na b c d e f\na b c d e f\na b c d",
    "ha" + " ha" * 150,
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(DRY)))
def test_dry(vocabulary: tuple[Any, Tokenizer, SamplerTools], number: int) -> None:
    vocab, tokenizer, tools = vocabulary
    params = SamplingParams(**OFF, samplers=("dry",), **DRY[number])
    breakers = tools.breakers(params)
    n_changed = 0
    for text in TEXTS:
        history = tokenizer.encode(text, special=False)
        n_vocab = tokenizer.n_vocab
        row = np.full(n_vocab, -20.0, np.float32)
        row[history] = 5.0  # a penalty of these shows
        row[(breakers and list(breakers)[:50]) or []] = 5.0
        sampler = Sampler(params, n_vocab=n_vocab, history=history[:5], breakers=breakers)
        for token in history[5:]:
            sampler.accept(token)
        ids, probabilities = sampler.distribution(RowLogits([row]))
        shown = probabilities > 1e-10
        ours = dict(zip(ids[shown].tolist(), probabilities[shown].tolist(), strict=True))
        other = theirs(row, params, history, vocab, least=1e-10)
        assert ours == pytest.approx(other, rel=1e-4), text
        plain = theirs(row, SamplingParams(**OFF), history, least=1e-10)
        n_changed += ours != pytest.approx(plain, rel=1e-3)
    assert n_changed > 0, "no text made a difference"


# -- mirostat, which llama.cpp does not show: by what it draws --------------------------------------------------------


@pytest.mark.parametrize(("tau", "eta"), [(5.0, 0.1), (2.0, 0.3), (9.0, 0.05)])
def test_mirostat_draws_what_llama_cpps_draws(tau: float, eta: float) -> None:
    """Counts of drawn tokens over many seeds: both samplers are at the same distribution at each of the first tokens."""
    import llama_cpp as api

    n_vocab, n = 60, 1000
    rows = np.random.default_rng(3).normal(0.0, 2.5, (3, n_vocab)).astype(np.float32)
    counts = np.zeros((2, 3, n_vocab))
    for seed in range(n):
        params = SamplingParams(temperature=0.9, mirostat=2, mirostat_tau=tau, mirostat_eta=eta, seed=seed)
        ours = Sampler(params, n_vocab=n_vocab)
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(0.9))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_mirostat_v2(seed, tau, eta))
        for step, row in enumerate(rows):
            counts[0, step, ours.sample(RowLogits([row]))] += 1
            data = np.zeros(n_vocab, CANDIDATE)
            data["id"], data["logit"] = np.arange(n_vocab), row
            pointer = data.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
            array = api.llama_token_data_array(data=pointer, size=n_vocab, selected=-1, sorted=False)
            api.llama_sampler_apply(chain, ctypes.byref(array))
            counts[1, step, array.data[array.selected].id] += 1
        api.llama_sampler_free(chain)
    for step in range(3):
        # two samples of one distribution: the sum of (a - b)^2 / (a + b) is chi-square with as many degrees of freedom
        a, b = counts[:, step]
        seen = a + b >= 10
        square = (((a - b) ** 2)[seen] / (a + b)[seen]).sum()
        freedom = max(1, seen.sum() - 1)
        limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3  # the 99.99th percentile
        assert square < limit, f"step {step}: {square:.0f} with {freedom} degrees of freedom, limit {limit:.0f}"
