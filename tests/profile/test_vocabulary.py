"""What is odd about a tokenizer is said, and nothing is said of one that is as it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer
from edgeinfer.profile.vocabulary import tokenizer_facts
from tests import gguf_bytes as make
from tests.tiny import build_tiny

KEYS = "tokenizer.ggml."


def facts(path: Path) -> dict[str, Any]:
    with GGUFFile.open(path) as file:
        return tokenizer_facts(file, file.tensors["token_embd.weight"].shape[0])


def oddities(tmp_path: Path, metadata: dict[str, Any] | None = None, **more: Any) -> list[str]:
    found = {KEYS + name: value for name, value in (metadata or {}).items()}
    odd: list[str] = facts(build_tiny(tmp_path / "m.gguf", metadata=found, **more))["oddities"]
    return odd


def test_counts(tmp_path: Path) -> None:
    found = facts(build_tiny(tmp_path / "m.gguf"))
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert found["n_tokens"] == tokenizer.n_vocab
    assert sum(found["types"].values()) == tokenizer.n_vocab
    assert found["types"]["control"] == 3
    assert found["n_merges"] == found["types"]["normal"] - 256
    found = facts(build_tiny(tmp_path / "spm.gguf", tokenizer="spm"))
    assert (found["types"]["byte"], found["types"]["unknown"], found["n_merges"]) == (256, 1, 0)


def test_a_sound_tokenizer(tmp_path: Path) -> None:
    assert oddities(tmp_path, tokenizer="spm", metadata={"eot_token_id": 5}) == []
    # <|endoftext|> ends an answer by its name alone
    (only,) = oddities(tmp_path)
    assert "0 '<|endoftext|>'" in only


@pytest.mark.parametrize(
    ("metadata", "more", "says"),
    [
        ({"padding_token_id": 4294967295}, {}, "padding is token 4294967295, which the vocabulary of"),
        ({"eos_token_id": 7}, {}, "eos (7) is typed normal, not control"),
        ({"bos_token_id": 2}, {}, "bos and eos are one token, 2"),
        ({"pre": None}, {}, "tokenizer.ggml.pre is missing"),
        ({"token_type": None}, {}, "tokenizer.ggml.token_type is missing"),
        ({"token_type": [2, 2, 3] + [1] * 600}, {}, "2 tokens are typed unknown"),
        ({"token_type": [1, 2]}, {}, "token_type has 2 of "),
        ({}, {"n_rows": 512}, " of 512 embedding rows have no token"),
        ({"scores": None}, {"tokenizer": "spm"}, "tokenizer.ggml.scores is missing"),
        ({"scores": [0.5]}, {"tokenizer": "spm"}, "scores is missing or too short"),
    ],
)
def test_each_oddity(tmp_path: Path, metadata: dict[str, Any], more: dict[str, Any], says: str) -> None:
    assert any(says in odd for odd in oddities(tmp_path, metadata, **more))


def test_tokens_that_are_alike_empty_or_no_text(tmp_path: Path) -> None:
    """The numbers are of the file; where a text is there twice, the tokenizer takes the last."""
    tokens = ["<s>", "ab", "ab", "", "c", "", b"\xff", "ab"]
    keys = [make.key(KEYS + "model", "string", "gpt2"), make.key(KEYS + "tokens", "string[]", tokens)]
    path = tmp_path / "m.gguf"
    path.write_bytes(make.gguf(keys, [make.tensor("token_embd.weight", [8, 8])], bytes(256)))
    found = facts(path)["oddities"]
    assert "2 tokens repeat the text of another, first 1 and 2: 'ab'" in found
    assert "2 tokens have no text, first 3" in found
    assert "1 tokens are not UTF-8, first 6" in found
    assert "no token ends an answer: it goes on until the limit" in found


def test_byte_tokens_that_are_missing(tmp_path: Path) -> None:
    with GGUFFile.open(build_tiny(tmp_path / "a.gguf", tokenizer="spm")) as file:
        types = list(file.metadata[KEYS + "token_type"])  # type: ignore[call-overload]
    types[100] = 1
    assert any(
        "255 byte tokens, wanted 256" in odd for odd in oddities(tmp_path, {"token_type": types}, tokenizer="spm")
    )


def test_a_vocabulary_beyond_any_model_is_not_looked_at(tmp_path: Path) -> None:
    n = (1 << 20) + 1
    keys = [make.key(KEYS + "model", "string", "gpt2")]
    keys.append(make.string(KEYS + "tokens") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little"))
    keys[-1] += n.to_bytes(8, "little") + bytes(8 * n)
    path = tmp_path / "m.gguf"
    path.write_bytes(make.gguf(keys, [make.tensor("token_embd.weight", [8, 8])], bytes(256)))
    found = facts(path)
    assert found["problems"] == [
        "its vocabulary has 1,048,577 tokens; wanted at most 1,048,576, which is far above any"
    ]
    assert (found["n_tokens"], found["oddities"]) == (n, [])
