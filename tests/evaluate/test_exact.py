"""The exact forward against llama.cpp, and against what must hold for any forward."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.errors import SettingError, UnsupportedModelError
from edgeinfer.evaluate.divergence import compare_rows
from edgeinfer.evaluate.exact import ExactModel, log_softmax

from ..models import ROOT, gemma3, smollm2
from ..tiny import build_tiny

IDS = [(7 * i * i + 3 * i + 11) % 200 for i in range(90)]  # longer than the tiny models' window of 32


def llama_cpp_logits(path: Path, ids: list[int]) -> NDArray[np.float32]:
    """llama.cpp's logits of every position (len(ids), n_vocab)."""
    from llama_cpp import Llama

    llama = Llama(str(path), n_ctx=512, n_batch=512, n_threads=2, logits_all=True, verbose=False)
    llama.eval(ids)
    logits: NDArray[np.float32] = llama.scores[: len(ids)].copy()
    llama.close()
    return logits


VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"arch": "llama"},
    "llama, head size apart from width": {"arch": "llama", "head_dim": 32},
    "llama, tied": {"arch": "llama", "tied": True},
    "llama, rope factors": {"arch": "llama", "rope_freqs": np.repeat([1.0, 8.0], 4)},
    "llama, linear scaling": {
        "arch": "llama",
        "metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": ("float32", 4.0)},
    },
    "gemma3": {"arch": "gemma3", "n_layer": 4},
}


@pytest.mark.llama_cpp
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_float_models_agree_with_llama_cpp(variant: str, tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "tiny.gguf", **VARIANTS[variant])
    theirs = llama_cpp_logits(path, IDS)
    with ExactModel.open(path) as model:
        ours = model.logits(IDS)
    assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()  # its KV cache is f16, and so are GELU tables
    assert compare_rows(log_softmax(ours), theirs).mean_kl < 1e-5


@pytest.mark.llama_cpp
@pytest.mark.parametrize(("model_path", "most"), [(smollm2, 0.010), (gemma3, 0.015)])
def test_real_models_agree_with_llama_cpp(model_path: Any, most: float) -> None:
    from llama_cpp import Llama

    path = model_path()
    text = (ROOT / "tests" / "data" / "texts" / "english.txt").read_text("utf-8")
    ids = Llama(str(path), vocab_only=True, verbose=False).tokenize(text.encode())[:300]
    with ExactModel.open(path) as model:
        found = compare_rows(log_softmax(model.logits(ids)), llama_cpp_logits(path, ids))
    assert found.mean_kl < most  # the 8-bit activations of llama.cpp cost it this much
    assert found.top1_agreement > 0.92


@pytest.fixture(params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return build_tiny(tmp_path / "tiny.gguf", arch=request.param, n_layer=3)


def test_float32_agrees_with_float64(path: Path) -> None:
    with ExactModel.open(path) as single, ExactModel.open(path, np.float64) as double:
        a, b = single.logits(IDS), double.logits(IDS)
    assert a.dtype == np.float32
    assert b.dtype == np.float64
    assert np.abs(a - b).max() < 1e-4 * np.abs(b).max()
    assert compare_rows(log_softmax(b), a.astype(np.float64)).kl.max() < 1e-8


def test_no_position_sees_a_later_one(path: Path) -> None:
    with ExactModel.open(path, np.float64) as model:
        whole, cut = model.logits(IDS), model.logits(IDS[:40])
    assert np.abs(whole[:40] - cut).max() < 1e-9
    assert np.abs(whole[1] - whole[2]).max() > 1e-3


def test_sliding_layer_sees_exactly_its_window(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "tiny.gguf", arch="gemma3", n_layer=1, sliding_window=32, sliding_window_pattern=2)
    with ExactModel.open(path, np.float64) as model:
        before = model.logits(IDS)
        changed = model.logits([IDS[0] + 1, *IDS[1:]])
    differs = np.abs(before - changed).max(axis=1) > 1e-9
    assert differs.tolist() == [True] * 32 + [False] * (len(IDS) - 32)  # positions 0..31 see token 0, 32 does not


def test_chunks_and_last_are_rows_of_the_whole(path: Path) -> None:
    with ExactModel.open(path) as model:
        whole = model.logits(IDS)
        chunks = list(model.log_prob_chunks(IDS, rows=32))
        last = model.logits(IDS, last=True)
    assert [len(c) for c in chunks] == [32, 32, 26]
    assert np.abs(np.concatenate(chunks) - log_softmax(whole)).max() < 1e-4
    assert np.abs(last - whole[-1:]).max() < 1e-4
    assert np.exp(np.concatenate(chunks)).sum(axis=1) == pytest.approx(np.ones(90), abs=1e-5)


@pytest.mark.parametrize("ids", [[], [-1], [5, 10**6]])
def test_ids_out_of_range_are_refused(ids: list[int], path: Path) -> None:
    with ExactModel.open(path) as model, pytest.raises(SettingError, match="token ids must be"):
        model.logits(ids)


def test_unknown_family_is_refused_by_name(path: Path) -> None:
    with ExactModel.open(path) as model:
        config = dataclasses.replace(model.config, arch="mamba")
        with pytest.raises(UnsupportedModelError, match="gemma3, llama.*'mamba'"):
            ExactModel(model._weights, config)
