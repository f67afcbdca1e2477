from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.generate.dry import Dry, find_breakers
from edgeinfer.generate.params import SamplingParams


def costs(history: str, breakers: dict[int, list[tuple[int, ...]]] | None = None, **params: Any) -> dict[str, float]:
    """What letters cost after a text of letters."""
    settings = SamplingParams(**{"dry_multiplier": 1.0, "dry_base": 2.0, **params})
    dry = Dry(settings, 256, breakers or {}, [])
    for letter in history:
        dry.accept(ord(letter))
    return {chr(token): cost for token, cost in dry.penalties().items()}


def test_by_hand() -> None:
    assert costs("abcxab") == {"c": 1.0}  # two tokens repeat: as long as is allowed
    assert costs("abcdxabc") == {"d": 2.0}
    assert costs("abcdexabcd") == {"e": 4.0}
    assert costs("abcxb") == {}
    assert costs("abcxb", dry_allowed_length=1) == {"c": 1.0}
    assert costs("abcdxabc", dry_multiplier=0.5, dry_base=3.0) == {"d": 1.5}
    assert costs("abcyabdzab") == {"c": 1.0, "d": 1.0}
    assert costs("xabcyabdzxab") == {"c": 2.0, "d": 1.0}  # the longest repetition counts
    assert costs("aaaaa") == {"a": 4.0}
    assert costs("") == costs("a") == costs("ab") == {}


def test_how_far_it_looks_back() -> None:
    assert costs("abcd" + "x" * 60 + "abc", dry_penalty_last_n=64) == {}
    assert costs("abcd" + "x" * 60 + "abc", dry_penalty_last_n=67) == {"d": 2.0}
    assert costs("abcd" + "xy" * 3000 + "abc", dry_penalty_last_n=-1) == {"d": 2.0}
    assert costs("abcd" * 2000, dry_penalty_last_n=8, dry_base=1.5)["a"] == pytest.approx(1.5**2)


def test_the_penalty_has_a_limit() -> None:
    cost = costs("a" * 2000, dry_penalty_last_n=-1)["a"]
    assert cost == 2.0 ** int(88.7228391 / 0.6931472)
    assert costs("a" * 2000, dry_penalty_last_n=-1, dry_base=1.0) == {"a": 1.0}


def test_repetitions_end_at_a_breaker() -> None:
    stop = {ord("."): [()]}
    assert costs("abc.dxabc.d", stop) == {}  # "d" alone is behind the breaker
    assert costs("abc.defxabc.de", stop) == {"f": 1.0}
    assert costs("ab.ab", stop) == {}  # the breaker itself costs nothing
    two = {ord("<"): [(ord(">"),)]}  # "<>" is one, "<" is none
    assert costs("ab<cxab<", two) == {"c": 2.0}
    assert costs("ab<>cxab<>", two) == {}


def test_breakers_are_found_inside_and_across_tokens() -> None:
    pieces = [b"a", b"\n", b".\n\n", b" :", b"he", b"xhe", b"the end", b"t", b"\xc3"]
    encode = lambda text: [100 + ord(text[0])]  # noqa: E731
    assert find_breakers(["\n"], pieces, encode) == {1: [()], 2: [()]}
    # "he end": ends in it, or lies in one token
    assert find_breakers(["he e"], pieces, encode) == {4: [(132,)], 5: [(132,)], 6: [()]}
    # half a character ends no token: a tail must be text
    assert find_breakers(["é"], pieces, encode) == {}
    assert find_breakers([], pieces, encode) == {}


def plain(history: list[int], allowed: int, breakers: set[int]) -> dict[int, int]:
    """The length of the repetition that each token would go on with, looked for one by one."""
    n = len(history)
    limit = next((i for i in range(n) if history[n - 1 - i] in breakers), n)
    found: dict[int, int] = {}
    for end in range(n - 1):
        length = 0
        while length <= end and length < limit and history[end - length] == history[n - 1 - length]:
            length += 1
        if length >= allowed and n > allowed and limit >= allowed:
            token = history[end + 1]
            found[token] = max(found.get(token, 0), length)
    return {token: length for token, length in found.items() if token not in breakers}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 4),
    st.sets(st.integers(0, 3), max_size=2),
    st.integers(1, 40),
)
def test_as_if_looked_for_one_by_one(history: list[int], allowed: int, breakers: set[int], last_n: int) -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_base=1.01, dry_allowed_length=allowed, dry_penalty_last_n=last_n)
    dry = Dry(params, 4, {token: [()] for token in breakers}, history[:7])
    for token in history[7:]:
        dry.accept(token)
    expected = plain(history[-last_n:], allowed, breakers)
    assert dry.penalties() == pytest.approx({token: 1.01 ** (n - allowed) for token, n in expected.items()})
