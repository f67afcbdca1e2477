"""The memory plan: its formulas on numbers worked out by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.profile.memory import RUNTIME_BYTES, plan_memory
from tests.tiny import build_tiny


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    with GGUFFile.open(build_tiny(tmp_path / "m.gguf", n_layer=3, n_head_kv=2, head_dim=32)) as file:
        return ModelConfig.from_gguf(file)


def test_kv_cache(config: ModelConfig) -> None:
    plan = plan_memory(1000, config, 500)
    assert plan.kv_per_position == 2 * 3 * 2 * 32 * 2  # keys and values, layers, heads, head size, f16
    assert plan.kv == 500 * plan.kv_per_position
    assert plan_memory(1000, dataclasses.replace(config, head_dim_v=16), 1).kv == 3 * 2 * (32 + 16) * 2


def test_total_is_the_sum(config: ModelConfig) -> None:
    plan = plan_memory(1000, config, 500, 64)
    assert plan.weights == 1000
    assert plan.runtime == RUNTIME_BYTES
    assert plan.total == 1000 + plan.kv + plan.scratch + plan.runtime


def test_scratch_grows_with_the_batch_and_never_beyond_the_context(config: ModelConfig) -> None:
    small, large = plan_memory(0, config, 512, 64).scratch, plan_memory(0, config, 512, 128).scratch
    assert large - small == 2 * 4 * 64 * (3 * 64 + 3 * 128 + 2 * 4 * 32 + 2 * (32 + 32))
    assert plan_memory(0, config, 64, 512).scratch == small


def test_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    with GGUFFile.open(smollm2_path) as file:
        assert plan_memory(0, ModelConfig.from_gguf(file), 4096).kv == 4096 * 30 * 2 * 3 * 64 * 2
    with GGUFFile.open(gemma3_path) as file:
        assert plan_memory(0, ModelConfig.from_gguf(file), 4096).kv == 4096 * 18 * 2 * 256 * 2
