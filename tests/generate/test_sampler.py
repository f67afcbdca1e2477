from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgeinfer.errors import NumericError, SettingError
from edgeinfer.generate.params import SamplingParams
from edgeinfer.generate.sampler import Sampler
from tests.fakes import RowLogits

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def kept(row: list[float], **params: Any) -> dict[int, float]:
    """Which tokens remain and how likely each is."""
    sampler = Sampler(SamplingParams(**{**PLAIN, **params}), n_vocab=len(row))
    ids, probabilities = sampler.distribution(RowLogits([row]))
    assert math.isclose(probabilities.sum(), 1.0)
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))


def chain(row: NDArray[np.float32], params: SamplingParams, history: list[int], n_tokens: int) -> dict[int, float]:
    """The definition of the chain, one plain step after the other over the whole row."""
    logits = {token: float(value) for token, value in enumerate(row[:n_tokens])}
    for token, bias in params.logit_bias.items():
        if token in logits:
            logits[token] += bias
    if params.penalizes:
        for token, n in Counter(history if params.repeat_last_n < 0 else history[-params.repeat_last_n :]).items():
            if token not in logits:
                continue
            times = params.repeat_penalty if logits[token] <= 0 else 1 / params.repeat_penalty
            logits[token] = logits[token] * times - n * params.frequency_penalty - params.presence_penalty
    ranked = sorted((-value, token) for token, value in logits.items() if value > -math.inf)
    if params.temperature == 0:
        return {ranked[0][1]: 1.0}
    if params.top_k:
        ranked = ranked[: params.top_k]
    likely = [math.exp(ranked[0][0] - value) for value, _ in ranked]
    if params.top_p < 1:
        total, n = 0.0, 0
        while n < len(ranked) and (n == 0 or total < params.top_p * sum(likely)):
            total += likely[n]
            n += 1
        ranked = ranked[:n]
    best = -ranked[0][0]
    if params.min_p > 0:
        ranked = [(value, token) for value, token in ranked if -value >= best + math.log(params.min_p)]
    weights = {token: math.exp((-value - best) / params.temperature) for value, token in ranked}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def test_temperature_comes_last() -> None:
    # case 26: with temperature first, top-p 0.8 would leave token 0 alone
    left = kept([3.0, 2.0, 1.0], top_p=0.8, temperature=0.5)
    assert left.keys() == {0, 1}
    assert left[0] == pytest.approx(1 / (1 + math.exp(-2.0)))


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"temperature": 0}, {0}),
        ({"temperature": 1e-6}, {0, 1, 2, 3}),
        ({"top_k": 0}, {0, 1, 2, 3}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 400}, {0, 1, 2, 3}),
        ({"top_p": 0}, {0}),
        ({"top_p": 1}, {0, 1, 2, 3}),
        ({"top_p": 0.644}, {0, 1}),
        ({"min_p": 0}, {0, 1, 2, 3}),
        ({"min_p": 1}, {0}),
        ({"min_p": 0.36}, {0, 1}),
        ({"top_k": 3, "top_p": 0.95, "min_p": 0.1, "temperature": 0.3, "repeat_penalty": 1.3}, {0, 1, 2}),
        ({"top_k": 1, "top_p": 0, "min_p": 1, "temperature": 5.0}, {0}),
    ],
)
def test_edge_values(params: dict[str, Any], left: set[int]) -> None:
    found = kept([4.0, 3.0, 2.0, 1.0], **params)
    assert found.keys() == left
    if params.get("temperature") == 1e-6:
        assert found[0] == 1.0


def test_top_p_counts_the_token_that_reaches_it() -> None:
    row = np.log([0.5, 0.25, 0.15, 0.1]).tolist()
    assert kept(row, top_p=0.49).keys() == {0}
    assert kept(row, top_p=0.51).keys() == {0, 1}
    assert kept(row, top_p=0.74).keys() == {0, 1}
    assert kept(row, top_p=0.76).keys() == {0, 1, 2}


def test_ties_go_to_the_lowest_id() -> None:
    assert kept([1.0, 5.0, 5.0, 5.0], temperature=0).keys() == {1}
    assert kept([1.0, 5.0, 5.0, 5.0], top_k=2).keys() == {1, 2}
    assert kept([1.0, 5.0, 5.0, 5.0], top_p=0.5).keys() == {1, 2}


