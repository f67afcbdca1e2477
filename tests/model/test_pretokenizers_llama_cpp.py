"""Every pre-tokenizer name against llama.cpp: the same ids on a vocabulary whose ids show where words begin and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.model.pretokenizers import RULES
from tests import vocabularies
from tests.texts import texts

pytestmark = [pytest.mark.slow, pytest.mark.llama_cpp]

FIRSTS = {id(rule): name for name, rule in reversed(RULES.items())}.values()  # of each rule, the first name


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabularies.of_pairs(tmp_path_factory.mktemp("pairs") / "pairs.gguf")


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.byte_level])
def test_words_over_bytes(pairs: Path, tmp_path: Path, name: str) -> None:
    path = vocabularies.with_pre(pairs, name, tmp_path / "named.gguf")
    ours, theirs = vocabularies.load(path), vocabularies.reference(path)
    assert ours.pre == name
    differing = []
    for text in texts(seed=len(name), count=240 if name in FIRSTS else 24):
        if ours.encode(text, special=False) != theirs.tokenize(text.encode(), add_bos=False, special=False):
            differing.append(text)
    assert differing == []
    assert ours.encode("a") == theirs.tokenize(b"a", add_bos=True, special=True)  # whether it begins with BOS


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.byte_level])
def test_words_over_characters(tmp_path: Path, name: str) -> None:
    own = vocabularies.with_pre(vocabularies.folder() / "gemma-4.gguf", name, tmp_path / "own.gguf")
    path = vocabularies.with_text(own, "model", "gemma4" if name == "gemma4" else "gpt2", tmp_path / "named.gguf")
    ours, theirs = vocabularies.load(path), vocabularies.reference(path)
    assert (ours.kind, ours.pre) == ("bpe", name)
    differing = []
    for text in texts(seed=len(name), count=240):
        if name == "whitespace":  # llama.cpp ends the process where a merge would hold a space or a newline
            text = "".join(text.split())
        if ours.encode(text, special=False) != theirs.tokenize(text.encode(), add_bos=False, special=False):
            differing.append(text)
    assert differing == []
