"""WordPiece: how text is made ready and cut, what stands around it, and the text that comes back."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest

from edgeinfer.model import unicode_folding
from edgeinfer.model.tokenizer import Tokenizer
from tests import vocabularies
from tests.texts import LONG_RUNS
from tests.tiny_tokenizers import names, wordpiece

WORDS = (
    "▁un",
    "▁a",
    "aff",
    "able",
    "▁unaff",
    "▁hello",
    "▁world",
    "▁,",
    "▁!",
    "▁中",
    "▁国",
    "s",
    "▁e",
    "▁é",
    "▁E",
    "▁~",
)


def plain(tokenizer: Tokenizer, text: str) -> list[str]:
    return names(tokenizer, tokenizer.encode(text, special=False))


def test_the_longest_part_goes_first() -> None:
    assert plain(wordpiece(WORDS), "unaffable") == ["▁unaff", "able"]
    assert plain(wordpiece(WORDS), "un affs") == ["▁un", "[UNK]"]  # no word begins with "aff"


def test_a_word_with_a_part_that_is_no_token_is_unknown_as_a_whole() -> None:
    assert plain(wordpiece(WORDS), "hello unaffx world") == ["▁hello", "[UNK]", "▁world"]


def test_punctuation_and_chinese_characters_are_words() -> None:
    assert plain(wordpiece(WORDS), "hello,world!a~") == ["▁hello", "▁,", "▁world", "▁!", "▁a", "▁~"]
    assert plain(wordpiece(WORDS), "a中国a") == ["▁a", "▁中", "▁国", "▁a"]


@pytest.mark.parametrize(
    ("flags", "token"),
    [
        ({}, "▁e"),
        ({"normalizer.lowercase": False}, "[UNK]"),  # É, with its accent
        ({"normalizer.lowercase": True, "normalizer.strip_accents": False}, "▁é"),
        ({"normalizer.lowercase": False, "normalizer.strip_accents": True}, "▁E"),
    ],
)
def test_case_and_accents(flags: dict[str, bool], token: str) -> None:
    assert plain(wordpiece(WORDS, **flags), "É") == [token]


def test_control_characters_are_dropped_and_white_space_of_all_kinds_parts_words() -> None:
    assert plain(wordpiece(WORDS), "he\0l\u200bl\x1co\u3000wor\ufffdld\u2028a\n") == ["▁hello", "▁world", "▁a"]


def test_cls_and_sep_stand_around_a_text_once() -> None:
    tokenizer = wordpiece(WORDS)
    assert names(tokenizer, tokenizer.encode("hello")) == ["[CLS]", "▁hello", "[SEP]"]
    assert names(tokenizer, tokenizer.encode("[CLS]hello[SEP]")) == ["[CLS]", "▁hello", "[SEP]"]
    assert names(tokenizer, tokenizer.encode("")) == ["[CLS]", "[SEP]"]
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.add_eos) == (2, True, True)


def test_the_text_that_comes_back_is_words_apart() -> None:
    tokenizer = wordpiece(WORDS)
    ids = tokenizer.encode("Hello, unaffable [MASK] x world!")
    assert tokenizer.decode(ids) == "hello , unaffable world !"
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == ["", "hello", " ,", " unaff", "able", "", "", " world", " !", ""]
    assert tokenizer.stream(after=ids[1]).push(ids[2]) == " ,"  # a continuation keeps its space


def test_published_words_come_back() -> None:
    path, cases = vocabularies.published("bert-bge")
    tokenizer = vocabularies.load(path)
    assert tokenizer.decode(tokenizer.encode("Hello, y'all! How are you 😁 ?")) == "hello , y ' all ! how are you ?"
    for _, ids in cases:
        stream = tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids)


@pytest.mark.parametrize("run", LONG_RUNS)
def test_time_grows_with_length_only(run: str) -> None:
    tokenizer = wordpiece(("▁", "a", "aa", "aaaa", "b", "7", "\U0001f642", "▁a"))
    piece, end = LONG_RUNS[run]
    start = time.process_time()
    tokenizer.encode(piece * (20_000 // len(piece)) + end)
    assert time.process_time() - start < 1.0


def test_folding_is_llama_cpps_for_every_character() -> None:
    source = (vocabularies.folder() / "src" / "unicode-data.cpp").read_text()
    lower, _, bases = source[source.index("unicode_map_lowercase = {") :].partition("unicode_ranges_nfd = {")
    lower = lower[: lower.index("};")]
    lowered = {chr(int(a, 16)): chr(int(b, 16)) for a, b in re.findall(r"\{0x(\w+), 0x(\w+)\}", lower)}
    stripped = {
        chr(point): chr(int(base, 16))
        for first, last, base in re.findall(r"\{0x(\w+), 0x(\w+), 0x(\w+)\}", bases)
        for point in range(int(first, 16), int(last, 16) + 1)
    }
    assert (len(lowered), len(stripped)) == (1433, 13234)
    # what neither table nor this Python changes, we do not change either
    changed = {c for c in map(chr, range(0x110000)) if c.lower() != c or unicodedata.decomposition(c)}
    for character in changed | set(lowered) | set(stripped):
        assert unicode_folding.lowered(character) == lowered.get(character, character), hex(ord(character))
        assert unicode_folding.stripped(character) == stripped.get(character, character), hex(ord(character))
