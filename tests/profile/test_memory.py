"""The memory plan: its formulas on numbers worked out by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from edgeinfer.arch import ARCHS
from edgeinfer.engine.kv import PagedKV
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.plan.packing import kv_page_bytes
from edgeinfer.profile.memory import RUNTIME_BYTES, plan_memory, windows_of
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


@pytest.mark.parametrize("n_ctx", [256, 2048, 4096])
@pytest.mark.parametrize("n_batch", [64, 512])
def test_the_plan_is_what_the_cache_takes(gemma3_path: Path, n_ctx: int, n_batch: int) -> None:
    """The most pages that one sequence holds while it fills the context, as the KV cache itself counts them."""
    with GGUFFile.open(gemma3_path) as file:
        config = ModelConfig.from_gguf(file)
    page_bytes = kv_page_bytes("q8_0", config.n_head_kv, config.head_dim)
    kv = PagedKV(ARCHS["gemma3"].groups(config), page_bytes, n_ctx, n_ctx)
    seq, most = kv.open(), 0
    for at in range(0, n_ctx, n_batch):
        kv.grow(seq, min(n_batch, n_ctx - at))
        most = max(most, sum((pool.n_pages - len(pool.free)) * pool.group.n_layer for pool in kv.pools))
        kv.advance(seq, min(n_batch, n_ctx - at))
    plan = plan_memory(0, config, n_ctx, n_batch, "q8_0", windows_of(config))
    assert most * page_bytes <= plan.kv <= (most + config.n_layer) * page_bytes
