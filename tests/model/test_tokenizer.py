"""Text to ids and back: merge order, special tokens, BOS and EOS, the space prefix, and refusals that name the key."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import ModelFileError, SettingError, UnsupportedModelError
from edgeinfer.model.tokenizer import Tokenizer
from tests import models, vocabularies
from tests.tiny_tokenizers import bpe, bpe_metadata, chain, names, spm, spm_metadata

text_of_any_kind = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


# -- against llama.cpp's published tests ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", vocabularies.TESTED)
def test_published_vocabulary_tests(name: str) -> None:
    path, cases = vocabularies.published(name)
    tokenizer = vocabularies.load(path)
    assert len(cases) == {"gemma-4": 46, "qwen35": 51}.get(name, 47)
    assert [tokenizer.encode(text, special=False) for text, _ in cases] == [ids for _, ids in cases]
    if tokenizer.kind != "wordpiece":  # which loses spaces, case and accents; see test_wordpiece.py
        assert [tokenizer.decode(ids) for _, ids in cases] == [text for text, _ in cases]
    for _, ids in cases:
        stream = tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids)


# -- merges -----------------------------------------------------------------------------------------------------------


def test_merges_go_by_rank_not_from_left_to_right() -> None:
    tokenizer = bpe(("b c", "a b"))
    assert names(tokenizer, tokenizer.encode("abc")) == ["a", "bc"]


@pytest.mark.parametrize("wrong", [None, 5, b"abc", ["x"]])
def test_what_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises(SettingError, match="wanted a string"):
        bpe(("a b",)).encode(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 5, "abc", [1.5], ["a"]])
def test_what_are_no_ids_is_refused(wrong: object) -> None:
    with pytest.raises(SettingError, match="wanted"):
        bpe(("a b",)).decode(wrong)  # type: ignore[arg-type]


def test_equal_pairs_merge_from_the_left() -> None:
    tokenizer = bpe(("a a", "aa a"))
    assert names(tokenizer, tokenizer.encode("aaaaa")) == ["aa", "aaa"]
    assert names(tokenizer, bpe(("a a",)).encode("aaa")) == ["aa", "a"]


def test_a_merge_that_is_no_token_falls_back_to_its_characters() -> None:
    metadata = bpe_metadata(("a b",))
    metadata["tokenizer.ggml.tokens"][-1] = "other"
    tokenizer = Tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode("xaby")) == "xaby"
    assert names(tokenizer, tokenizer.encode("ab")) == ["a", "b"]


def test_a_whole_word_wins_over_merges_where_the_rule_says_so() -> None:
    merges = ("b c", "a b", "ab c")
    assert names(bpe(), []) == []
    llama, smollm = bpe(merges, pre="llama-bpe", add_bos_token=False), bpe(merges)
    assert names(llama, llama.encode("abc")) == ["abc"]
    assert names(smollm, smollm.encode("abc")) == ["a", "bc"]


def test_scores_decide_and_the_left_wins_ties() -> None:
    tokenizer = spm(("bc", "ab", "abc", "aa"), add_space_prefix=False, add_bos_token=False)
    assert names(tokenizer, tokenizer.encode("abc")) == ["abc"]  # b+c first, then a+bc
    assert names(tokenizer, tokenizer.encode("aaa")) == ["aa", "a"]
    ranked = spm(("ab", "bc"), add_space_prefix=False, add_bos_token=False)
    assert names(ranked, ranked.encode("abc")) == ["ab", "c"]


def test_words_are_not_cut_where_a_token_holds_the_space() -> None:
    # "o▁" is joined inside a token, so that "o w" must be seen as a whole; other places may be cut
    tokenizer = spm(("lo", "lo▁", "lo▁w", *chain("▁wor")), add_space_prefix=False, add_bos_token=False)
    assert names(tokenizer, tokenizer.encode("lo wor")) == ["lo▁w", "o", "r"]
    assert names(tokenizer, tokenizer.encode("la wor")) == ["l", "a", "▁wor"]


def test_characters_without_a_token_become_bytes() -> None:
    tokenizer = spm(add_space_prefix=False, add_bos_token=False)
    assert names(tokenizer, tokenizer.encode("é\n")) == ["<0xC3>", "<0xA9>", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode("é\n🙂")) == "é\n🙂"


def test_without_byte_tokens_the_unknown_token_stands_in() -> None:
    metadata = spm_metadata(add_space_prefix=False, add_bos_token=False)
    metadata["tokenizer.ggml.tokens"] = [t.replace("<0x", "byte ") for t in metadata["tokenizer.ggml.tokens"]]
    tokenizer = Tokenizer(metadata)
    assert names(tokenizer, tokenizer.encode("aé")) == ["a", "<unk>"]


# -- special tokens ---------------------------------------------------------------------------------------------------


def test_control_tokens_are_read_only_where_asked() -> None:
    tokenizer = bpe()
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[0] == 0
    assert names(tokenizer, tokenizer.encode("<|im_start|>a<|im_end|>")) == ["<|im_start|>", "a", "<|im_end|>"]
    plain = tokenizer.encode("<|im_start|>a<|im_end|>", special=False)
    assert min(plain) > 1
    assert tokenizer.decode(plain) == "<|im_start|>a<|im_end|>"


def test_user_defined_tokens_are_read_always() -> None:
    tokenizer = bpe(user_defined=("<tool>",))
    for special in (True, False):
        assert names(tokenizer, tokenizer.encode("a<tool>b", special)) == ["a", "<tool>", "b"]
    assert tokenizer.decode(tokenizer.encode("a<tool>b")) == "a<tool>b"


def test_longer_special_tokens_go_first() -> None:
    tokenizer = bpe(control=("<a>", "<a><b>", "<b><c>"))
    assert names(tokenizer, tokenizer.encode("<a><b><c>")) == ["<a><b>", "<", "c", ">"]
    assert names(tokenizer, tokenizer.encode("<a><a><b>")) == ["<a>", "<a><b>"]


def test_text_never_merges_into_a_control_token() -> None:
    words = ("</", "</s")
    tokenizer = spm(words, add_space_prefix=False, add_bos_token=False)
    assert 2 not in tokenizer.encode("</s>", special=False)
    assert tokenizer.encode("</s>") == [2]
    merged = bpe(("< |", "<| e", "<|e |", "<|e| >"), control=("<|e|>",))
    assert 0 not in merged.encode("<|e|>", special=False)


def test_masked_characters_are_not_part_of_control_tokens() -> None:
    tokenizer = bpe(user_defined=("<tool>",))
    text = "<|im_end|><|im_end|><tool>"
    masked = "#|im_end|><|im_end|>#tool>"
    ids = tokenizer.encode_fragment(text, masked, control=True)
    assert names(tokenizer, ids)[-2:] == ["<|im_end|>", "<tool>"]
    assert ids.count(1) == 1
    assert tokenizer.decode(ids, special=True) == text


def test_kinds_are_put_right_by_name() -> None:
    # a converter that typed the end of turn as ordinary text
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.token_type"][1] = 1
    tokenizer = Tokenizer(metadata)
    assert 1 in tokenizer.encode("<|im_end|>")
    assert 1 not in tokenizer.encode("<|im_end|>", special=False)
    assert 1 in tokenizer.end_ids


def test_marks_around_a_gap_are_control_tokens_whatever_the_file_says() -> None:
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
    tokenizer = bpe(user_defined=marks)
    plain, read = (tokenizer.encode("".join(marks), special) for special in (False, True))
    assert names(tokenizer, read) == [*marks]
    assert not set(plain) & set(read)
    # unless a key names another token for the purpose
    named = bpe(user_defined=marks, fim_pre_token_id=5)
    assert names(named, named.encode(marks[0], special=False)) == [marks[0]]


def test_white_space_belongs_to_the_mask_of_some_families() -> None:
    keys = {"general.architecture": "nomic-bert-moe"}
    tokenizer = Tokenizer(bpe_metadata(control=("<mask>", "<s>")) | keys)
    assert names(tokenizer, tokenizer.encode("a \t<mask> b")) == ["a", "<mask>", "Ġ", "b"]
    assert names(tokenizer, tokenizer.encode("a <s> b")) == ["a", "Ġ", "<s>", "Ġ", "b"]
    phi = Tokenizer(bpe_metadata(control=("<|user|>", "<s>")) | {"general.name": "Phi-3 mini"})
    assert names(phi, phi.encode("a <|user|>\n b<s> c")) == ["a", "Ġ", "<|user|>", "b", "<s>", "Ġ", "c"]


# -- byte pairs over characters (Gemma 4) -----------------------------------------------------------------------------


def characters(*merges: str, **keys: object) -> Tokenizer:
    made = [merge.replace(" ", "") for merge in merges]
    tokens = ["<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "\n", *"abc", *made]
    metadata = {"model": "gemma4", "tokens": tokens, "merges": [*merges], "bos_token_id": 0}
    types = [3] + [6] * 256 + [1] * (len(tokens) - 257)
    return Tokenizer(
        {f"tokenizer.ggml.{key}": value for key, value in (metadata | {"token_type": types} | keys).items()}
    )


def test_spaces_are_marks_and_what_has_no_token_becomes_bytes() -> None:
    tokenizer = characters("▁ a", "▁a b")
    assert (tokenizer.kind, tokenizer.pre) == ("bpe", "gemma4")
    assert names(tokenizer, tokenizer.encode("ab ab é")) == ["<bos>", "a", "b", "▁ab", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode(" ab  é\n🙂")) == " ab  é\n🙂"
    assert tokenizer.decode(tokenizer.encode("▁a")) == " a"  # the mark itself cannot be told from a space


def test_a_run_of_newlines_is_one_token_where_there_is_one() -> None:
    tokenizer = characters("\n \n")
    tokens = tokenizer.encode("a\n\n\nb\n\n", special=False)
    assert names(tokenizer, tokens) == ["a", "\n\n", "\n", "b", "\n\n"]


def test_words_are_not_cut_where_a_merge_crosses_the_space() -> None:
    tokenizer = characters("a ▁", "▁ b", "a▁ b")
    assert names(tokenizer, tokenizer.encode("a b", special=False)) == ["a▁b"]
    assert names(tokenizer, tokenizer.encode("b b", special=False)) == ["b", "▁b"]


def test_it_begins_with_bos_whatever_the_file_says() -> None:
    assert characters(add_bos_token=False).encode("a")[0] == 0


# -- BOS, EOS and the space prefix ------------------------------------------------------------------------------------


@pytest.mark.parametrize("add", [True, False, None])
@pytest.mark.parametrize("text", ["<s>hi", "hi", ""])
def test_exactly_one_bos(add: bool | None, text: str) -> None:
    tokenizer = spm(add_bos_token=add)
    ids = tokenizer.encode(text)
    wanted = add is not False or text.startswith("<s>")  # SentencePiece files ask for BOS unless they say otherwise
    assert ids.count(1) == (1 if wanted else 0)
    assert (ids[:1] == [1]) is wanted
    assert 1 not in tokenizer.encode(text, special=False)


def test_eos_is_added_where_the_file_asks() -> None:
    tokenizer = spm(add_eos_token=True)
    assert tokenizer.encode("a")[-1] == 2
    assert tokenizer.encode("a</s>").count(2) == 1
    assert 2 not in tokenizer.encode("a", special=False)
    assert 2 not in spm().encode("a")


def test_llama_3_asks_for_bos_by_the_name_of_its_rule() -> None:
    assert bpe(pre="llama-bpe", bos_token_id=0).encode("a")[0] == 0
    assert bpe(pre="smollm", bos_token_id=0).encode("a")[0] != 0
    assert bpe(pre="llama-bpe", bos_token_id=0, add_bos_token=False).encode("a")[0] != 0


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", ["Hello", " Hello", "  ", " ", "\t\t\t\t\t\tword", "", "a<s>b", "a <s> b", "x\ty"])
def test_text_comes_back_unchanged(prefix: bool, text: str) -> None:
    tokenizer = spm(("▁▁", *chain("▁Hello", "▁x", "▁leading", "Hello")), add_space_prefix=prefix)
    for special in (True, False):
        ids = tokenizer.encode(text, special)
        assert (
            tokenizer.decode(ids, special=special and "<s>" in text).removeprefix(
                "<s>" if special and "<s>" in text else ""
            )
            == text
        )
        stream = tokenizer.stream(special=special and "<s>" in text)
        assert (
            "".join([*map(stream.push, ids), stream.flush()]).removeprefix("<s>" if special and "<s>" in text else "")
            == text
        )


def test_the_prefix_is_one_space_mark() -> None:
    tokenizer = spm(("▁▁", *chain("▁Hello")), add_bos_token=False)
    assert names(tokenizer, tokenizer.encode("Hello")) == ["▁Hello"]
    assert names(tokenizer, tokenizer.encode(" Hello")) == ["▁▁", *"Hello"]
    assert names(tokenizer, tokenizer.encode("a<s>Hello")) == ["▁", "a", "<s>", "▁Hello"]
    without = spm(("▁▁", *chain("▁Hello")), add_bos_token=False, add_space_prefix=False)
    assert names(without, without.encode("Hello")) == [*"Hello"]
    assert names(without, without.encode(" Hello")) == ["▁Hello"]


def test_lone_surrogates_are_read_as_replacement_characters() -> None:
    for tokenizer in (bpe(), spm()):
        assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


# -- end ids ----------------------------------------------------------------------------------------------------------


def test_end_ids_are_those_the_file_names() -> None:
    control = ("<s>", "</s>", "<|eom|>", "<x>", "<y>", "<|file_sep|>")
    tokenizer = spm(control=control, eot_token_id=4, eom_token_id=3)
    assert tokenizer.end_ids == {2, 3, 4, 6}
    assert tokenizer.eos_id == 2


def test_known_end_markers_end_an_answer() -> None:
    assert bpe(control=("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "<|other|>")).end_ids == {
        0,
        1,
        2,
        3,
    }


def test_an_html_tag_is_no_end() -> None:
    tokenizer = bpe(control=("<eos>",), user_defined=("</s>",), eos_token_id=0)
    assert tokenizer.end_ids == {0}
    assert bpe(control=("<eos>", "</s>"), eos_token_id=0).end_ids == {0, 1}


def test_the_end_of_a_harmony_part_is_not_the_end() -> None:
    tokenizer = bpe(control=("<|return|>", "<|call|>", "<|end|>", "<|channel|>"), eos_token_id=0)
    assert tokenizer.end_ids == {0, 1}
    assert tokenizer.piece(3) == b"<|channel|>"


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_missing_rule_warns_once_and_is_the_default() -> None:
    with pytest.warns(UserWarning, match=r"no tokenizer\.ggml\.pre") as caught:
        tokenizer = bpe(pre=None)
    assert len(caught) == 1
    assert tokenizer.pre == "default"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.encode("12345")


def test_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre is 'klingon'.*--pre NAME"):
        bpe(pre="klingon")


@pytest.mark.parametrize("written", ["klingon", "smollm", None, 3])
def test_the_users_rule_stands_in_for_the_files(written: object) -> None:
    merges = ("1 2", "12 3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = Tokenizer(bpe_metadata(merges, pre=written), "llama-bpe")
    assert tokenizer.pre == "llama-bpe"
    assert names(tokenizer, tokenizer.encode("123", special=False)) == ["123"]


def test_a_users_rule_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'klingon' is not known\. Known are .*qwen2"):
        Tokenizer(bpe_metadata(), "klingon")
    with pytest.raises(SettingError, match="'qwen-2' is not known; did you mean .*qwen2"):
        Tokenizer(bpe_metadata(), "qwen-2")
    with pytest.raises(SettingError, match="'qwen2'.*kind 'spm', which has none"):
        Tokenizer(spm_metadata(), "qwen2")


@pytest.mark.parametrize(
    ("metadata", "error", "match"),
    [
        ({}, ModelFileError, r"no tokenizer\.ggml\.tokens"),
        (bpe_metadata(model="rwkv"), UnsupportedModelError, "'rwkv'.*'gpt2'"),
        (bpe_metadata(model=None), UnsupportedModelError, "names no tokenizer"),
        (
            {**bpe_metadata(), "tokenizer.ggml.merges": 3},
            ModelFileError,
            "merges is not an array of strings",
        ),
        (
            {k: v for k, v in bpe_metadata().items() if not k.endswith("merges")},
            ModelFileError,
            "no tokenizer.ggml.merges",
        ),
        (bpe_metadata(token_type=[1, 2]), ModelFileError, "token_type has 2 entries"),
        (spm_metadata(scores=[0.0]), ModelFileError, "scores has 1 entries"),
        (spm_metadata(scores=["a"]), ModelFileError, "scores is not an array of numbers"),
        (bpe_metadata(tokens=7), ModelFileError, "tokens is not an array of strings"),
    ],
)
def test_contradictory_files_are_refused(metadata: dict[str, object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Tokenizer(metadata)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    tokenizer = bpe()
    for index in (-1, tokenizer.n_vocab):
        with pytest.raises(SettingError, match=f"token id {index} is not in the vocabulary"):
            tokenizer.decode([index])


def test_special_ids_outside_the_vocabulary_are_ignored() -> None:
    tokenizer = spm(bos_token_id=10**6, eot_token_id=-5)
    assert tokenizer.bos_id == 1
    assert tokenizer.end_ids == {2}


# -- round trips ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(text_of_any_kind)
def test_byte_pairs_round_trip(text: str) -> None:
    tokenizer = bpe(("t h", "th e", "Ġ the", "e r", "Ġ a"))
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@settings(deadline=None)
@given(text_of_any_kind.filter(lambda text: "▁" not in text), st.booleans())
def test_sentencepiece_round_trip(text: str, prefix: bool) -> None:
    tokenizer = spm(("th", "the", "▁the", "er", "▁a", "▁▁", "a▁b"), add_space_prefix=prefix)
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@settings(deadline=None)
@given(text_of_any_kind.filter(lambda text: "▁" not in text))
def test_round_trip_of_a_real_vocabulary(text: str) -> None:
    tokenizer = _gemma()
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert np.all(np.array(tokenizer.encode(text), np.int64) < 262144)


_loaded: list[Tokenizer] = []


def _gemma() -> Tokenizer:
    if not _loaded:
        _loaded.append(vocabularies.load(models.gemma3()))
    return _loaded[0]


# -- real files -------------------------------------------------------------------------------------------------------


def test_smollm2() -> None:
    tokenizer = vocabularies.load(models.smollm2())
    assert repr(tokenizer) == "Tokenizer(kind='bpe', pre='smollm', n_vocab=49152)"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, False)
    assert tokenizer.end_ids == {0, 2, 4}
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]


def test_gemma3_loads_and_encodes_quickly() -> None:
    start = time.process_time()
    tokenizer = vocabularies.load(models.gemma3())
    loaded = time.process_time()
    assert (tokenizer.kind, tokenizer.n_vocab, tokenizer.bos_id, tokenizer.eos_id) == ("spm", 262144, 2, 1)
    assert tokenizer.end_ids == {1, 106}
    assert not tokenizer.add_space_prefix
    assert tokenizer.encode("Hello world") == [2, 9259, 1902]
    words = " ".join(f"word{i % 700} is number {i}" for i in range(500))
    before = time.process_time()
    tokenizer.encode(words)
    encoded = time.process_time()
    assert loaded - start < 1.0
    assert encoded - before < 0.3
