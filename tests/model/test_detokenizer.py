"""Streaming text: whole characters, as soon as they are complete, the same text as decoding at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import SettingError
from edgeinfer.model.tokenizer import Tokenizer
from tests.tiny_tokenizers import bpe, chain, spm

PIECES = (b"\xf0\x9f\x98", b"\xb8", b"\xe6\xad", b"\xaa", b" \xe6", b"\xad\xaa", b"plain")


def of_pieces(*pieces: bytes) -> tuple[Tokenizer, list[int]]:
    """A byte-level tokenizer whose first tokens are `pieces`, and their ids."""
    from edgeinfer.model.bpe import TEXT_OF_BYTES

    tokens = ["".join(TEXT_OF_BYTES[byte] for byte in piece) for piece in pieces]
    metadata = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": []}
    return Tokenizer({f"tokenizer.ggml.{key}": value for key, value in metadata.items()}), list(range(len(pieces)))


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(i) for i in ids), stream.flush()]


@pytest.mark.parametrize(
    ("pieces", "released"),
    [
        ([b"\xf0\x9f\x98", b"\xb8"], ["", "😸", ""]),
        ([b"\xe6\xad", b"\xaa"], ["", "歪", ""]),
        ([b" \xe6", b"\xad\xaa"], [" ", "歪", ""]),
        # two emoji in a row are not held back to the end, nor is plain text after them
        ([b"\xf0\x9f\x98", b"\xb8\xf0", b"\x9f\x98\xb8", b"ok"], ["", "😸", "😸", "ok", ""]),
        # invalid bytes: each is given up as soon as nothing can complete it, and no valid neighbour is lost
        ([b"a\xff", b"b"], ["a\ufffd", "b", ""]),
        ([b"\xf0\x9f", b"x"], ["", "\ufffdx", ""]),
        ([b"\x80"], ["\ufffd", ""]),
        ([b"\xed\xa0\x80"], ["\ufffd\ufffd\ufffd", ""]),
        # the text ends inside a character
        ([b"x\xf0\x9f"], ["x", "\ufffd"]),
    ],
)
def test_characters_are_released_when_complete(pieces: list[bytes], released: list[str]) -> None:
    tokenizer, ids = of_pieces(*pieces)
    assert streamed(tokenizer, ids) == released
    assert tokenizer.decode(ids) == "".join(released)


@settings(deadline=None)
@given(st.lists(st.integers(0, 257), max_size=30))
def test_streaming_equals_decoding(ids: list[int]) -> None:
    tokenizer = bpe()
    whole = b"".join(tokenizer.piece(i) for i in ids).decode(errors="replace")
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == whole


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_nothing_is_held_back_longer_than_its_character(text: str) -> None:
    tokenizer = bpe()
    stream, shown = tokenizer.stream(), b""
    for index in tokenizer.encode(text, special=False):
        shown += tokenizer.piece(index)
        before = stream.push(index)
        # everything but the beginning of one character is out
        assert "\ufffd" not in before.replace("\ufffd" if "\ufffd" in text else "", "")
    assert stream.flush() == ""


def test_the_prefix_space_is_taken_off_once() -> None:
    tokenizer = spm(("▁▁", *chain("▁leading", "▁x")))
    ids = {name: tokenizer._vocab.find(name.encode()) for name in ("▁", "▁leading", "▁x", "▁▁")}
    assert streamed(tokenizer, [ids["▁"], ids["▁leading"], ids["▁x"]]) == ["", " leading", " x", ""]
    assert streamed(tokenizer, [ids["▁▁"], ids["▁x"]]) == [" ", " x", ""]
    assert tokenizer.decode([1, ids["▁leading"]]) == "leading"


def test_a_continuation_keeps_its_space() -> None:
    tokenizer = spm(chain("▁Paris"))
    prompt = tokenizer.encode("is")
    answer = tokenizer.encode("Paris", special=False)
    assert tokenizer.stream(after=prompt[-1]).push(answer[0]) == " Paris"
    assert tokenizer.stream(after=1).push(answer[0]) == "Paris"  # after a control token a text begins
    assert tokenizer.stream().push(answer[0]) == "Paris"
    plain = spm(chain("▁Paris"), add_space_prefix=False)
    assert plain.stream().push(plain.encode(" Paris", special=False)[0]) == " Paris"


def test_control_tokens_are_no_text() -> None:
    tokenizer = bpe()
    assert tokenizer.decode([0, *tokenizer.encode("hi"), 1]) == "hi"
    assert tokenizer.decode([0, *tokenizer.encode("hi"), 1], special=True) == "<|im_start|>hi<|im_end|>"
    assert streamed(tokenizer, [0, 1]) == ["", "", ""]


def test_flush_makes_ready_for_another_text() -> None:
    tokenizer, ids = of_pieces(b"\xf0\x9f\x98", b"\xb8", b"a")
    stream = tokenizer.stream()
    assert [stream.push(ids[0]), stream.flush(), stream.push(ids[2])] == ["", "\ufffd", "a"]


def test_unknown_ids_are_refused() -> None:
    with pytest.raises(SettingError, match="not in the vocabulary"):
        bpe().stream().push(10**6)