def test_penalties_by_hand() -> None:
    params = SamplingParams(**PLAIN, repeat_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5, repeat_last_n=4)
    sampler = Sampler(params, n_vocab=4, history=[3, 0, 0, 1])
    ids, probabilities = sampler.distribution(RowLogits([[2.0, -1.0, 1.0, 0.0]]))
    # 0 was seen twice: 2/2 - 2*0.5 - 0.25; 1 once, negative: -1*2 - 0.5 - 0.25; 3 once, zero; 2 never
    expected = np.exp([-0.25, -2.75, 1.0, -0.75])
    expected /= expected.sum()
    assert dict(zip(ids.tolist(), probabilities, strict=True)) == pytest.approx(dict(enumerate(expected)))


def test_penalties_look_back_so_far_and_no_farther() -> None:
    params = SamplingParams(**PLAIN, presence_penalty=3.0, repeat_last_n=2)
    sampler = Sampler(params, n_vocab=4, history=[0, 1])
    sampler.accept(2)  # 0 is out now, 1 and 2 are in
    ids, probabilities = sampler.distribution(RowLogits([[1.0, 1.0, 1.0, 1.0]]))
    likely = dict(zip(ids.tolist(), probabilities, strict=True))
    assert likely[0] == likely[3] == pytest.approx(likely[1] * math.exp(3))
    assert likely[1] == likely[2]
    everything = Sampler(SamplingParams(**PLAIN, presence_penalty=3.0, repeat_last_n=-1), n_vocab=4, history=[0, 1])
    everything.accept(2)
    assert everything.distribution(RowLogits([[1.0] * 4]))[0][0] == 3


def test_penalties_can_change_the_greedy_choice() -> None:
    params = SamplingParams(temperature=0, repeat_penalty=1.5)
    sampler = Sampler(params, n_vocab=3, history=[2])
    assert sampler.sample(RowLogits([[1.0, 2.0, 2.5]])) == 1
    assert Sampler(params, n_vocab=3).sample(RowLogits([[1.0, 2.0, 2.5]])) == 2


def test_logit_bias() -> None:
    row = [3.0, 2.0, 1.0]
    assert kept(row, temperature=0, logit_bias={2: 5.0}).keys() == {2}
    assert kept(row, temperature=0, logit_bias={0: -math.inf}).keys() == {1}
    assert kept(row, logit_bias={0: -math.inf, 1: -math.inf}) == {2: 1.0}
    assert kept(row, top_k=2, logit_bias={0: -math.inf}).keys() == {1, 2}
    with pytest.raises(SettingError, match="token 3"):
        kept(row, logit_bias={3: 1.0})
    with pytest.raises(NumericError, match="no token is left"):
        kept(row, logit_bias=dict.fromkeys(range(3), -math.inf))


def test_banned_ids_and_rows_without_a_token_are_never_chosen() -> None:
    row = [1.0, 9.0, 2.0, 50.0]  # 1 is an end token, 3 is padding
    for params in ({"temperature": 0}, {"temperature": 0, "top_k": 0}, PLAIN, {**PLAIN, "top_k": 1}):
        sampler = Sampler(SamplingParams(**params), n_vocab=4, n_tokens=3, banned=[1])
        drawn = {sampler.sample(RowLogits([row])) for _ in range(50)}
        assert drawn <= {0, 2}
    assert Sampler(SamplingParams(temperature=0), n_vocab=4, n_tokens=3).sample(RowLogits([row])) == 1


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, PLAIN, {"top_k": 2, "repeat_penalty": 1.1}])
def test_logits_that_are_not_finite(params: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(**params, seed=1), n_vocab=3, history=[0])
    with pytest.raises(NumericError, match=r"step 7 hold 1 NaN"):
        sampler.sample(RowLogits([[math.nan, 1.0, 2.0]]), step=7)
    with pytest.raises(NumericError, match=r"step 8 hold 1 \+inf"):
        sampler.sample(RowLogits([[math.inf, 0.0, 1.0]]), step=8)
    with pytest.raises(NumericError, match=r"logits of step 9 are -inf"):
        sampler.sample(RowLogits([[-math.inf] * 3]), step=9)
    masked = [-math.inf, -math.inf, 1.0]
    assert {sampler.sample(RowLogits([masked])) for _ in range(20)} == {2}


def test_it_reads_the_row_that_it_is_asked_for() -> None:
    rows = RowLogits([[9.0, 0.0], [0.0, 9.0]])
    for params in (SamplingParams(temperature=0), SamplingParams(top_k=1), SamplingParams(**{**PLAIN, "top_p": 0.1})):
        sampler = Sampler(params, n_vocab=2)
        assert [sampler.sample(rows, 0), sampler.sample(rows, 1)] == [0, 1]


