"""scripts/bench fast: its bars and verdicts, the files it makes, the neighbours it brings, and its children."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import fast_models
import fast_neighbours
import numpy as np
import psutil
import pytest
import reach_fast
from fast_child import Child
from fast_models import SHAPES, Shape, random_blocks, tensors, write_shape
from reach_fast import QUICK, Reach, Scale, decode_bar, prefill_bar, rescaled

from edgeinfer.evaluate.single_stream import Measured, cases_of
from edgeinfer.formats import by_name

from ..engine.open import ids_of, open_engine, run

TINY = Shape(2, 64, 96, 2, 1, 32, 400, 512, 1e4)


def written(path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, shape: Shape = TINY) -> Path:
    """A tiny file of random weights with a small vocabulary of letters."""
    words: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.tokens": [chr(97 + i) if i < 26 else f"<|unused_{i}|>" for i in range(shape.n_vocab)],
        "tokenizer.ggml.token_type": [1] * 26 + [5] * (shape.n_vocab - 26), "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    words["tokenizer.ggml.tokens"][26] = "ab"
    monkeypatch.setattr(fast_models, "vocabulary", lambda n_vocab: words)
    write_shape(path, shape, recipe)
    return path


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_random_weights_have_the_spread_of_real_ones(kind: str) -> None:
    raw = random_blocks(kind, 64, 1024, np.random.default_rng(1))
    fmt = by_name(kind)
    assert fmt.dequantize is not None
    values = fmt.dequantize(raw)
    assert values.shape == (64, 1024)
    assert np.isfinite(values).all()
    assert float(values.std()) * 32 == pytest.approx(1.0, rel=0.1)  # 1/sqrt(1024)
    assert abs(float(values.mean())) * 32 < 0.1


def test_types_follow_llama_cpp_s_recipes() -> None:
    found = {name: kind for name, _, _, kind in tensors(SHAPES["qwen-1.5b"], "q4_k_m")}
    assert found["token_embd.weight"] == "Q6_K"  # the output matrix too
    downs = [found[f"blk.{i}.ffn_down.weight"] for i in range(28)]
    more = [i < 3 or i >= 24 or (i - 3) % 3 == 2 for i in range(28)]
    assert downs == ["Q6_K" if m else "Q4_K" for m in more]
    assert found["blk.4.attn_v.weight"] == downs[4]
    assert found["blk.0.attn_q.weight"] == "Q4_K"
    odd = {name: kind for name, _, _, kind in tensors(SHAPES["qwen-0.5b"], "q4_k_m")}  # rows of 896
    assert (odd["token_embd.weight"], odd["blk.4.attn_q.weight"]) == ("Q8_0", "Q5_0")
    assert odd["blk.3.ffn_down.weight"] == "Q4_K"  # rows of 4864
    plain = {kind for name, _, _, kind in tensors(SHAPES["llama-3b"], "q4_0") if kind != "F32"}
    assert plain == {"Q4_0", "Q6_K"}
    sizes = {name: rows * cols for name, rows, cols, _ in tensors(SHAPES["llama-3b"], "q4_0")}
    assert 3.1e9 < sum(sizes.values()) < 3.3e9  # parameters


@pytest.mark.parametrize("recipe", ["q4_0", "q4_k_m"])
def test_a_written_shape_runs(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.gguf", recipe, monkeypatch)
    with open_engine(path) as engine:
        logits = run(engine, ids_of(12, n_vocab=400))
    assert logits.shape == (12, 400)
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 100


@pytest.mark.llama_cpp
@pytest.mark.parametrize("recipe", ["q4_0", "q4_k_m"])
def test_llama_cpp_reads_a_written_shape_alike(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.evaluate.llama_reference import LlamaCpp

    path = written(tmp_path / "m.gguf", recipe, monkeypatch)
    ids = ids_of(12, n_vocab=400)
    with open_engine(path) as engine:
        ours = run(engine, ids)
    llama = LlamaCpp(path, 64, 1)
    theirs = np.concatenate([rows.copy() for rows in llama.logits(ids)])
    llama.close()
    a, b = ours - ours.mean(1, keepdims=True), theirs[:, :400] - theirs[:, :400].mean(1, keepdims=True)
    likeness = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    assert likeness.min() > 0.98  # both round activations to 8 bits, each its own way


# ---- bars -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "one", "two", "prefill"),
    [
        ("smollm2-q4_0", 1.8, 1.8, 2.3),
        ("smollm2-135m", 1.8, 1.8, 3.5),
        ("smollm2-q4_k_m", 1.8, 1.8, 3.5),
        ("gemma3-270m", 1.45, 1.2, 3.5),
        ("qwen-0.5b-q4_0", 1.4, 1.25, 2.3),
        ("qwen-1.5b-q4_k_m", 1.4, 1.1, 2.3),
        ("llama-3b-q4_k_m", 1.4, 1.1, 2.3),
    ],
)
def test_bars_are_those_of_the_table(name: str, one: float, two: float, prefill: float) -> None:
    assert (decode_bar(name, 1), decode_bar(name, 2), decode_bar(name, 4), prefill_bar(name)) == (
        one,
        two,
        two,
        prefill,
    )


def test_every_file_of_the_scale_can_be_made() -> None:
    scale = Scale()
    shapes = [f"{shape}-{recipe}" for shape in scale.shapes for recipe in ("q4_0", "q4_k_m")]
    named = [*scale.files, *shapes, *scale.deep, *scale.verify, *scale.avx2, *scale.busy, *scale.memory]
    assert set(named) <= set(fast_models.FILES)
    assert set(QUICK.files) <= set(fast_models.FILES)
    with pytest.raises(SystemExit, match="no model 'nothing'"):
        fast_models.model("nothing")


def test_a_decode_row_is_met_by_its_ratio_or_by_mbu(capsys: Any) -> None:
    reach = Reach(QUICK, 0)
    read, write = cases_of([32], [8])
    for ratio, part, case, ok in (
        (2.0, 0.5, write, True), (1.0, 0.95, write, True), (1.0, 0.91, write, False), (1.0, 0.95, read, False),
        (2.0, 0.1, read, True),
    ):  # fmt: skip
        limit = "of peak" if case.is_prefill else "MBU"
        reach.judge("m", case, Measured(case.label, "tok/s", (ratio * 10,), 1, (10.0,), limit, (part,), (1.0,)), 1.8)
        assert reach.rows[-1].ok is ok
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == "| m, 1 threads, tg8 | at least 1.8x or MBU 0.92 | 20 (20-20) against 10 (10-10) tok/s: 2.00x; MBU 0.50 | yes |"
    )
    assert lines[3].endswith("| NO |")


def test_any_number_of_the_scale_can_be_changed() -> None:
    scale = rescaled(Scale(), ["repeats=7", "threads=1", "files=smollm2-q4_0,gemma3-270m", "busy-repeats=3", "shapes="])
    assert (scale.repeats, scale.threads, scale.busy_repeats, scale.shapes) == (7, (1,), 3, ())
    assert scale.files == ("smollm2-q4_0", "gemma3-270m")
    with pytest.raises(ValueError, match="no 'repeat' in the scale"):
        rescaled(Scale(), ["repeat=7"])
    with pytest.raises(ValueError, match="invalid literal"):
        rescaled(Scale(), ["repeats=many"])


def test_a_row_that_is_not_one_is_refused(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reach_fast.py", "--rows", "files,speed"])
    with pytest.raises(SystemExit) as ended:
        reach_fast.main()
    assert ended.value.code == 2
    assert "no row 'speed'" in capsys.readouterr().err


def test_an_interrupt_shows_the_rows_that_were_measured(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def depth(self: Reach) -> None:
        self.row("a", "b", "c", True)

    def verify(self: Reach) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reach, "depth", depth)
    monkeypatch.setattr(Reach, "verify", verify)
    monkeypatch.setattr(reach_fast, "machine", lambda: "a machine")
    file = tmp_path / "all.json"
    monkeypatch.setattr(sys, "argv", ["reach_fast.py", "--quick", "--rows", "depth,verify,busy", "--json", str(file)])
    with pytest.raises(SystemExit) as ended:
        reach_fast.main()
    assert ended.value.code == 130
    assert "| a | b | c | yes |" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert [row["what"] for row in document["rows"]] == ["a"]
    assert any(note.startswith("interrupted") for note in document["notes"])


def test_without_its_rival_the_avx2_row_is_open(capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reach_fast, "AVX2_PYTHON", tmp_path / "none")
    reach = Reach(QUICK, 0)
    reach.avx2()
    assert [row.ok for row in reach.rows] == [None]
    assert "--build-avx2" in capsys.readouterr().out


# ---- neighbours and children ----------------------------------------------------------------------------------------------


def test_neighbours_spin_and_are_gone_afterwards() -> None:
    me = psutil.Process()
    before = {child.pid for child in me.children()}
    with fast_neighbours.busy(2):
        children = [child for child in me.children() if child.pid not in before]
        assert len(children) == 2
        assert all(child.nice() == me.nice() for child in children)
        deadline = time.monotonic() + 20  # on a busy machine they may get little
        while not all(sum(child.cpu_times()[:2]) > 0.05 for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert not [child for child in me.children() if child.pid not in before]
    with fast_neighbours.busy(0):
        assert {child.pid for child in me.children()} == before


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_of_one_cpu_is_made_and_taken_away(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_neighbours, "_CGROUP", tmp_path)
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
        (tmp_path / "cgroup.subtree_control").write_text("memory")
    else:
        (tmp_path / "cpu").mkdir()
    with fast_neighbours.quota_of_one_cpu() as tasks:
        assert tasks is not None
        group = Path(tasks).parent
        assert group.name == f"edgeinfer-bench-{os.getpid()}"
        files = {path.name: path.read_text() for path in group.iterdir()}
        for path in group.iterdir():  # a real group is removed with its files in it
            path.unlink()
    if version == 2:
        assert files == {"cpu.max": "100000 100000"}
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    else:
        assert files == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}
    assert not group.exists()


def test_where_no_cgroup_can_be_made_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_neighbours, "_CGROUP", tmp_path / "none")
    with fast_neighbours.quota_of_one_cpu() as tasks:
        assert tasks is None


def test_a_child_measures_like_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.gguf", "q4_0", monkeypatch)
    cpu = min(os.sched_getaffinity(0))
    with Child("edgeinfer", path, 256, 4, cpus=[cpu]) as child:
        assert child.facts["n_threads"] == 1  # of four that were asked for
        assert "computing with 1" in child.facts["note"]
        done = child.run(range(3, 23), range(23, 30), 5)
        assert (done.n_out, done.timings) == (5, None)
        assert done.n_read >= 7
        assert done.first_s > 0
        child.context(list(range(3, 23)), list(range(30, 38)))
        assert child.step(4) > 0
        assert child.bandwidth() > 0
        assert child.peak() > 1e8
        assert child.mbu(1.0, 0.0, float(child.facts["weights"])) == 1.0
    assert child._process.returncode == 0


def test_a_child_that_cannot_start_is_told(tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(SystemExit, match="the edgeinfer side ended with exit code 1"):
        Child("edgeinfer", tmp_path / "nothing.gguf", 64, 1)
    said = capfd.readouterr().err
    assert said.startswith("edgeinfer: there is no file")
    assert "Traceback" not in said


def test_llama_cpp_s_recipes_have_their_numbers() -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    for recipe, number in fast_models.REQUANTIZED.items():
        assert number == getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{recipe.upper()}")
    assert ctypes.sizeof(llama_cpp.llama_model_quantize_params) > 0
