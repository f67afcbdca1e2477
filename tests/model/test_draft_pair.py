"""Whether one vocabulary may draft for another (case F35): only padding may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.model.draft_pair import VocabularyMatch, match_vocabularies
from edgeinfer.model.gguf import GGUFFile
from tests.tiny import build_tiny

KEYS = "tokenizer.ggml."


def keys_of(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """The token arrays of a tiny model, to be changed."""
    with GGUFFile.open(build_tiny(tmp_path / "base.gguf", **more)) as file:
        return {
            name: list(file.metadata[KEYS + name])  # type: ignore[call-overload]
            for name in ("tokens", "token_type")
        }


def matched(tmp_path: Path, changes: dict[str, Any], **more: Any) -> VocabularyMatch:
    target = build_tiny(tmp_path / "target.gguf", n_rows=1000, **more)
    metadata = {KEYS + name: value for name, value in changes.items()}
    draft = build_tiny(tmp_path / "draft.gguf", n_rows=1000, metadata=metadata, seed=1, n_layer=1, **more)
    with GGUFFile.open(target) as a, GGUFFile.open(draft) as b:
        return match_vocabularies(a.metadata, b.metadata)


@pytest.mark.parametrize("tokenizer", ["bpe", "spm"])
def test_the_same_vocabulary(tmp_path: Path, tokenizer: str) -> None:
    match = matched(tmp_path, {}, tokenizer=tokenizer)
    assert match.compatible
    assert (match.problems, match.notes, match.n_differing) == ((), (), 0)
    assert match.n_target == match.n_draft > 256


def test_two_tokens_swapped(tmp_path: Path) -> None:
    tokens = keys_of(tmp_path)["tokens"]
    tokens[50], tokens[60] = tokens[60], tokens[50]
    match = matched(tmp_path, {"tokens": tokens})
    assert not match.compatible
    assert match.n_differing == 2
    assert [index for index, _, _ in match.differing] == [50, 60]
    assert match.differing[0][1:] == (tokens[60], tokens[50])
    assert "2 of" in match.problems[0]
    assert "first id 50" in match.problems[0]


@pytest.mark.parametrize(("kind", "name"), [(5, "xyz{}"), (1, "[PAD{}]"), (3, "<unused{}>"), (1, "<|extra_{}|>")])
def test_padding_is_accepted(tmp_path: Path, kind: int, name: str) -> None:
    base = keys_of(tmp_path)
    tokens = base["tokens"] + [name.format(i) for i in range(16)]
    match = matched(tmp_path, {"tokens": tokens, "token_type": base["token_type"] + [kind] * 16})
    assert match.compatible
    assert match.n_draft == match.n_target + 16
    assert "the draft has 16 more rows, all of them padding" in match.notes[0]


def test_real_tokens_beyond_the_others_last(tmp_path: Path) -> None:
    base = keys_of(tmp_path)
    match = matched(tmp_path, {"tokens": [*base["tokens"], "new"], "token_type": [*base["token_type"], 1]})
    assert "the draft has 1 tokens that the other lacks, first id" in match.problems[0]
    match = matched(tmp_path, {"tokens": base["tokens"][:-2], "token_type": base["token_type"][:-2]})
    assert "the target has 2 tokens that the other lacks" in match.problems[0]


def test_rows_that_stand_for_nothing_may_have_any_name(tmp_path: Path) -> None:
    base = keys_of(tmp_path)
    more = {"token_type": [*base["token_type"][:-1], 5]}
    target = build_tiny(tmp_path / "t.gguf", metadata={KEYS + "token_type": more["token_type"]})
    tokens = [*base["tokens"][:-1], "another"]
    draft = build_tiny(tmp_path / "d.gguf", metadata={KEYS + "tokens": tokens, KEYS + "token_type": more["token_type"]})
    with GGUFFile.open(target) as a, GGUFFile.open(draft) as b:
        assert match_vocabularies(a.metadata, b.metadata).compatible


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"eos_token_id": 0}, "eos is 2 in the target and 0 in the draft"),
        ({"pre": "gpt-2"}, "tokenizer.ggml.pre) is 'smollm' in the target and 'gpt-2' in the draft"),
        ({"model": "llama"}, "tokenizer.ggml.model) is 'gpt2' in the target and 'llama' in the draft"),
    ],
)
def test_what_keeps_a_pair_apart(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    match = matched(tmp_path, changes)
    assert not match.compatible
    assert any(says in problem for problem in match.problems)


def test_what_does_not(tmp_path: Path) -> None:
    match = matched(tmp_path, {"bos_token_id": 0, "eot_token_id": 5})  # no start token is put before a text
    assert match.compatible
    assert len(match.notes) == 2
    match = matched(tmp_path, {"pre": "other"}, tokenizer="spm")  # which no SPM reads
    assert match.compatible
    match = matched(tmp_path, {"bos_token_id": 0}, tokenizer="spm")
    assert match.problems == ("bos is 2 in the target and 0 in the draft",)


def test_another_vocabulary_and_none(tmp_path: Path) -> None:
    with (
        GGUFFile.open(build_tiny(tmp_path / "a.gguf")) as a,
        GGUFFile.open(build_tiny(tmp_path / "b.gguf", tokenizer="spm")) as b,
    ):
        match = match_vocabularies(a.metadata, b.metadata)
        assert not match.compatible
        assert match.n_differing > 100
        assert len(match.differing) == 8
        assert match_vocabularies(a.metadata, {}).problems == ("the draft has no vocabulary (tokenizer.ggml.tokens)",)
        assert match_vocabularies({}, b.metadata).problems == ("the target has no vocabulary (tokenizer.ggml.tokens)",)
