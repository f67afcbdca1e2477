"""What the samplers do together: order, mirostat's loop, XTC's chance, seeds."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from edgeinfer.generate.params import SAMPLERS, SamplingParams
from edgeinfer.generate.sampler import Sampler
from tests.fakes import RowLogits

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def kept(row: Any, history: tuple[int, ...] = (), **params: Any) -> dict[int, float]:
    """Which tokens remain and how likely each is."""
    sampler = Sampler(SamplingParams(**params), n_vocab=len(row), history=history)
    ids, probabilities = sampler.distribution(RowLogits([row]))
    assert math.isclose(probabilities.sum(), 1.0)
    assert (np.diff(probabilities) <= 0).all()
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))


def test_the_order_is_as_asked() -> None:
    row = [3.0, 2.0, 1.0]
    # after a temperature of 0.5 the first token alone makes up 0.8
    assert kept(row, **{**OFF, "top_p": 0.8, "temperature": 0.5}).keys() == {0, 1}
    assert kept(row, samplers="temperature;top_p", top_p=0.8, temperature=0.5).keys() == {0}
    assert kept(row, samplers=["top_k"], top_k=2, temperature=0.1)[0] == pytest.approx(1 / (1 + math.exp(-1)))
    # a penalty before top-k lets another token in, one behind it does not
    penalty = {**OFF, "top_k": 2, "presence_penalty": 5.0}
    assert kept(row, (0,), **penalty).keys() == {1, 2}
    assert kept(row, (0,), **penalty, samplers="top_k;penalties").keys() == {0, 1}
    assert max(kept(row, (0,), **penalty, samplers="top_k;penalties").items(), key=lambda item: item[1])[0] == 1


def test_temperature_0_is_greedy_whatever_else_is_asked() -> None:
    row = [1.0, 4.0, 3.9]
    for params in ({"xtc_probability": 1.0}, {"typical_p": 0.1}, {"mirostat": 2}, {"samplers": "top_k"}):
        assert kept(row, temperature=0, **params) == {1: 1.0}
    assert kept(row, (1,), temperature=0, presence_penalty=1.0) == {2: 1.0}
    assert kept([1.0, 3.9, 4.0], (1, 2, 1, 2, 1), temperature=0, dry_multiplier=3.0) == {
        1: 1.0
    }  # 2 would go on repeating


def test_xtc_is_used_as_often_as_asked() -> None:
    row = np.log([0.5, 0.3, 0.2])
    expected = {0: 0.75 * 0.5, 1: 0.75 * 0.3 + 0.25 * 0.6, 2: 0.75 * 0.2 + 0.25 * 0.4}
    params = {**OFF, "xtc_probability": 0.25, "xtc_threshold": 0.25}
    assert kept(row, **params) == pytest.approx(expected)
    sampler, logits, n = Sampler(SamplingParams(**params, seed=5), n_vocab=3), RowLogits([row]), 8000
    drawn = Counter(sampler.sample(logits) for _ in range(n))
    square = sum((drawn[token] - n * p) ** 2 / (n * p) for token, p in expected.items())
    assert square < 13.8  # the 99.9th percentile of chi-square with 2 degrees of freedom


@pytest.mark.parametrize(
    "params", [{"xtc_probability": 0.5}, {"mirostat": 2}, {"typical_p": 0.6}, {"dynatemp_range": 0.3}]
)
def test_the_seed_makes_it_repeatable(params: dict[str, Any]) -> None:
    rows = RowLogits(np.random.default_rng(1).normal(0.0, 2.0, (20, 60)))

    def drawn(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(**params, seed=seed), n_vocab=60)
        return [sampler.sample(rows, i) for i in range(20)]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_xtc_that_never_happens_changes_no_draw() -> None:
    rows = RowLogits(np.random.default_rng(1).normal(0.0, 2.0, (30, 60)))
    plain = Sampler(SamplingParams(seed=3), n_vocab=60)
    other = Sampler(SamplingParams(seed=3, xtc_probability=1e-9), n_vocab=60)
    assert [plain.sample(rows, i) for i in range(30)] == [other.sample(rows, i) for i in range(30)]


def test_mirostat_by_its_formula() -> None:
    """Basu et al., "Mirostat" (2021), algorithm 2: drop what surprises more than mu, then mu -= eta * (surprise - tau)."""
    rows = np.random.default_rng(2).normal(0.0, 2.0, (40, 50)).astype(np.float32)
    tau, eta, temperature = 2.5, 0.3, 0.8
    params = SamplingParams(
        mirostat=2, mirostat_tau=tau, mirostat_eta=eta, temperature=temperature, seed=9, top_k=2, repeat_penalty=1.5
    )
    sampler, mu = Sampler(params, n_vocab=50, history=[1, 2, 3]), 2 * tau
    n_left = set()
    for i, row in enumerate(rows):
        p = np.exp(row.astype(np.float64) / temperature)
        p /= p.sum()
        inside = -np.log2(p) <= mu if (-np.log2(p) <= mu).any() else p == p.max()
        left = np.where(inside, p, 0.0) / p[inside].sum()
        n_left.add(int(inside.sum()))
        assert sampler.mu == pytest.approx(mu, rel=1e-4)
        ids, probabilities = sampler.distribution(RowLogits(rows), i)
        assert dict(zip(ids.tolist(), probabilities, strict=True)) == pytest.approx(
            {token: left[token] for token in np.flatnonzero(inside).tolist()}, rel=1e-4
        )
        token = sampler.sample(RowLogits(rows), i)
        sampler.accept(token)
        mu -= eta * (-math.log2(left[token]) - tau)
    assert len(n_left) > 5


@pytest.mark.parametrize("tau", [1.5, 3.0, 4.5])
def test_mirostat_brings_the_surprise_to_tau(tau: float) -> None:
    random = np.random.default_rng(4)
    params = SamplingParams(mirostat=2, mirostat_tau=tau, mirostat_eta=0.1, temperature=1.0, seed=1)
    sampler, surprises = Sampler(params, n_vocab=2000), []
    for _ in range(600):
        logits = RowLogits([random.normal(0.0, random.uniform(2.0, 4.0), 2000)])  # rows of changing certainty
        before = sampler.mu
        sampler.sample(logits)
        surprises.append(tau + (before - sampler.mu) / 0.1)
    assert np.mean(surprises[100:]) == pytest.approx(tau, rel=0.05)


def test_with_mirostat_the_others_are_off() -> None:
    params = SamplingParams(mirostat=2, repeat_penalty=2.0, dry_multiplier=1.0, xtc_probability=1.0)
    assert params.filters == ("temperature",)
    assert not params.penalizes
    assert not params.dries


def test_filters_names_what_is_on_in_order() -> None:
    assert SamplingParams().filters == ("top_k", "top_p", "min_p", "temperature")
    everything = SamplingParams(
        repeat_penalty=1.1, dry_multiplier=1.0, top_n_sigma=1.0, typical_p=0.5, xtc_probability=0.5
    )
    assert everything.filters == SAMPLERS
    assert SamplingParams(**OFF).filters == ()
    assert SamplingParams(samplers="min_p;top_k").filters == ("min_p", "top_k")


def test_dry_and_penalties_look_at_the_prompt_and_the_answer() -> None:
    row = np.zeros(8, np.float32)
    params = SamplingParams(**OFF, dry_multiplier=1.0, dry_base=2.0)
    sampler = Sampler(params, n_vocab=8, history=[1, 2, 3, 4, 1, 2])
    _, p = sampler.distribution(RowLogits([row]))
    assert p[-1] == pytest.approx(p[0] * math.exp(-1.0))  # 3 would make it three in a row
    sampler.accept(3)
    ids, p = sampler.distribution(RowLogits([row]))
    assert ids[-1] == 4
    assert p[-1] == pytest.approx(p[0] * math.exp(-2.0))
    only_in_order = Sampler(
        SamplingParams(**OFF, dry_multiplier=1.0, samplers="top_k"), n_vocab=8, history=[1, 2, 1, 2]
    )
    assert len(set(only_in_order.distribution(RowLogits([row]))[1].tolist())) == 1
