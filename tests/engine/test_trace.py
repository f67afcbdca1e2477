"""Every step of a native forward against its NumPy twin, in both phases, for every family and weight type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.native import NativeEngine
from edgeinfer.engine.types import Batch
from edgeinfer.formats import FORMATS
from edgeinfer.plan.fields import FIELDS
from edgeinfer.plan.twin import TWINS
from tests.engine.open import forward, ids_of, open_engine
from tests.engine.trace import Differences, traced
from tests.tiny import build_tiny

TYPES = [fmt.name for fmt in FORMATS.values() if fmt.native]
COUNTS = (1, 2, 3, 4, 5, 8, 9, 17, 1)
SOFT = {".attn_logit_softcapping": ("float32", 5.0), ".final_logit_softcapping": ("float32", 3.0)}


def close(differences: Differences) -> None:
    """At most one int8 value in a thousand is off, by one."""
    assert differences.off_by_one <= differences.values / 1000


def test_every_kind_of_step_has_a_twin() -> None:
    assert set(TWINS) == set(FIELDS) - {"pack"}


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", TYPES)
def test_steps_agree(tmp_path: Path, arch: str, weight_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type}, n_layer=2 if arch == "gemma3" else 1)
    with open_engine(path, n_threads=2) as engine, traced(engine) as differences:
        seq = engine.kv.open()
        for n in COUNTS:
            forward(engine, seq, ids_of(n, seed=n), "decode" if n == 1 else "prefill")
    assert differences.steps["attention_part"] == COUNTS.count(1) * engine.config.n_layer
    assert differences.steps["attention"] == (len(COUNTS) - COUNTS.count(1)) * engine.config.n_layer
    close(differences)


@pytest.mark.parametrize(
    ("arch", "types", "more"),
    [
        ("llama", {"attn_v": "Q6_K", "ffn_up": "Q4_K", "output": "F16", "ffn_down": "BF16"}, {}),  # parts of many types
        ("gemma3", {"attn_q": "Q8_0", "ffn_gate": "Q5_0", "attn_output": "F32"}, {"n_embd": 256}),
        ("llama", {"default": "Q5_1"}, {"n_head": 6, "n_head_kv": 2, "n_embd": 192}),  # 3 query heads share a key head
        ("llama", {"default": "Q4_0"}, {"n_head": 5, "n_head_kv": 1, "head_dim": 32}),  # n_head x head_dim != n_embd
        ("gemma3", {"default": "Q8_0"}, {"n_head": 2, "n_head_kv": 2, "head_dim": 48, "n_ff": 96}),
        ("llama", {"default": "Q8_0"}, {"metadata": {".rope.dimension_count": ("uint32", 8)}}),  # scalar rotation
        ("llama", {"default": "Q4_1"}, {"head_dim": 64, "metadata": {".rope.dimension_count": ("uint32", 32)}}),
        ("gemma3", {"default": "Q4_0"}, {"metadata": SOFT}),
    ],
)  # fmt: skip
def test_steps_of_unusual_shapes_agree(
    tmp_path: Path, arch: str, types: Mapping[str, str], more: Mapping[str, Any]
) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, types, **more)
    with open_engine(path, n_threads=2) as engine, traced(engine) as differences:
        seq = engine.kv.open()
        for n in (1, 3, 17, 40, 1):
            forward(engine, seq, ids_of(n, seed=n))
    close(differences)
    assert ("softcap" in differences.steps) == ("metadata" in more and more["metadata"] is SOFT)


def test_rows_that_want_logits_are_the_ones_computed(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", {"default": "Q8_0"}, n_layer=1)
    with open_engine(path, n_threads=2) as engine, traced(engine) as differences:
        seq = engine.kv.open()
        for rows in ([16], [0, 7, 16], [3, 4, 5, 6, 7, 8, 9, 10, 11], []):
            batch = Batch.of(seq, ids_of(17), engine.kv.n_past(seq), "none")
            batch.wants_logits[rows] = True
            assert len(engine.forward(batch, "prefill")) == len(rows)
        assert len(engine.forward(Batch.of(seq, [7], engine.kv.n_past(seq), "none"))) == 0
    close(differences)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_steps_with_other_kv_types_agree(tmp_path: Path, arch: str, kv_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q8_0"}, n_head=4, n_head_kv=2, head_dim=64)
    with open_engine(path, n_threads=2, kv_type=kv_type, n_ctx=300) as engine, traced(engine) as differences:
        seq = engine.kv.open()
        for n in (*COUNTS, 64, 64, 64, 33, 1):
            forward(engine, seq, ids_of(n, seed=n))
    close(differences)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_other_instruction_sets_agree(tmp_path: Path, arch: str, isa: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q4_K", "ffn_down": "Q6_K", "attn_v": "Q5_0"}, n_ff=256)
    with open_engine(path, n_threads=2, isa=isa) as engine, traced(engine) as differences:
        seq = engine.kv.open()
        for n in COUNTS:
            forward(engine, seq, ids_of(n, seed=n))
    close(differences)


def long_trace(engine: NativeEngine, n: int) -> Differences:
    """n tokens without comparing, then a few with."""
    seq = engine.kv.open()
    ids = ids_of(n)
    for start in range(0, n, 64):
        forward(engine, seq, ids[start : start + 64])
    with traced(engine) as differences:
        for count in (1, 5, 1, 33, 1):
            forward(engine, seq, ids_of(count, seed=count))
    return differences


@pytest.mark.parametrize(("arch", "n"), [("llama", 250), ("gemma3", 600), ("llama", 1100)])
def test_long_texts_agree(tmp_path: Path, arch: str, n: int) -> None:
    """Across the seams of attention's blocks of 256 positions, with and without a window."""
    path = build_tiny(tmp_path / "m.gguf", arch, n_layer=2, sliding_window=300)
    with open_engine(path, n_ctx=1280, n_threads=2) as engine:
        differences = long_trace(engine, n)
    assert differences.worst["attention.out"] > 0
    close(differences)


def test_all_threads_hold_the_same_private_rows(tmp_path: Path) -> None:
    from tests.engine.trace import NativeMemory

    path = build_tiny(tmp_path / "m.gguf", "llama", {"default": "Q8_0"}, n_layer=1)
    with open_engine(path, n_threads=3) as engine:
        forward(engine, engine.kv.open(), [7], "decode")
        lane = engine._lanes["decode"]
        step = [s for s in engine.programs["decode"].steps if s.kind == "norm"][-1]
        rows = [NativeMemory(engine, lane, i).quantized(step.fields["acts"], 1, 0, 64) for i in range(3)]
    for row in rows[1:]:
        np.testing.assert_array_equal(row.q, rows[0].q)
        np.testing.assert_array_equal(row.scales, rows[0].scales)
