from __future__ import annotations

import random

import pytest

from edgeinfer.schedule.cost import START_ROWS, CostModel, looks_of


def truth(rows: int, looks: int) -> float:
    return 0.004 + 0.0006 * rows + 3e-7 * looks


def test_looks_are_the_sum_of_positions() -> None:
    assert looks_of(10, 4) == 10 + 11 + 12 + 13
    assert looks_of(0, 1) == 0


def test_nothing_is_known_at_first() -> None:
    cost = CostModel()
    assert not cost.known
    assert cost.seconds(100, 0) == 0.0
    assert cost.fit(0.02, 0, 512) == START_ROWS
    assert cost.fit(0.02, 0, 5) == 5


def test_it_learns_rows_and_depth() -> None:
    cost, rng = CostModel(), random.Random(1)
    for _ in range(600):
        rows, first = rng.choice([1, 4, 8, 16, 40, 100, 200]), rng.randrange(4000)
        looks = looks_of(first, rows)
        cost.note(rows, looks, truth(rows, looks) * rng.uniform(0.95, 1.05))
    for rows in (1, 8, 24, 64, 180):
        for first in (0, 2000, 4000):
            looks = looks_of(first, rows)
            assert cost.seconds(rows, looks) == pytest.approx(truth(rows, looks), rel=0.25)


@pytest.mark.parametrize("others", [0, 1, 5, 16])
def test_a_fit_keeps_to_its_budget(others: int) -> None:
    cost = CostModel()
    for _ in range(30):
        for rows in (1, 8, 16, 32, 64, 128):
            cost.note(rows, 0, truth(rows, 0))
    n = cost.fit(0.04, 0, 512, rows=others)
    assert (n + others) % 8 == 0
    assert truth(n + others, 0) <= 0.044
    assert truth(n + others + 16, 0) > 0.036
    least = {0: 4, 1: 3, 5: 11, 16: 8}  # half a tile, or others' tiles are filled
    assert cost.fit(0.0, 0, 512, rows=others) == least[others]
    assert cost.fit(truth(8, 0) / 1.3, 0, 512, rows=1) == 7  # a whole tile, a little over it
    assert cost.fit(truth(6, 0) / 1.5, 0, 512, rows=1) in (4, 5, 6)  # of one tile what is near it
    assert cost.fit(10.0, 0, 512) == 256  # nor twice what was ever tried
    assert cost.fit(10.0, 0, 100) == 96


def test_one_slow_forward_is_not_believed_for_ever() -> None:
    cost = CostModel()
    cost.note(32, 0, 1.0)  # the first one, cold
    for _ in range(200):
        n = cost.fit(0.03, 0, 512)
        cost.note(n, 0, truth(n, 0))
    assert 32 <= cost.fit(0.03, 0, 512) <= 48


def test_a_machine_that_slows_down_is_noticed() -> None:
    cost = CostModel()
    for factor in (1.0, 2.0):
        for _ in range(40):
            n = cost.fit(0.03, 0, 512)
            cost.note(n, 0, factor * truth(n, 0))
        assert truth(n, 0) * factor == pytest.approx(0.03, rel=0.3)


def test_keys_that_a_piece_reads_once_are_told_from_those_that_each_row_looks_at() -> None:
    """A prompt's chunk reads its keys once for all rows; an answer's row reads its own."""
    cost, rng = CostModel(), random.Random(2)

    def real(rows: int, looks: int, spans: int) -> float:
        return 0.003 + 0.0005 * rows + 4e-7 * looks + 15e-7 * spans

    for _ in range(400):
        if rng.random() < 0.5:
            n = rng.randrange(1, 9)  # answers
            looks = spans = sum(rng.randrange(3000) for _ in range(n))
        else:
            n, first = 8 * rng.randrange(1, 9), rng.randrange(3000)
            looks, spans = looks_of(first, n), first
        cost.note(n, looks, real(n, looks, spans) * rng.uniform(0.95, 1.1), spans)
    for n, looks, spans in ((4, 8000, 8000), (40, looks_of(2000, 40), 2000), (64, 0, 0)):
        assert cost.seconds(n, looks, spans) == pytest.approx(real(n, looks, spans), rel=0.15)


def test_a_model_borrows_from_another_until_it_has_measured() -> None:
    two = CostModel()
    two.note(8, 0, 0.010)
    one = CostModel(two, 2.0)
    assert one.known
    assert one.seconds(8, 0) == pytest.approx(0.020)
    assert one.figures() == {}
    assert not CostModel(CostModel(), 2.0).known
