"""Logits against the exact float forward: every family and weight type, rotary variants, odd shapes, every instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.evaluate.divergence import compare_rows
from edgeinfer.evaluate.exact import ExactModel, log_softmax
from edgeinfer.formats import FORMATS
from tests.engine.open import ids_of, open_engine, run
from tests.kernels.harness import ISAS
from tests.tiny import build_tiny

TYPES = [fmt.name for fmt in FORMATS.values() if fmt.native]
EXACT = ("F32", "F16", "BF16")  # no 8-bit activations: only the f16 cache rounds


def check(path: Path, ids: list[int], most_kl: float, most_error: float, isa: str = "", **more: Any) -> None:
    """Mean KL divergence and largest difference of a logit, relative to the spread of the logits."""
    with ExactModel.open(path, np.float64) as exact:
        want = exact.logits(ids)
    with open_engine(path, isa=isa, n_threads=2, **more) as engine:
        got = run(engine, ids)
    want = want[:, : got.shape[1]]
    assert compare_rows(log_softmax(want), got.astype(np.float64)).mean_kl <= most_kl
    assert np.abs(got - want).max() <= most_error * want.std()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", TYPES)
def test_logits_are_close_to_exact(tmp_path: Path, arch: str, weight_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type}, n_layer=3)
    kl, error = (1e-6, 5e-3) if weight_type in EXACT else (3e-3, 0.25)
    check(path, ids_of(80), kl, error)


UNUSUAL: Mapping[str, tuple[str, dict[str, Any]]] = {
    "head_dim times n_head is not n_embd": ("llama", {"n_head": 6, "n_head_kv": 2, "head_dim": 48}),
    "wide heads": ("gemma3", {"n_head": 2, "n_head_kv": 1, "head_dim": 128}),
    "window of 8": ("gemma3", {"sliding_window": 8}),
    "every third layer full": ("gemma3", {"sliding_window": 16, "sliding_window_pattern": 3, "n_layer": 4}),
    "pattern of the family": ("gemma3", {"sliding_window": 16, "sliding_window_pattern": None, "n_layer": 7}),
    "no window": ("gemma3", {"metadata": {".attention.sliding_window": None}}),
    "half of a head turns": ("llama", {"head_dim": 64, "metadata": {".rope.dimension_count": ("uint32", 32)}}),
    "a quarter of a head turns": ("llama", {"head_dim": 32, "metadata": {".rope.dimension_count": ("uint32", 8)}}),
    "base 500000": ("llama", {"rope_base": 500000.0}),
    "base absent": ("llama", {"metadata": {".rope.freq_base": None}}),
    "local base": ("gemma3", {"rope_base": 1e6, "metadata": {".rope.freq_base_swa": ("float32", 500.0)}}),
    "factors of one": ("llama", {"rope_freqs": np.ones(8, np.float32)}),
    "factors of eight": ("llama", {"rope_freqs": np.full(8, 8, np.float32)}),
    "growing factors": ("llama", {"rope_freqs": np.linspace(1, 32, 8).astype(np.float32)}),
    "linear scaling": (
        "llama", {"metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": ("float32", 4.0)}},
    ),
    "linear scaling of full layers only": (
        "gemma3", {"metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": ("float32", 8.0)}},
    ),
    "soft cap of logits": ("gemma3", {"metadata": {".final_logit_softcapping": ("float32", 4.0)}}),
    "soft cap of scores": ("gemma3", {"metadata": {".attn_logit_softcapping": ("float32", 2.0)}}),
    "rows that are not whole groups": ("llama", {"n_ff": 96, "n_embd": 96, "n_head": 6, "n_head_kv": 3}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_models_are_close_to_exact(tmp_path: Path, case: str) -> None:
    """In float weights, where a wrong rotation or mask shows at once."""
    arch, more = UNUSUAL[case]
    check(build_tiny(tmp_path / "m.gguf", arch, **more), ids_of(70), 1e-6, 5e-3)


def test_old_and_new_keys_of_linear_scaling_agree(tmp_path: Path) -> None:
    new = {".rope.scaling.type": "linear", ".rope.scaling.factor": ("float32", 4.0)}
    paths = [
        build_tiny(tmp_path / "new.gguf", metadata=new),
        build_tiny(tmp_path / "old.gguf", metadata={".rope.scale_linear": ("float32", 4.0)}),
        build_tiny(tmp_path / "none.gguf"),
    ]
    rows = []
    for path in paths:
        with open_engine(path) as engine:
            rows.append(run(engine, ids_of(20)))
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 0.01


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_frequency_factors_are_not_ignored(tmp_path: Path, factor: float) -> None:
    plain = build_tiny(tmp_path / "plain.gguf")
    with_factors = build_tiny(tmp_path / "factors.gguf", rope_freqs=np.full(8, factor, np.float32))
    with open_engine(plain) as a, open_engine(with_factors) as b:
        difference = np.abs(run(a, ids_of(30)) - run(b, ids_of(30))).max()
    assert (difference == 0) == (factor == 1)


def test_long_texts_are_close_to_exact(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", sliding_window=300, n_ctx_train=2048)
    check(path, ids_of(700), 1e-6, 5e-3, n_ctx=700)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_instruction_sets_agree(tmp_path: Path, arch: str) -> None:
    """Integer sums are equal; floats differ only where one rounds a product that another keeps."""
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q4_0", "attn_v": "Q8_0", "ffn_down": "Q5_0"}, n_layer=2)
    ids = ids_of(40)
    rows = {}
    for isa in ISAS:
        with open_engine(path, isa=isa, n_threads=2) as engine:
            assert engine.library.isa.name == isa
            rows[isa] = run(engine, ids)
            np.testing.assert_array_equal(run(engine, ids, [1, 5, 2, 3]), rows[isa])
    best = rows[ISAS[0]]
    for isa, other in rows.items():
        # An activation on the edge between two bytes may fall either way, so single logits may move a little.
        assert np.abs(other - best).max() <= 0.05 * best.std(), isa
        assert np.median(np.abs(other - best)) <= 1e-5 * best.std(), isa


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", TYPES)
def test_every_type_on_every_instruction_set(tmp_path: Path, isa: str, arch: str, weight_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type}, n_layer=2)
    kl, error = (1e-6, 5e-3) if weight_type in EXACT else (3e-3, 0.25)
    check(path, ids_of(40), kl, error, isa=isa)
    with open_engine(path, isa=isa) as one, open_engine(path, isa=isa, n_threads=3) as three:
        np.testing.assert_array_equal(run(one, ids_of(30)), run(three, ids_of(30), [1, 4, 2, 9]))
