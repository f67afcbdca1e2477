"""How text is cut into words, rule by rule; the expected cuts are those of the published regular expressions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import UnsupportedModelError
from edgeinfer.model.pretokenizers import RULES, rule_named

CUTS = {
    "smollm": [
        ("1234567", "1|2|3|4|5|6|7"),
        ("don't DON'T", "don|'t| DON|'|T"),
        ("a  b\n\n\nc", "a| | b|\n\n|\n|c"),
        ("x 12.5", "x| |1|2|.|5"),
        ("café cafe\u0301", "café| cafe|\u0301"),
        ("  ", "  "),
    ],
    "default": [
        ("1234567", "123|456|7"),
        ("don't DON'T", "don|'|t| DON|'|T"),
        ("a  b\n\n\nc", "a| | b|\n\n|\n|c"),
        ("x 12.5`", "x| |12|.|5|`"),
    ],
    "gpt-2": [
        ("1234567", "1234567"),
        ("don't DON'T we've", "don|'t| DON|'|T| we|'ve"),
        ("a  b\n\n\nc", "a| | b|\n\n|\n|c"),
        ("x 12.5", "x| 12|.|5"),
        ("\n\n", "\n\n"),
    ],
    "llama-bpe": [
        ("1234567", "123|456|7"),
        ("don't DON'T we'VE", "don|'t| DON|'T| we|'VE"),
        ("a  b\n\n\nc", "a| | b|\n\n\n|c"),
        (" \n x\n", " \n| x|\n"),
        ("x!!\n\ny", "x|!!\n\n|y"),
        ("(a", "(a"),
        ("a 1", "a| |1"),
        ("ſ'ſ", "ſ|'ſ"),
    ],
    "qwen2": [
        ("1234567", "1|2|3|4|5|6|7"),
        ("don't DON'T", "don|'t| DON|'T"),
        ("a  b\n\n\nc", "a| | b|\n\n\n|c"),
        ("½Ⅷ", "½|Ⅷ"),
    ],
}


@pytest.mark.parametrize(("name", "text", "cut"), [(name, *case) for name, cases in CUTS.items() for case in cases])
def test_cuts(name: str, text: str, cut: str) -> None:
    assert "|".join(rule_named(name).split(text)) == cut


@pytest.mark.parametrize("name", RULES)
@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_nothing_is_lost(name: str, text: str) -> None:
    words = rule_named(name).split(text)
    assert "".join(words) == text
    assert all(words)


def test_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'klingon'.*smollm"):
        rule_named("klingon")
