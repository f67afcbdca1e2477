from __future__ import annotations

import json
import math

import pytest

from edgeinfer.metrics import Spread, Timings, percentile, rate, spread, tpot


def test_formulas_of_one_answer() -> None:
    timings = Timings(
        n_prompt=100,
        n_reused=40,
        n_prefill=60,
        n_out=5,
        ttft_s=2.5,
        prefill_s=2.0,
        decode_s=0.8,
        t_first=10.0,
        t_last=12.0,
        itl_s=(0.4, 0.4, 0.8, 0.4),
    )
    assert timings.prefill_tok_s == 30.0  # the 40 reused tokens do not count
    assert timings.tpot_s == 0.5  # four gaps in two seconds by the wall clock
    assert timings.decode_tok_s == 5.0  # four tokens in the 0.8 s spent on them
    assert timings.itl_percentile_s(50) == 0.4
    assert timings.itl_percentile_s(100) == 0.8


@pytest.mark.parametrize("n_out", [0, 1])
def test_undefined_figures_are_none(n_out: int) -> None:
    timings = Timings(n_prompt=1, n_reused=0, n_prefill=0, n_out=n_out, t_first=1.0, t_last=1.0, decode_s=0.0)
    shown = timings.as_dict()
    undefined = {name for name, value in shown.items() if value is None}
    assert {"tpot_s", "decode_tok_s", "prefill_tok_s", "ttft_s", "itl_p50_s", "itl_p99_s", "load_s"} <= undefined
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_rate_never_divides_by_zero() -> None:
    assert rate(10, 4.0) == 2.5
    assert rate(10, 0.0) is None
    assert rate(10, None) is None
    assert rate(0, 1.0) is None
    assert tpot(1.0, 2.0, 1) is None
    assert tpot(None, None, 9) is None


def test_percentile_is_linear_between_ranks() -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([1.0, 2.0], 0) == 1.0
    assert percentile([1.0, 2.0], 100) == 2.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None
    assert math.isclose(percentile(range(101), 99) or 0.0, 99.0)


def test_spread_over_repeats_leaves_out_what_is_undefined() -> None:
    assert spread([3.0, None, 1.0, 10.0]) == Spread(3, 3.0, 1.0, 10.0)
    assert spread([None]) == Spread(0, None, None, None)
