"""The tiny-model builder itself: same seed, same bytes; the weights asked for; llama.cpp reads them too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.formats import FORMATS
from edgeinfer.model.gguf import GGUFFile
from tests.tiny import build_tiny

TYPES = [fmt.name for fmt in FORMATS.values() if fmt.dequantize]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first = build_tiny(tmp_path / "a.gguf", types={"default": "Q4_K"}).read_bytes()
    assert build_tiny(tmp_path / "b.gguf", types={"default": "Q4_K"}).read_bytes() == first
    assert build_tiny(tmp_path / "c.gguf", types={"default": "Q4_K"}, seed=1).read_bytes() != first


def test_one_tensor_changes_alone(tmp_path: Path) -> None:
    build_tiny(tmp_path / "a.gguf")
    build_tiny(tmp_path / "b.gguf", types={"attn_q": "Q8_0"}, tied=True)
    with GGUFFile.open(tmp_path / "a.gguf") as a, GGUFFile.open(tmp_path / "b.gguf") as b:
        assert set(a.tensors) - set(b.tensors) == {"output.weight"}
        for name in b.tensors:
            same = np.array_equal(a.data(name), b.data(name))
            assert same == (not name.endswith("attn_q.weight"))


@pytest.mark.parametrize("weight_type", TYPES)
def test_weights_have_the_type_and_spread_asked_for(tmp_path: Path, weight_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", {"default": weight_type, "ffn_down": "F16"})
    with GGUFFile.open(path) as file:
        for name, info in file.tensors.items():
            wanted = "F32" if len(info.shape) == 1 else "F16" if "ffn_down" in name else weight_type
            assert info.type_name == wanted
            assert info.format is not None
            assert info.format.dequantize is not None
            values = info.format.dequantize(file.data(name))
            assert np.isfinite(values).all()
            if len(info.shape) == 2:
                std = (2.0 if name == "token_embd.weight" else 1.0) / np.sqrt(info.shape[1])
                assert values.std() == pytest.approx(std, rel=0.1)
                assert abs(values.mean()) < 0.1 * std


@pytest.mark.llama_cpp
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", TYPES)
def test_llama_cpp_reads_them(tmp_path: Path, arch: str, weight_type: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type})
    model = llama_cpp.Llama(str(path), n_ctx=64, verbose=False, logits_all=True, n_threads=1)
    ids = model.tokenize(b"hello world, what is the capital")
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)])
    model.close()
    assert 7 <= len(ids) <= 12
    assert np.isfinite(logits).all()
    assert logits.std() > 0.5
    assert len(set(logits.argmax(axis=1).tolist())) > 1
