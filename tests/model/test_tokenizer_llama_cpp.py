"""Ids and end tokens against llama.cpp itself, on random Unicode text, kind by kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models, vocabularies

pytestmark = [pytest.mark.slow, pytest.mark.llama_cpp]

KINDS = ("smollm", "default", "gpt-2", "llama-bpe", "qwen2", "spm", "spm without prefix", "gemma")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, own = vocabularies.folder(), tmp_path_factory.mktemp("vocabularies")
    spm = folder / "llama-spm.gguf"
    return {
        "smollm": models.smollm2(),
        "default": vocabularies.with_pre(folder / "llama-bpe.gguf", "default", own / "default.gguf"),
        "gpt-2": folder / "gpt-2.gguf",
        "llama-bpe": folder / "llama-bpe.gguf",
        "qwen2": folder / "qwen2.gguf",
        "spm": vocabularies.with_flag(spm, "add_space_prefix", True, own / "prefix.gguf"),
        "spm without prefix": vocabularies.with_flag(spm, "add_space_prefix", False, own / "plain.gguf"),
        "gemma": models.gemma3(),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_llama_cpps(files: dict[str, Path], kind: str) -> None:
    ours, theirs = vocabularies.load(files[kind]), vocabularies.reference(files[kind])
    extra = [text for text in ours.special.texts if text not in ("</s>", ours.token_text(ours.bos_id))][:40]
    differing = []
    for text in vocabularies.random_texts(seed=len(kind), count=2000, extra=tuple(extra)):
        for special in (False, True):
            expected = theirs.tokenize(text.encode(), add_bos=special, special=special)
            if ours.encode(text, special) != expected:
                differing.append((special, text))
    assert differing == []


@pytest.mark.parametrize("kind", KINDS)
def test_end_tokens_equal_llama_cpps(files: dict[str, Path], kind: str) -> None:
    import llama_cpp

    ours, theirs = vocabularies.load(files[kind]), vocabularies.reference(files[kind])
    ends = {i for i in range(ours.n_vocab) if llama_cpp.llama_vocab_is_eog(theirs._model.vocab, i)}
    # in Gemma's and Qwen's vocabularies "</s>" is an HTML tag; llama.cpp ends the answer there
    assert ours.end_ids == {i for i in ends if ours.token_text(i) != "</s>" or i == ours.eos_id}
