"""Our chain against llama.cpp's own samplers on the same rows: which candidates remain, and how likely each is."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.generate.params import SamplingParams
from edgeinfer.generate.sampler import Sampler
from tests.fakes import RowLogits

pytestmark = pytest.mark.llama_cpp


def theirs(row: NDArray[np.float32], params: SamplingParams, history: list[int]) -> dict[int, float]:
    """What llama.cpp's default chain leaves of a row (n_vocab,)."""
    import llama_cpp as api

    n_vocab = len(row)
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    if params.logit_bias:
        biases = (api.llama_logit_bias * len(params.logit_bias))(*params.logit_bias.items())
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
    for sampler in (
        api.llama_sampler_init_penalties(
            n_vocab,
            params.repeat_last_n,
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        ),
        api.llama_sampler_init_top_k(params.top_k),
        api.llama_sampler_init_top_p(params.top_p, 0),
        api.llama_sampler_init_min_p(params.min_p, 0),
        api.llama_sampler_init_temp(params.temperature),
    ):
        api.llama_sampler_chain_add(chain, sampler)
    for token in history:
        api.llama_sampler_accept(chain, token)
    data = (api.llama_token_data * n_vocab)(*((token, float(value), 0.0) for token, value in enumerate(row)))
    candidates = api.llama_token_data_array(data=data, size=n_vocab, selected=-1, sorted=False)
    api.llama_sampler_apply(chain, ctypes.byref(candidates))
    left = {data[i].id: data[i].logit for i in range(candidates.size) if data[i].logit > -math.inf}
    api.llama_sampler_free(chain)
    best = max(left.values())
    weights = {token: math.exp(value - best) for token, value in left.items()}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.5, "top_k": 0, "top_p": 0.8, "min_p": 0.0},
    {"temperature": 1.7, "top_k": 0, "top_p": 0.999, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 7, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.0, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 100_000, "top_p": 0.5, "min_p": 0.3},
    {"repeat_penalty": 1.3, "repeat_last_n": 64},
    {"repeat_penalty": 1.3, "repeat_last_n": 3, "presence_penalty": 0.4, "frequency_penalty": 0.25},
    {"temperature": 0.0, "repeat_penalty": 1.9, "frequency_penalty": 0.5},
    {"logit_bias": {0: 4.0, 5: -math.inf, 9: -1.5}, "repeat_penalty": 1.2},
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
