"""The parts of the comparison scripts that decide what counts as the same."""

from __future__ import annotations

import pytest
from compare_exactness import windows
from compare_greedy import Parting, parting
from fetch_models import SOURCES

END = frozenset({99})


@pytest.mark.parametrize(
    ("ours", "ended", "theirs", "wanted"),
    [
        ([1, 2, 3], False, [1, 2, 3], None),
        ([1, 2], True, [1, 2, 99, 5], None),  # llama.cpp goes on behind the end token, we do not
        ([1, 2, 3], False, [1, 5, 3], Parting(1, 2, 5)),
        ([1, 2], True, [1, 2, 3], Parting(2, None, 3)),
        ([1, 2, 3], False, [1, 99, 3], Parting(1, 2, None)),
        ([], True, [99, 1], None),
        ([], True, [1, 1], Parting(0, None, 1)),
    ],
)
def test_parting(ours: list[int], ended: bool, theirs: list[int], wanted: Parting | None) -> None:
    assert parting(ours, ended, theirs, END) == wanted


def test_windows_start_with_the_begin_token_and_lose_nothing() -> None:
    assert list(windows([7, 1, 2, 3, 4, 5], 7, 3, 100)) == [[7, 1, 2], [7, 3, 4], [7, 5]]
    assert list(windows([1, 2, 3, 4, 5], None, 2, 100)) == [[1, 2], [3, 4], [5]]
    assert list(windows([1, 2, 3, 4, 5], None, 2, 4)) == [[1, 2], [3, 4]]


def test_every_test_model_has_a_checksum() -> None:
    assert {len(source.sha256) for source in SOURCES.values()} == {64}
