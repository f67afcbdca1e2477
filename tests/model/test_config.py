"""ModelConfig: what the keys mean, and the refusal of missing, absurd or contradictory ones by name (A9, A10, A11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import ModelFileError, UnsupportedModelError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from tests.tiny import build_tiny


def config_of(
    tmp_path: Path, arch: str = "llama", metadata: dict[str, Any] | None = None, **options: Any
) -> ModelConfig:
    path = build_tiny(tmp_path / "m.gguf", arch, metadata=metadata, **options)
    with GGUFFile.open(path) as file:
        return ModelConfig.from_gguf(file)


def test_llama(tmp_path: Path) -> None:
    config = config_of(tmp_path, n_layer=3, n_ctx_train=1234, rope_base=5e5)
    assert config == ModelConfig(
        arch="llama", name="tiny llama", n_layer=3, n_embd=64, n_head=4, n_head_kv=2, head_dim=16, head_dim_v=16,
        n_ff=128, n_vocab=config.n_tokens, n_tokens=config.n_tokens, n_ctx_train=1234, rms_eps=float(np.float32(1e-5)),
        rope_dim=16, rope_base=5e5, rope_base_local=None, rope_scaling_type=None, rope_scaling_factor=None,
        rope_n_ctx_orig=None, sliding_window=0, sliding_window_pattern=None, attn_logit_softcap=0.0,
        final_logit_softcap=0.0, n_expert=0, tied_embeddings=False,
    )  # fmt: skip
    assert config.n_tokens > 300


def test_gemma3(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", head_dim=32, sliding_window=48, sliding_window_pattern=3)
    assert (config.head_dim, config.head_dim_v, config.rope_dim) == (32, 32, 32)
    assert (config.sliding_window, config.sliding_window_pattern) == (48, 3)
    assert (config.rope_base, config.rope_base_local) == (10000.0, 10000.0)
    assert config.tied_embeddings


def test_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    with GGUFFile.open(smollm2_path) as file:
        smol = ModelConfig.from_gguf(file)
    assert (smol.n_layer, smol.n_embd, smol.n_head, smol.n_head_kv, smol.head_dim) == (30, 576, 9, 3, 64)
    assert (smol.n_ff, smol.n_vocab, smol.n_ctx_train, smol.rope_base) == (1536, 49152, 8192, 1e5)
    with GGUFFile.open(gemma3_path) as file:
        gemma = ModelConfig.from_gguf(file)
    assert (gemma.n_layer, gemma.n_embd, gemma.n_head, gemma.n_head_kv, gemma.head_dim) == (18, 640, 4, 1, 256)
    assert (gemma.sliding_window, gemma.rope_base, gemma.rope_base_local) == (512, 1e6, 1e4)
    assert gemma.tied_embeddings
    assert smol.tied_embeddings


def test_explicit_head_size_wins(tmp_path: Path) -> None:
    assert config_of(tmp_path).head_dim == 16
    config = config_of(tmp_path, head_dim=32)
    assert (config.head_dim, config.head_dim_v, config.n_embd // config.n_head) == (32, 32, 16)


def test_absent_kv_heads_means_heads(tmp_path: Path) -> None:
    config = config_of(tmp_path, n_head_kv=4, metadata={".attention.head_count_kv": None})
    assert config.n_head_kv == 4


def test_per_layer_arrays(tmp_path: Path) -> None:
    same = {".attention.head_count_kv": [2, 2], ".feed_forward_length": [128, 128]}
    config = config_of(tmp_path, metadata=same)
    assert (config.n_head_kv, config.n_ff) == (2, 128)
    with pytest.raises(
        UnsupportedModelError, match=r"llama.attention.head_count_kv differs from layer to layer \(1, 2\)"
    ):
        config_of(tmp_path, metadata={".attention.head_count_kv": [1, 2]})
    with pytest.raises(ModelFileError, match="llama.attention.head_count is an array of 2 strings"):
        config_of(tmp_path, metadata={".attention.head_count": ["a", "b"]})


COUNTS = ("block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length")


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [None, 0, ("uint64", 2**40), ("int32", -4), True, "many", 4.0])
def test_bad_counts_are_refused_by_key(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=f"llama.{key} is "):
        config_of(tmp_path, metadata={f".{key}": value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", 8),
        ("attention.key_length", 0),
        ("attention.head_count", 7),
        ("rope.dimension_count", 0),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 18),
        ("attention.layer_norm_rms_epsilon", None),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.layer_norm_rms_epsilon", float("inf")),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", float("nan")),
        ("rope.scaling.factor", -2.0),
        ("attention.sliding_window", ("int32", -1)),
        ("final_logit_softcapping", float("inf")),
        ("block_count", 3),
        ("block_count", 1),
        ("block_count", 2**31 - 1),
        ("embedding_length", 128),
    ],
)
def test_absurd_values_are_refused_by_key(tmp_path: Path, key: str, value: Any) -> None:
    metadata = {f".{key}": value}
    if key == "attention.head_count":
        metadata[".attention.head_count_kv"] = 1  # 7 divides by it, but the width does not divide by 7
    with pytest.raises(ModelFileError, match=f"llama.{key} is "):
        config_of(tmp_path, metadata=metadata)


@pytest.mark.parametrize("kind", ["bos", "eos", "eot", "eom", "unknown"])
@pytest.mark.parametrize("value", [4294967295, 1000, ("int32", -1)])
def test_special_ids_outside_the_vocabulary_are_refused(tmp_path: Path, kind: str, value: Any) -> None:
    key = f"tokenizer.ggml.{kind}_token_id"
    with pytest.raises(ModelFileError, match=f"{key} is "):
        config_of(tmp_path, metadata={key: value})


def test_a_padding_id_that_nobody_uses_is_not_refused(tmp_path: Path) -> None:
    assert config_of(tmp_path, metadata={"tokenizer.ggml.padding_token_id": 4294967295}).n_layer == 2


def test_more_rows_than_tokens(tmp_path: Path) -> None:
    config = config_of(tmp_path, n_rows=512)
    assert config.n_vocab == 512
    assert config.n_tokens < 400
    with pytest.raises(ModelFileError, match="tokenizer.ggml.tokens"):
        config_of(tmp_path, n_rows=100)


def test_a_missing_architecture_or_embedding(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", omit_tensors=("token_embd.weight",))
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        ModelConfig.from_gguf(file)
    raw = path.read_bytes().replace(b"general.architecture", b"general.architectura")
    path.write_bytes(raw)
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match="general.architecture is missing"):
        ModelConfig.from_gguf(file)


def test_tied_embeddings(tmp_path: Path) -> None:
    assert config_of(tmp_path, tied=True).tied_embeddings
    assert not config_of(tmp_path, tied=False).tied_embeddings
    assert not config_of(tmp_path, duplicate_output=True).tied_embeddings


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({}, (None, None)),
        ({".rope.scaling.type": "none", ".rope.scaling.factor": 4.0}, (None, None)),
        ({".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0}, ("linear", 4.0)),
        ({".rope.scaling.factor": 4.0}, ("linear", 4.0)),
        ({".rope.scale_linear": 4.0}, ("linear", 4.0)),
        ({".rope.scaling.type": "linear", ".rope.scaling.factor": 1.0}, (None, None)),
        ({".rope.scaling.type": "yarn", ".rope.scaling.factor": 8.0}, ("yarn", 8.0)),
    ],
)
def test_rope_scaling_by_new_and_old_keys(tmp_path: Path, metadata: dict[str, Any], wanted: tuple[Any, Any]) -> None:
    config = config_of(tmp_path, metadata=metadata)
    assert (config.rope_scaling_type, config.rope_scaling_factor) == wanted


def test_an_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"llama\.rope\.scaling\.type is 'spiral'"):
        config_of(tmp_path, metadata={".rope.scaling.type": "spiral"})
