"""Unigram: the best row of tokens, unknown characters, spaces, the character map, and files that lie about it."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.errors import ModelFileError
from edgeinfer.model.charsmap import CharacterMap
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer
from edgeinfer.model.tokenizer_keys import TokenizerKeys
from tests import vocabularies
from tests.texts import LONG_RUNS
from tests.tiny_tokenizers import names, unigram, unigram_metadata

SCORES = {"▁": -3.0, "a": -4.0, "b": -4.0, "c": -4.0, "ab": -5.0, "bc": -1.0, "▁a": -5.0, "▁abc": -9.5, "é": -2.0}


def plain(tokenizer: Tokenizer, text: str) -> list[str]:
    return names(tokenizer, tokenizer.encode(text, special=False))


def test_the_best_sum_wins() -> None:
    assert plain(unigram(SCORES), "abc") == ["▁a", "bc"]  # -6, not -9.5 nor -3 + -5 + -4
    assert plain(unigram(SCORES), "ab") == ["▁", "ab"]


def test_the_first_row_wins_among_equals() -> None:
    # "aaa" is aa + a or a + aa; llama.cpp keeps the row whose last token begins first
    tokenizer = unigram({"▁": -1.0, "a": -1.0, "aa": -1.0}, add_space_prefix=False)
    assert plain(tokenizer, "aaa") == ["a", "aa"]


def test_what_has_no_token_is_unknown_once() -> None:
    assert plain(unigram(SCORES), "axyzb") == ["▁a", "<unk>", "b"]
    assert plain(unigram(SCORES), "☺ ☺") == ["▁", "<unk>", "▁", "<unk>"]
    assert plain(unigram({"a": -1.0}), "☺ ☺") == ["<unk>"]


def test_user_defined_tokens_cost_nothing() -> None:
    tokenizer = unigram(SCORES, ("<x>",))
    assert plain(tokenizer, "a<x>b") == ["▁a", "<x>", "▁", "b"]


@pytest.mark.parametrize(
    ("flags", "text", "tokens"),
    [
        ({"add_space_prefix": True}, "  a  a ", "▁ ▁ ▁a ▁ ▁a ▁"),
        ({"add_space_prefix": False}, "  a  a ", "▁ ▁a ▁ ▁a ▁"),
        ({"remove_extra_whitespaces": True}, "  a  a ", "▁a ▁a"),
        ({"remove_extra_whitespaces": True, "add_space_prefix": False}, "a", "▁a"),
        ({"add_space_prefix": True}, "", ""),
    ],
)
def test_spaces(flags: dict[str, bool], text: str, tokens: str) -> None:
    assert plain(unigram(SCORES, **flags), text) == tokens.split()


def test_eos_stands_at_the_end_and_bos_only_where_asked() -> None:
    assert names(unigram(SCORES), unigram(SCORES).encode("a")) == ["▁a", "</s>"]
    asked = unigram(SCORES, bos_token_id=0, add_bos_token=True, add_eos_token=False)
    assert names(asked, asked.encode("a")) == ["<pad>", "▁a"]


@pytest.mark.parametrize("text", ["abc a b", "a  b", " a", "a b ", "é c"])
def test_text_comes_back(text: str) -> None:
    tokenizer = unigram(SCORES)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.flush()]) == text


def test_words_apart_give_the_ids_of_the_whole_even_where_rounding_decides() -> None:
    rng = random.Random(4)
    # scores that binary fractions cannot hold, so that equal sums differ by what stands before them
    scores = {
        word: -round(rng.uniform(1, 9), 1) for word in ("▁", "a", "b", "aa", "ab", "ba", "bb", "aab", "▁a", "▁bb")
    }
    tokenizer, whole = Tokenizer(unigram_metadata(scores)), Tokenizer(unigram_metadata(scores))
    encoder = whole._encoder
    encoder._boundary = None  # type: ignore[union-attr]
    for _ in range(200):
        text = "".join(rng.choice("aabb ") for _ in range(rng.randint(1, 120)))
        assert tokenizer.encode(text) == whole.encode(text)


@pytest.mark.parametrize("run", LONG_RUNS)
def test_time_grows_with_length_only(run: str) -> None:
    tokenizer = unigram({"▁": -1.0, "a": -1.0, "aa": -1.1, "aaaaaaaa": -2.0, "▁▁": -2.0, "7": -1.0, "中": -1.0})
    piece, end = LONG_RUNS[run]
    start = time.process_time()
    tokenizer.encode(piece * (20_000 // len(piece)) + end)
    assert time.process_time() - start < 1.0


# -- the character map ------------------------------------------------------------------------------------------------


def published_map() -> NDArray[np.uint8]:
    with GGUFFile.open(vocabularies.folder() / "nomic-bert-moe.gguf") as file:
        table = TokenizerKeys(file.metadata).numbers("precompiled_charsmap")
    assert table is not None
    return table.astype(np.uint8)


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("plain", "plain"),
        ("ﬁne", "fine"),
        ("Ａ１", "A1"),
        ("e\u0301x", "éx"),
        ("a\tb\u3000c", "a b c"),
        ("①½", "11⁄2"),
        ("x\x00y", "x\x00y"),
        ("\ufeff", " "),
        ("ﷺ", "صلى الله عليه وسلم"),
    ],
)
def test_a_published_map(text: str, rewritten: str) -> None:
    assert CharacterMap(published_map()).rewrite(text) == rewritten


def test_no_map_rewrites_nothing() -> None:
    assert CharacterMap(None).rewrite("ﬁ") == CharacterMap(np.zeros(0, np.uint8)).rewrite("ﬁ") == "ﬁ"


@pytest.mark.parametrize("length", [1, 3, 4, 1000])
def test_a_map_cut_short_is_refused(length: int) -> None:
    metadata = unigram_metadata(SCORES, precompiled_charsmap=published_map()[:length])
    with pytest.raises(ModelFileError, match="precompiled_charsmap has .*damaged"):
        Tokenizer(metadata)


def test_a_map_that_points_outside_itself_is_refused() -> None:
    far = np.frombuffer((4).to_bytes(4, "little") + (0x7FFFFC00).to_bytes(4, "little") + b"\0", np.uint8)
    with pytest.raises(ModelFileError, match="points to its entry"):
        CharacterMap(far).rewrite("a")
    table = published_map()
    size = int.from_bytes(table[:4].tobytes(), "little")
    with pytest.raises(ModelFileError, match="points to a replacement"):
        CharacterMap(table[: 4 + size + 2]).rewrite("ﬁﷺ")


def test_damaged_maps_end_in_an_error_or_a_text() -> None:
    rng = np.random.default_rng(5)
    text = "".join(map(chr, [*range(0x20, 0x250), 0xFB01, 0xFDFA, 0x1F642]))
    for _ in range(20):
        table = published_map()
        table[rng.integers(4, len(table), 2000)] = rng.integers(0, 256, 2000)
        try:
            assert isinstance(CharacterMap(table).rewrite(text), str)
        except ModelFileError:
            pass


def test_a_file_without_an_unknown_token_is_refused() -> None:
    metadata = {"model": "t5", "tokens": ["a"], "scores": [0.0], "unknown_token_id": 7}
    with pytest.raises(ModelFileError, match="unknown_token_id"):
        Tokenizer({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
