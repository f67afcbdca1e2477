"""Families and keys that the engine does not know: refused by name, before anything is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.arch import ARCHS, family_of
from edgeinfer.errors import ModelFileError, UnsupportedModelError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from tests.arch.families import copied, unpack
from tests.engine.open import open_engine
from tests.tiny import build_tiny


def check(path: Path) -> None:
    with GGUFFile.open(path) as file:
        family_of(ModelConfig.from_gguf(file))


def test_an_unknown_family_is_refused_with_those_that_run(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "mamba")
    with pytest.raises(
        UnsupportedModelError, match="the family 'mamba' is not one that the native engine runs"
    ) as error:
        check(path)
    assert all(name in str(error.value) for name in ARCHS)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama3", "llama.attention.some_new_trick", 2),
        ("llama3", "llama.embedding_scale", 12.0),
        ("llama3", "llama.residual_scale", 0.5),
        ("qwen2", "qwen2.logit_scale", 2.0),
        ("qwen2", "qwen2.rope.dimension_sections", [4, 4, 4, 0]),
        ("qwen3", "qwen3.attention.temperature_scale", 0.1),
        ("qwen3", "qwen3.shortconv.l_cache", 3),
        ("qwen3moe", "qwen3moe.expert_group_count", 2),
        ("gemma2", "gemma2.altup.num_inputs", 4),
        ("llama3", "llama.attention.sliding_window_pattern", [True, False, True]),
    ],
)
def test_a_key_that_is_not_heeded_is_refused_by_name(tmp_path: Path, name: str, key: str, value: Any) -> None:
    path = copied(unpack(name, tmp_path), tmp_path / "m.gguf", keys={key: value})
    with pytest.raises(UnsupportedModelError, match=f"the file sets {key}, which the native engine does not know"):
        check(path)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("llama3", "llama.attention.causal", False, "llama.attention.causal is False"),
        ("qwen3moe", "qwen3moe.expert_gating_func", 2, "qwen3moe.expert_gating_func is 2"),
        ("llama3", "llama.expert_count", 4, "llama.expert_used_count is missing"),
        ("qwen3moe", "qwen3moe.expert_used_count", 9, "qwen3moe.expert_used_count is 9; wanted 1 to 8"),
        ("qwen3moe", "qwen3moe.expert_count", 0, "qwen3moe.expert_count is 0"),
        ("granite", "granite.logit_scale", 0.0, "granite.logit_scale is missing"),
        ("lfm2", "lfm2.shortconv.l_cache", 1, "lfm2.shortconv.l_cache is 1"),
        ("lfm2", "lfm2.shortconv.l_cache", 40, "lfm2.shortconv.l_cache is 40"),
        ("lfm2", "lfm2.attention.head_count_kv", [0, 0, 2], "lfm2.attention.head_count_kv is an array of 3"),
        ("qwen3", "qwen3.attention.head_count_kv", [0, 2, 2], "qwen3.attention.head_count_kv is 0 for some layers"),
        ("qwen3", "qwen3.attention.value_length", 16, "qwen3.attention.value_length 16"),
    ],
)
def test_values_that_are_not_computed_are_refused_by_key(
    tmp_path: Path, name: str, key: str, value: Any, words: str
) -> None:
    path = copied(unpack(name, tmp_path), tmp_path / "m.gguf", keys={key: value})
    with pytest.raises((UnsupportedModelError, ModelFileError), match=words):
        check(path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen3moe", "blk.1.ffn_up_exps.weight"),
        ("lfm2", "blk.0.shortconv.conv.weight"),
        ("phi3", "blk.0.attn_output.weight"),
        ("gemma2", "blk.2.post_ffw_norm.weight"),
        ("olmo2", "blk.0.attn_k_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str, tensor: str) -> None:
    path = copied(unpack(name, tmp_path), tmp_path / "m.gguf", drop=(tensor,))
    with pytest.raises(ModelFileError, match=tensor), open_engine(path):
        pass


def test_harmless_keys_are_fine(tmp_path: Path) -> None:
    keys = {
        "llama.tensor_data_layout": "Meta AI original pth",
        "llama.vocab_size": 288,
        "llama.rope.scaling.finetuned": True,
    }
    check(copied(unpack("llama3", tmp_path), tmp_path / "m.gguf", keys=keys))
    check(copied(unpack("qwen2", tmp_path), tmp_path / "q.gguf", keys={"qwen2.use_parallel_residual": True}))
