"""How text is cut into words, rule by rule; the expected cuts are those of the published regular expressions."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import UnsupportedModelError
from edgeinfer.model.pretokenizers import RULES, rule_named
from tests import vocabularies
from tests.texts import LONG_RUNS, texts

FIRSTS = [*{id(rule.steps): name for name, rule in reversed(RULES.items())}.values()]  # of each rule, the first name

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
    "qwen35": [("हिन्दी e\u0301x1", "हिन्दी| e\u0301x|1"), ("!\u0301", "!\u0301")],
    "ufakzeka": [("Ankara'da don't", "Ankara|'da| don|'t")],
    "laguna": [(" \n x\n\n", " |\n| x|\n\n")],
    "minicpm5": [("1234567 x", "123|456|7| x")],
    "jais-2": [("a" + " " * 16 + "b", "a|        |    |  | | b"), ("a\n  \n b", "a|\n  \n| b"), ("   ", "  | ")],
    "seed-coder": [("x!!\n\ny", "x|!!|\n\n|y"), ("a 12", "a| |1|2")],
    "gpt-4o": [
        ("HTMLParser's DON'T", "HTMLParser's| DON'T"),
        ("camelCase 1234", "camel|Case| |123|4"),
        ("a//\nb", "a|//\n|b"),
    ],
    "granite-embed-multi-97m": [("e\u0301x'S y", "e\u0301x'S| y")],
    "tekken": [("HTMLParser's 123", "HTMLParser|'s| |1|2|3"), ("camelCase", "camel|Case"), ("ABC", "ABC")],
    "tiny_aya": [("1234567", "1|234|567"), ("camelCase's 12", "camelCase's| |12")],
    "superbpe": [("a b1234567c", "a b|1|234|567|c"), ("123456", "123|456")],
    "deepseek-llm": [
        ("Hello world, 12!", "Hello| world|,| |12|!"),
        ("a中文b\n\nc", "a|中文|b|\n|\n|c"),
        ("x   ", "x|   "),
    ],
    "deepseek-coder": [("Hello, 12\nx", "Hello|,| |1|2|\n|x"), ("(a) b", "(|a|)| b")],
    "deepseek-v3": [
        ("don't (foo_bar 1234", "don|'t| (|foo|_bar| |123|4"),
        ("ab中文かc", "ab|中文か|c"),
        ("!?\n\nx", "!?\n\n|x"),
    ],
    "spark2_5": [("!?\n\nx1234", "!?|\n|\n|x|1|2|3|4")],
    "youtu": [("한국어、中文ㄅ fooBar's12", "한국어|、|中文|ㄅ| fooBar's|1|2")],
    "afmoe": [("1234567", "1|234|567"), ("ភាសាabc.def", "ភាសា|abc|.def")],
    "kimi-k2": [("中文abc中1234", "中文|abc|中|123|4"), ("don't  中", "don't| | |中")],
    "exaone-moe": [("the cat sat. On 12", "the cat sat|.| On| |1|2"), ("!!/x", "!!/|x")],
    "falcon": [("a`b$1234567", "a|`|b|$|123|456|7"), ("don't", "don|'|t")],
    "bloom": [("Hello, world (x)", "Hello|,| world| (|x|)"), ("a  b", "a| | b"), ("ab12", "ab12")],
    "viking": [("ab12 3", "ab|1|2| |3")],
    "chameleon": [("<sentinel:12>IMGIMGABZ x\n", "<|sentinel|:|1|2|>|IMGIMGABZ| x|\n"), ("a  b!?1", "a|  |b|!|?|1")],
    "gemma4": [("a b\n\nc", "a b|\n\n|c")],
    "whitespace": [("a b\u3000c", "a| |b|\u3000|c")],
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


@pytest.mark.parametrize("name", FIRSTS)
@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_nothing_is_lost(name: str, text: str) -> None:
    words = rule_named(name).split(text)
    assert "".join(words) == text
    assert all(words)


def test_every_rule_of_llama_cpp_is_known() -> None:
    source = (vocabularies.folder() / "src" / "llama-vocab.cpp").read_text()
    assert set(re.findall(r'tokenizer_pre == "([^"]+)"', source)) == set(RULES)


def test_the_texts_of_these_tests_tell_the_rules_apart() -> None:
    corpus = texts(seed=0, count=640)
    cuts = {name: tuple(tuple(RULES[name].split(text)) for text in corpus) for name in FIRSTS}
    assert len(set(cuts.values())) == len(cuts) == 30


@pytest.mark.parametrize("name", FIRSTS)
def test_time_grows_with_length_only(name: str) -> None:
    for piece, end in LONG_RUNS.values():
        text = piece * (20_000 // len(piece)) + end
        start = time.process_time()
        words = RULES[name].split(text)
        assert time.process_time() - start < 0.5
        assert sum(map(len, words)) == len(text)


def test_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'klingon'.*smollm"):
        rule_named("klingon")
