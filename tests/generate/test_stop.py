from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.generate.stop import StopStrings


def shown(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    """What comes out for each piece, with the flush as one more, and the stop string that matched."""
    matcher = StopStrings(stops)
    out = [matcher.push(piece) for piece in pieces]
    return [*out, matcher.flush()], matcher.matched


@pytest.mark.parametrize(
    ("pieces", "stops", "out", "matched"),
    [
        (["D", "EF", "GHI", "J"], ["EFGHIJ"], ["D", "", "", "", ""], "EFGHIJ"),
        (["?\n"], ["\n"], ["?", ""], "\n"),
        (["a", "EF", "GH", "x"], ["EFGHIJ"], ["a", "", "", "EFGHx", ""], None),  # the match failed: all comes out
        (["a", "EF"], ["EFGHIJ"], ["a", "", "EF"], None),  # the text ended: what was held comes out
        (["STOP", "more"], ["STOP"], ["", "", ""], "STOP"),
        (["abXY"], ["XYZ", "bX"], ["a", ""], "bX"),
        (["ab", "cd"], ["abcd", "bc"], ["", "a", ""], "bc"),  # complete first
        (["xab"], ["b", "ab"], ["x", ""], "ab"),  # complete together: the longest
        (["aab"], ["ab"], ["a", ""], "ab"),
        (["aa", "ab"], ["aab"], ["", "a", ""], "aab"),
        (["text", ""], [""], ["text", "", ""], None),  # an empty stop string is ignored
        (["text"], [], ["text", ""], None),
        (["x", "\U0001f600y"], ["\U0001f600"], ["x", "", ""], "\U0001f600"),
    ],
)
def test_stop_strings(pieces: list[str], stops: list[str], out: list[str], matched: str | None) -> None:
    assert shown(pieces, stops) == (out, matched)


def test_nothing_comes_out_after_the_match() -> None:
    matcher = StopStrings(["b"])
    assert [matcher.push("abc"), matcher.push("later"), matcher.flush()] == ["a", "", ""]


@given(
    st.text("abc", max_size=12),
    st.lists(st.text("abc", max_size=4), max_size=3),
    st.lists(st.integers(0, 12), max_size=6),
)
def test_the_result_does_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[first:last] for first, last in itertools.pairwise(edges)]
    one_by_one, matched = shown(list(text), stops)
    out, matched_in_pieces = shown(pieces, stops)
    assert ("".join(out), matched_in_pieces) == ("".join(one_by_one), matched)
    if matched is None:
        assert "".join(out) == text
        assert not any(stop and stop in text for stop in stops)
    else:
        assert text.startswith("".join(out) + matched)


@given(st.text("ab", max_size=10), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_could_still_match(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    seen = ""
    for i, character in enumerate(text):
        seen += matcher.push(character)
        if matcher.matched is not None:
            return
        held = text[len(seen) : i + 1]
        assert not held or any(stop.startswith(held) for stop in stops)
