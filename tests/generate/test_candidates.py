"""The filters on small rows by hand, and on a whole vocabulary against their plain definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.generate.candidates import Candidates

HALVES = np.log([0.5, 0.25, 0.15, 0.1])


def left(values: Any, filter: Callable[[Candidates], None]) -> list[int]:
    """Which places of a row remain."""
    candidates = Candidates(None, np.asarray(values, np.float32))
    filter(candidates)
    return sorted(candidates.ids.tolist())


def test_typical_takes_the_expected_surprise_not_the_least() -> None:
    # the entropy is 1.21 nats; surprises are 0.69, 1.39, 1.90, 2.30: nearest are 1, then 0, then 2, then 3
    assert left(HALVES, lambda c: c.typical_p(0.2)) == [1]
    assert left(HALVES, lambda c: c.typical_p(0.26)) == [0, 1]
    assert left(HALVES, lambda c: c.typical_p(0.74)) == [0, 1]
    assert left(HALVES, lambda c: c.typical_p(0.76)) == [0, 1, 2]
    assert left(HALVES, lambda c: c.typical_p(0.2, min_keep=3)) == [0, 1, 2]


def test_top_n_sigma_by_hand() -> None:
    # mean 2, standard deviation sqrt(2)
    row = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert left(row, lambda c: c.top_n_sigma(0.7)) == [4]
    assert left(row, lambda c: c.top_n_sigma(0.72)) == [3, 4]
    assert left(row, lambda c: c.top_n_sigma(2.9)) == [0, 1, 2, 3, 4]
    assert left([1.0, 1.0], lambda c: c.top_n_sigma(1.0)) == [0, 1]


def test_xtc_drops_the_top_choices_but_the_last() -> None:
    assert left(HALVES, lambda c: c.xtc(0.2)) == [1, 2, 3]
    assert left(HALVES, lambda c: c.xtc(0.12)) == [2, 3]
    assert left(HALVES, lambda c: c.xtc(0.3)) == [0, 1, 2, 3]
    assert left(HALVES, lambda c: c.xtc(0.12, min_keep=3)) == [0, 1, 2, 3]
    assert left([1.0, 1.0, 1.0], lambda c: c.xtc(0.3)) == [2]


def test_min_keep() -> None:
    assert left(HALVES, lambda c: c.top_p(0.1, 3)) == [0, 1, 2]
    assert left(HALVES, lambda c: c.min_p(0.9, 2)) == [0, 1]
    assert left(HALVES, lambda c: c.min_p(0.9, 20)) == [0, 1, 2, 3]


def test_dynamic_temperature_goes_with_the_entropy() -> None:
    flat, sharp = Candidates(None, np.zeros(8, np.float32)), Candidates(None, np.float32([20, 0, 0, 0, 0, 0, 0, 0]))
    sharp.temper(1.0, 0.5, 1.0)
    assert sharp.values[1] == pytest.approx(-20.0 / 0.5, rel=1e-4)  # hardly any entropy: the lowest temperature
    half = Candidates(None, np.float32([1.0, 1.0, -90.0, -90.0]))  # half of the highest entropy
    half.temper(1.0, 0.5, 1.0)
    assert half.values[2] == pytest.approx(-91.0 / 1.0, rel=1e-4)
    squared = Candidates(None, np.float32([1.0, 1.0, -90.0, -90.0]))
    squared.temper(1.0, 0.5, 2.0)
    assert squared.values[2] == pytest.approx(-91.0 / 0.75, rel=1e-4)
    flat.temper(1.0, 0.5, 1.0)
    assert flat.values.tolist() == [0.0] * 8
    cold = Candidates(None, np.float32([1.0, 90.0]))
    cold.temper(0.0, 0.5, 4.0)
    assert cold.ids.tolist() == [1]


def test_a_draw_is_where_the_sum_passes_the_point() -> None:
    candidates = Candidates(None, HALVES.astype(np.float32))
    drawn = [candidates.draw(point)[0] for point in (0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 1.0)]
    assert drawn == [0, 0, 1, 1, 2, 2, 3, 3]
    assert candidates.draw(0.6)[1] == pytest.approx(0.25)


@pytest.mark.parametrize("n", [1, 1023, 1024, 1025, 5000])
def test_draws_from_long_rows(n: int) -> None:
    row = np.random.default_rng(n).normal(0.0, 2.0, n).astype(np.float32)
    row[: n // 3] = -np.inf
    p = np.exp(row.astype(np.float64) - row.max())
    ends = np.cumsum(p / p.sum())
    for point in np.random.default_rng(0).random(300):
        token, probability = Candidates(None, row).draw(point)
        assert ends[token] - probability - 1e-6 <= point <= ends[token] + 1e-6
        assert probability > 0


def plain_typical(p: np.ndarray, share: float) -> set[int]:
    entropy = -(p * np.log(p)).sum()
    order = np.argsort(np.abs(-np.log(p) - entropy), kind="stable")
    n = int(np.searchsorted(np.cumsum(p[order]), share, side="right")) + 1
    return set(order[:n].tolist())


def plain_top_p(p: np.ndarray, share: float) -> set[int]:
    order = np.argsort(-p, kind="stable")
    return set(order[: int(np.searchsorted(np.cumsum(p[order]), share)) + 1].tolist())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 5, 300, 20_000]), st.sampled_from([0.3, 2.0, 6.0]))
def test_windows_find_what_sorting_everything_finds(seed: int, n: int, spread: float) -> None:
    random = np.random.default_rng(seed)
    row = random.normal(0.0, spread, n).astype(np.float32)
    share = float(random.uniform(0.01, 0.99))
    p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    # rounding of the single precision row may move the edge by a token or two where thousands remain
    slack = 0 if n <= 300 else 1 + n // 2000
    typical = set(left(row, lambda c: c.typical_p(share)))
    assert len(typical ^ plain_typical(p, share)) <= slack
    top = set(left(row, lambda c: c.top_p(share)))
    assert len(top ^ plain_top_p(p, share)) <= slack
    bits = float(random.uniform(0.0, 12.0))
    below = left(row, lambda c: c.surprise_below(bits))
    assert below == (np.flatnonzero(-np.log2(p) <= bits).tolist() or [int(row.argmax())])


def test_sampling_of_a_whole_vocabulary_sorts_no_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_at_once = []
    lexsort = np.lexsort

    def watched(keys: Any) -> Any:
        sorted_at_once.append(len(keys[0]))
        return lexsort(keys)

    monkeypatch.setattr(np, "lexsort", watched)
    row = np.random.default_rng(1).normal(0.0, 2.5, 262_144).astype(np.float32)
    row[:300] += 12.0
    for filter in (lambda c: c.top_p(0.9), lambda c: c.typical_p(0.9), lambda c: c.top_k(40), lambda c: c.xtc(0.001)):
        left(row, filter)
    assert sorted_at_once
    assert max(sorted_at_once) < 5000
    assert math.isclose(sum(np.exp(HALVES)), 1.0)