def test_python_never_walks_a_vocabulary() -> None:
    logits = RowLogits([np.random.default_rng(0).normal(size=5000)])
    Sampler(SamplingParams(temperature=0), n_vocab=5000).sample(logits)
    assert (logits.whole_rows_read, logits.most_asked) == (0, 0)
    Sampler(SamplingParams(top_k=40), n_vocab=5000).sample(logits)
    assert (logits.whole_rows_read, logits.most_asked) == (0, 40)
    Sampler(SamplingParams(top_k=40, repeat_penalty=1.1), n_vocab=5000, history=range(64)).sample(logits)
    assert logits.most_asked == 104


def test_the_seed_makes_it_repeatable() -> None:
    logits = RowLogits([np.random.default_rng(1).normal(size=50)])

    def drawn(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), n_vocab=50)
        return [sampler.sample(logits) for _ in range(40)]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)
    assert drawn(None) != drawn(None)


def test_the_random_stream_does_not_depend_on_what_was_left() -> None:
    certain, open_row = RowLogits([[90.0, 0.0, 0.0]]), RowLogits([[1.0, 1.0, 1.0]])
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05, seed=3)
    one, other = Sampler(params, n_vocab=3), Sampler(params, n_vocab=3)
    one.sample(certain)
    other.sample(open_row)
    assert [one.sample(open_row) for _ in range(20)] == [other.sample(open_row) for _ in range(20)]


SETTINGS = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 1.5, "top_k": 6, "top_p": 1.0, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.2, "presence_penalty": 0.3},
    {"temperature": 1.0, "top_k": 5, "logit_bias": {0: 1.5, 2: -math.inf}},
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_draws_follow_the_distribution(number: int) -> None:
    """Chi-square of 20,000 draws against the chain's definition, below the 99.9th percentile for its freedom."""
    row = np.random.default_rng(number).normal(0.0, 1.5, 12).astype(np.float32)
    params, history = SamplingParams(**SETTINGS[number], seed=100 + number), [1, 1, 4]
    sampler = Sampler(params, n_vocab=12, history=history)
    n = 20_000
    logits = RowLogits([row])
    drawn = Counter(sampler.sample(logits) for _ in range(n))
    expected = chain(row, params, history, 12)
    assert drawn.keys() <= expected.keys()
    square = sum((drawn[token] - n * p) ** 2 / (n * p) for token, p in expected.items())
    freedom = len(expected) - 1
    # Wilson-Hilferty: the 99.9th percentile of chi-square, within a percent
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert square < limit, f"chi-square {square:.1f} with {freedom} degrees of freedom, limit {limit:.1f}"


numbers = st.integers(-40, 40).map(lambda tenths: tenths / 10)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_every_setting_agrees_with_the_definition(data: st.DataObject) -> None:
    n_vocab = data.draw(st.integers(1, 12))
    row = np.array(data.draw(st.lists(numbers, min_size=n_vocab, max_size=n_vocab)), np.float32)
    n_tokens = data.draw(st.integers(1, n_vocab))
    history = data.draw(st.lists(st.integers(0, n_tokens - 1), max_size=8))
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=data.draw(st.integers(0, 14)),
        top_p=data.draw(st.sampled_from([0.0, 0.31, 0.77, 0.93, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.07, 0.53, 1.0])),
        repeat_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.7])),
        repeat_last_n=data.draw(st.sampled_from([-1, 0, 3, 64])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.35, -0.5])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.45])),
        logit_bias=data.draw(st.dictionaries(st.integers(0, n_vocab - 1), st.sampled_from([1.25, -2.0]), max_size=3)),
    )
    sampler = Sampler(params, n_vocab=n_vocab, n_tokens=n_tokens, history=history)
    ids, probabilities = sampler.distribution(RowLogits([row]))
    expected = chain(row, params, history, n_tokens)
    assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(
        expected, rel=2e-6, abs=1e-9
    )  # a whole row stays in single precision, as the engine gives it


def test_top_p_of_a_large_flat_row_sorts_further() -> None:
    row = np.random.default_rng(2).normal(0.0, 0.1, 6000).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=0.5, min_p=0.0)
    ids, _ = Sampler(params, n_vocab=6000).distribution(RowLogits([row]))
    assert set(ids.tolist()) == chain(row, params, [], 6000).keys()
    assert len(ids) > 2500
