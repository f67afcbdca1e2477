"""Weights: tensors by name, the float view of small ones, and the refusal of types that do not run (case A7)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import ModelFileError, UnsupportedModelError
from edgeinfer.formats import FORMATS
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.weights import Weights
from tests.tiny import build_tiny


def weights_of(path: Path) -> Weights:
    file = GGUFFile.open(path)
    return Weights(file, ModelConfig.from_gguf(file))


def patch_type(path: Path, name: str, type_id: int) -> None:
    """Change the type id of one tensor in the file."""
    raw = bytearray(path.read_bytes())
    at = raw.index(len(name).to_bytes(8, "little") + name.encode()) + 8 + len(name)
    n_dims = int.from_bytes(raw[at : at + 4], "little")
    at += 4 + 8 * n_dims
    raw[at : at + 4] = type_id.to_bytes(4, "little")
    path.write_bytes(raw)


def test_tensors_by_name(tmp_path: Path) -> None:
    norm = np.linspace(0.5, 2, 64, dtype=np.float32)
    path = build_tiny(
        tmp_path / "m.gguf", types={"default": "Q4_0", "attn_k": "F16"}, replace_tensors={"output_norm.weight": norm}
    )
    with weights_of(path) as weights:
        assert weights.has("output.weight")
        assert not weights.has("rope_freqs.weight")
        assert np.array_equal(weights.float32("output_norm.weight"), norm)
        weights.float32("output_norm.weight")[0] = 9  # a copy: the file is not touched
        assert weights.float32("output_norm.weight")[0] == 0.5
        assert weights.float32("blk.0.attn_k.weight").shape == (32, 64)
        assert weights.tensor("blk.0.attn_k.weight", (32, 64)).type_name == "F16"
        assert weights.data("blk.0.ffn_up.weight").shape == (128 * 64 // 32 * 18,)
        assert weights.address("blk.0.ffn_up.weight") % 32 == 0
        assert weights.config.n_layer == 2
        assert len(list(weights)) == 2 * 9 + 3
        weights.require_native()
        weights.release("output.weight")


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", omit_tensors=("blk.1.attn_q.weight",))
    with weights_of(path) as weights:
        with pytest.raises(ModelFileError, match=r"no tensor 'blk\.1\.attn_q\.weight'"):
            weights.tensor("blk.1.attn_q.weight")
        with pytest.raises(ModelFileError, match=r"'blk\.0\.attn_q\.weight' has shape \(64, 64\); wanted \(64, 32\)"):
            weights.tensor("blk.0.attn_q.weight", (64, 32))


@pytest.mark.parametrize(
    ("type_id", "wanted"),
    [
        (36, "IQ4_NL_4_4.*re-quantize"),
        *(
            (fmt.type_id, rf"{fmt.name}, .*another quant \(Q4_K_M, .*; it runs .*MXFP4\), or .* llama\.cpp$")
            for fmt in FORMATS.values()
            if not fmt.native and 0 < fmt.bits_per_weight <= 32
        ),
        (200, r"unknown \(200\).*another quant"),
    ],
)
def test_types_that_do_not_run_are_refused_by_tensor_and_type(tmp_path: Path, type_id: int, wanted: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", n_embd=256)
    patch_type(path, "blk.1.ffn_up.weight", type_id)
    with weights_of(path) as weights:
        with pytest.raises(UnsupportedModelError, match=rf"tensor 'blk\.1\.ffn_up\.weight' is {wanted}"):
            weights.require_native()
        weights.require_native(["blk.0.ffn_up.weight"])
        with pytest.raises(UnsupportedModelError, match=wanted.split(",")[0].split(".")[0]):
            weights.float32("blk.1.ffn_up.weight")
