"""Ids, pieces and end tokens against llama.cpp itself: every published vocabulary, on random texts of many kinds."""

from __future__ import annotations

import ctypes
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.model.tokenizer import Tokenizer
from tests import models, vocabularies
from tests.texts import LONG_RUNS, texts

pytestmark = [pytest.mark.slow, pytest.mark.llama_cpp]

VARIANTS = ("smollm", "default", "spm with prefix", "spm without prefix", "gemma3", "bert with case")
FILES = vocabularies.TESTED + vocabularies.UNTESTED + VARIANTS
SLOW_THERE = ("deepseek-llm", "deepseek-coder")  # llama.cpp compiles their patterns anew for every text


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, own = vocabularies.folder(), tmp_path_factory.mktemp("vocabularies")
    spm, bert = folder / "llama-spm.gguf", folder / "bert-bge.gguf"
    return {
        "smollm": models.smollm2(),
        "default": vocabularies.with_pre(folder / "llama-bpe.gguf", "default", own / "default.gguf"),
        "spm with prefix": vocabularies.with_flag(spm, "add_space_prefix", True, own / "prefix.gguf"),
        "spm without prefix": vocabularies.with_flag(spm, "add_space_prefix", False, own / "plain.gguf"),
        "gemma3": models.gemma3(),
        "bert with case": vocabularies.with_flag(bert, "normalizer.lowercase", False, own / "cased.gguf"),
    }


def opened(name: str, variants: dict[str, Path]) -> tuple[Tokenizer, Any]:
    path = variants.get(name) or vocabularies.folder() / f"{name}.gguf"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the file has no tokenizer.ggml.pre")
        return vocabularies.load(path), vocabularies.reference(path)


@pytest.fixture(scope="module", params=FILES)
def both(request: pytest.FixtureRequest, variants: dict[str, Path]) -> tuple[str, Tokenizer, Any]:
    return (request.param, *opened(request.param, variants))


def test_ids_equal_llama_cpps(both: tuple[str, Tokenizer, Any]) -> None:
    name, ours, theirs = both
    # "</s>" is an HTML tag in Gemma's and Qwen's vocabularies; a second BOS or EOS is never added here
    left_out = ("</s>", ours.token_text(ours.bos_id), "[SEP]")
    extra = tuple(text for text in ours.special.texts if text not in left_out)[:40]
    differing = []
    for text in texts(seed=len(name), count=80 if name in SLOW_THERE else 400, extra=extra):
        for special in (False, True):
            expected = theirs.tokenize(text.encode(), add_bos=special, special=special)
            if ours.encode(text, special) != expected:
                differing.append((special, text))
    assert differing == []


def test_pieces_and_end_tokens_equal_llama_cpps(both: tuple[str, Tokenizer, Any]) -> None:
    import llama_cpp

    _, ours, theirs = both
    vocab, buffer = theirs._model.vocab, ctypes.create_string_buffer(4096)
    differing: list[tuple[int, object, object]] = []
    for index in range(ours.n_vocab):
        if ours.token_text(index) == "</s>" and index != ours.eos_id:
            continue  # llama.cpp makes the HTML tag an end
        for special in (False, True):
            length = llama_cpp.llama_token_to_piece(vocab, index, buffer, 4096, 0, special)
            piece = buffer.raw[:length]
            # characters outside the byte alphabet: llama.cpp writes a note in their place, we write them
            if piece != ours.piece(index, special) and not piece.startswith(b"[UNK_BYTE_"):
                differing.append((index, special, piece))
        if bool(llama_cpp.llama_vocab_is_eog(vocab, index)) != (index in ours.end_ids):
            differing.append((index, "end", ours.token_text(index)))
    assert differing == []


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen35", "llama-spm", "gemma-4", "bert-bge", "nomic-bert-moe"])
def test_long_runs_take_linear_time_and_give_the_same_ids(variants: dict[str, Path], name: str) -> None:
    ours, theirs = opened(name, variants)
    for piece, end in LONG_RUNS.values():
        text = piece * (20_000 // len(piece)) + end
        start = time.process_time()
        ids = ours.encode(text, special=False)
        assert time.process_time() - start < 1.0  # a tenth of that at rest; 2e8 steps would take longer
        assert ids == theirs.tokenize(text.encode(), add_bos=False, special=False)
