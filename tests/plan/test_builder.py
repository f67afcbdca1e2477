"""Programs as data: what the verbs emit for a tiny model of each family, and how they are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.arch import ARCHS
from edgeinfer.engine.native import build_programs, family_of
from edgeinfer.errors import UnsupportedModelError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.weights import Weights
from edgeinfer.plan.program import Packed, Program, Scratch, Thread
from tests.tiny import build_tiny


def programs(path: Path) -> dict[str, Program]:
    """The programs of a file."""
    with GGUFFile.open(path) as file:
        config = ModelConfig.from_gguf(file)
        return build_programs(Weights(file, config), family_of(config))


LLAMA_DECODE = """\
000* embed.q8_0         x <- token_embd.weight
001  norm               h <- blk.0.attn_norm.weight
002* matmul.q8_0        qkv <- h, blk.0.attn_q+blk.0.attn_k+blk.0.attn_v  128x64
003* rope_kv            pages <- k, v
004* attention_part     attn <- q, pages
005* attention_merge    attn <- blocks
006  norm               h <- quantize
007* matmul.q8_0        x <- h, blk.0.attn_output  64x64 add
008  norm               h <- blk.0.ffn_norm.weight
009* matmul.q8_0        ffn <- h, blk.0.ffn_gate+blk.0.ffn_up  256x64 silu
010  norm               h <- quantize
011* matmul.q8_0        x <- h, blk.0.ffn_down  64x128 add
012  norm               h <- output_norm.weight
013* matmul.q8_0        logits <- h, output  352x64
014* scan               found <- the largest of each block of logits
015* scan_merge         best <- the largest of found"""

GEMMA_BATCH = """\
000* embed.f16          x <- token_embd.weight
001* norm               h <- blk.0.attn_norm.weight
002* matmul_float.f16   qkv <- h, blk.0.attn_q+blk.0.attn_k+blk.0.attn_v  128x64
003* rope_kv            pages <- k, v
004* attention          attn <- q, pages (last 32)
005* norm               h <- quantize
006* matmul_float.f16   o <- h, blk.0.attn_output  64x64
007* norm               h <- blk.0.ffn_norm.weight
008* matmul_float.f16   ffn <- h, blk.0.ffn_gate+blk.0.ffn_up  256x64 gelu
009* norm               h <- quantize
010* matmul_float.f16   down <- h, blk.0.ffn_down  64x128
011* norm               h <- output_norm.weight
012* matmul_float.f16   logits <- h, token_embd  416x64
013* scan               found <- the largest of each block of logits
014* scan_merge         best <- the largest of found"""


def test_listing_of_a_llama(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", {"default": "Q8_0"}, n_layer=1)
    assert programs(path)["decode"].listing() == LLAMA_DECODE


def test_listing_of_a_gemma(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", {"default": "F16"}, n_layer=1)
    assert programs(path)["batch"].listing() == GEMMA_BATCH


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_both_phases_read_the_same_weights(tmp_path: Path, arch: str) -> None:
    found = programs(build_tiny(tmp_path / "m.gguf", arch, {"default": "Q4_K", "attn_v": "Q6_K"}))
    assert found["decode"].matrices() == found["batch"].matrices()
    assert set(found["batch"].kernels()) - set(found["decode"].kernels()) == {"attention"}


def test_parts_of_one_type_are_one_matrix_and_others_stand_alone(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", {"default": "Q4_K", "attn_v": "Q6_K"}, n_layer=1)
    labels = [m.label for m in programs(path)["decode"].matrices()]
    assert labels[:2] == ["blk.0.attn_q+blk.0.attn_k", "blk.0.attn_v"]
    steps = [s for s in programs(path)["decode"].steps if s.name.startswith("qkv")]
    assert [s.sync for s in steps] == [False, True]  # they write side by side
    assert [s.fields["y"] for s in steps] == [Scratch("qkv"), Scratch("qkv", 4 * (256 + 128))]


def test_gate_and_up_of_two_types_are_joined_in_memory(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", {"default": "Q8_0", "ffn_up": "Q4_0"}, n_layer=1)
    steps = [s for s in programs(path)["batch"].steps if s.name.startswith("ffn")]
    assert [s.kernel for s in steps] == ["matmul.q8_0", "matmul.q4_0"]
    assert [s.sync for s in steps] == [True, True]


def test_one_token_keeps_its_activations_in_each_thread(tmp_path: Path) -> None:
    found = programs(build_tiny(tmp_path / "m.gguf", "llama", {"default": "Q8_0", "ffn_down": "F32"}))
    for phase, kind in (("decode", Thread), ("batch", Scratch)):
        for step in found[phase].steps:
            if step.kind == "matmul":
                assert isinstance(step.fields["acts"], kind)
            if step.kind == "matmul_float":
                assert isinstance(step.fields["h"], kind)
    # A norm writes only the forms that somebody reads.
    down = next(i for i, s in enumerate(found["batch"].steps) if s.kind == "matmul_float")
    assert found["batch"].steps[down - 1].fields["acts"] == 0
    assert found["batch"].steps[down - 1].fields["out"] != 0


def test_packed_matrices_name_every_weight_once(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", {"default": "Q4_0"}, n_layer=3)
    parts = [p.tensor for m in programs(path)["batch"].matrices() for p in m.parts]
    assert len(parts) == len(set(parts)) == 3 * 7 + 1
    streams = {o.stream for s in programs(path)["batch"].steps for o in s.fields.values() if isinstance(o, Packed)}
    assert streams == {"quants", "scales"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"n_embd": 48, "n_head": 3, "n_head_kv": 3}, ["48", "multiple of 32"]),
        ({"n_embd": 96, "n_head": 4, "n_head_kv": 2}, ["head size of 24", "multiple of 16"]),
        ({"metadata": {".rope.scaling.type": "longrope"}}, ["llama.rope.scaling.type", "rope_factors_short.weight"]),
        (
            {"metadata": {".expert_count": ("uint32", 4), ".expert_used_count": ("uint32", 2)}},
            ["llama.expert_count", "4 experts"],
        ),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_compute_is_refused(tmp_path: Path, more: dict[str, object], words: list[str]) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", **more)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError) as error:
        programs(path)
    for word in words:
        assert word in str(error.value)


def test_a_weight_of_an_unknown_family_is_refused(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "mamba")
    with pytest.raises(UnsupportedModelError, match="'mamba' is not one that the native engine runs") as error:
        programs(path)
    assert ", ".join(sorted(ARCHS)) in str(error.value)
