from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.errors import SettingError
from edgeinfer.evaluate.divergence import bootstrap_mean, bootstrap_ratio, compare_rows, joined


def test_kl_of_known_distributions() -> None:
    exact = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]])) + np.array([[3.0], [-2.0]])  # logits, not normed
    found = compare_rows(exact, other)
    assert found.kl == pytest.approx([0.25 * np.log(2), 0.0], abs=1e-12)
    assert found.top1.tolist() == [False, True]
    assert found.mean_kl == pytest.approx(0.125 * np.log(2))
    assert found.top1_agreement == 0.5


def test_kl_is_taken_from_the_exact_side() -> None:
    exact, other = np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])
    assert compare_rows(exact, other).kl[0] == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2))
    assert compare_rows(other, exact).kl[0] == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(5))


def test_rows_of_different_vocabularies_are_refused() -> None:
    with pytest.raises(SettingError, match=r"\(1, 3\).*\(1, 4\)"):
        compare_rows(np.zeros((1, 3)), np.zeros((1, 4)))


def test_joined_keeps_every_position_in_order() -> None:
    a = compare_rows(np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]]))
    b = compare_rows(np.log([[0.5, 0.5]]), np.log([[0.5, 0.5]]))
    assert joined([a, b]).kl.tolist() == [*a.kl, *b.kl]
    with pytest.raises(SettingError):
        joined([])


def test_bootstrap_mean_holds_the_mean_and_is_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, 4000)
    found = bootstrap_mean(values, block=1)
    assert found.value == values.mean()
    assert found.low < values.mean() < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2.0 / np.sqrt(4000), rel=0.15)


def test_blocks_widen_the_interval_of_values_that_hang_together() -> None:
    values = np.repeat(np.random.default_rng(1).normal(0.0, 1.0, 200), 32)
    alone, blocks = bootstrap_mean(values, block=1), bootstrap_mean(values, block=32)
    assert blocks.high - blocks.low > 3 * (alone.high - alone.low)


def test_ratio_of_proportional_values_has_no_spread() -> None:
    below = np.random.default_rng(2).exponential(1.0, 500)
    found = bootstrap_ratio(below * 1.05, below)
    assert (found.value, found.low, found.high) == pytest.approx((1.05, 1.05, 1.05))


def test_ratio_of_unpaired_values_is_refused() -> None:
    with pytest.raises(SettingError, match="3 and 4"):
        bootstrap_ratio(np.ones(3), np.ones(4))
