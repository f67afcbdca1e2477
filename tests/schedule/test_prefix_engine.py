"""The prefix cache over the real engine: logits from cached pages, in RAM and from disk, are the cold ones to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.engine.native import NativeEngine
from edgeinfer.engine.types import Batch
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.weights import Weights
from edgeinfer.schedule.fingerprint import fingerprint
from edgeinfer.schedule.prefix_cache import PrefixCache
from edgeinfer.schedule.prefix_store import PrefixStore
from tests.tiny import build_tiny

# longer than a window and what is kept beyond it
PROMPT = [int(i) for i in np.random.default_rng(7).integers(3, 250, 420)]


@contextmanager
def opened(path: Path, folder: Path, **settings: Any) -> Iterator[tuple[NativeEngine, PrefixCache]]:
    """An engine and its prefix cache, with the disk."""
    with GGUFFile.open(path) as file:
        engine = NativeEngine(
            Weights(file, ModelConfig.from_gguf(file)), n_ctx=512, n_batch=64, n_threads=2, **settings
        )
        name = fingerprint(file, engine.kv.layout, engine.library.folder.name)
        cache = PrefixCache(engine.kv, store=PrefixStore(folder, name, 1 << 30))
        engine.kv.reclaim = cache.reclaim
        try:
            yield engine, cache
        finally:
            cache.close()
            assert engine.kv.free_pages == engine.kv.n_pages
            engine.close()


def last_row(
    engine: NativeEngine, cache: PrefixCache, prompt: list[int], partial: bool = False
) -> tuple[int, NDArray[Any]]:
    """How many tokens of a prompt were cached, and its last row of logits; the prompt is cached afterwards."""
    kv = engine.kv
    match = cache.match(prompt, partial=partial)
    seq = kv.open(match.pages)
    kv.drop(match.pages)
    n = kv.rewind(seq, match.n_tokens)
    for first in range(n, len(prompt), 64):
        row = engine.forward(Batch.of(seq, prompt[first : first + 64], first), "prefill").row(0).copy()
        cache.insert(prompt[: first + 64], seq)
    kv.close(seq)
    return n, row


@pytest.mark.parametrize(
    ("arch", "kv_type"), [("llama", "f16"), ("llama", "q8_0"), ("gemma3", "f16"), ("gemma3", "q4_0")]
)
def test_cached_logits_are_the_cold_ones(tmp_path: Path, arch: str, kv_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, n_layer=3, head_dim=32)
    other = [*PROMPT[:300], 5, *PROMPT[301:]]
    with opened(path, tmp_path / "a", kv_type=kv_type) as (engine, cache):
        n, cold = last_row(engine, cache, PROMPT)
        assert n == 0
    with opened(path, tmp_path / "b", kv_type=kv_type) as (engine, cache):
        n, cold_other = last_row(engine, cache, other)
        assert n == 0
        assert not np.array_equal(cold, cold_other)
        n, row = last_row(engine, cache, PROMPT)  # from the other's first pages
        assert n == 256
        np.testing.assert_array_equal(row, cold)
        n, row = last_row(engine, cache, PROMPT)
        assert n == 384
        np.testing.assert_array_equal(row, cold)
        n, row = last_row(engine, cache, other)
        assert n == 384
        np.testing.assert_array_equal(row, cold_other)
    with opened(path, tmp_path / "c", kv_type=kv_type) as (engine, cache):
        last_row(engine, cache, other)
        n, row = last_row(engine, cache, PROMPT, partial=True)  # and from the page that is theirs in part
        assert n == 300
        np.testing.assert_array_equal(row, cold)
    with opened(path, tmp_path / "disk", kv_type=kv_type) as (engine, cache):
        cache.pin(PROMPT[:400])
        last_row(engine, cache, PROMPT)
    with opened(path, tmp_path / "disk", kv_type=kv_type) as (engine, cache):
        n, row = last_row(engine, cache, PROMPT)
        assert n == 384
        assert cache.stats()["pages_restored"] == 6
        np.testing.assert_array_equal(row, cold)
        n, row = last_row(engine, cache, other)
        assert n == 256
        np.testing.assert_array_equal(row, cold_other)


def test_pages_of_another_kind_are_not_taken(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", head_dim=32)
    with opened(path, tmp_path / "disk") as (engine, cache):
        cache.pin(PROMPT)
        last_row(engine, cache, PROMPT)
    for settings in ({"kv_type": "q8_0"}, {"changed": True}):
        if settings.pop("changed", None):
            build_tiny(path, seed=1, head_dim=32)
        with opened(path, tmp_path / "disk", **settings) as (engine, cache):
            assert last_row(engine, cache, PROMPT)[0] == 0


def test_a_pool_that_is_too_small_gives_cached_pages_up(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", head_dim=32)
    with opened(path, tmp_path / "disk", n_kv=512) as (engine, cache):
        rows = {}
        for start in range(3, 100, 10):
            prompt = [start, *PROMPT]
            rows[start] = last_row(engine, cache, prompt)[1]
        assert cache.stats()["pages_evicted"] > 0
        for start in (3, 93):
            np.testing.assert_array_equal(last_row(engine, cache, [start, *PROMPT])[1], rows[start])
