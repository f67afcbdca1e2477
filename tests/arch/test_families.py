"""Every family against outside truths: transformers' float32 logits, llama.cpp on the same file, and the NumPy twins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.arch import ARCHS
from edgeinfer.evaluate.divergence import compare_rows
from edgeinfer.evaluate.exact import log_softmax
from edgeinfer.formats import FORMATS
from edgeinfer.model.gguf import GGUFFile
from tests.arch.families import NAMES, copied, reference, unpack
from tests.engine.open import forward, ids_of, joined, open_engine, run
from tests.engine.trace import traced
from tests.tiny import build_tiny

same = np.testing.assert_array_equal
FLOAT_KL, QUANT_KL = 5e-5, 1e-2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def mean_kl(exact: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    return compare_rows(log_softmax(exact.astype(np.float64)), got.astype(np.float64)).mean_kl


def test_every_family_is_here(folder: Path) -> None:
    archs = set()
    for name in NAMES:
        with GGUFFile.open(unpack(name, folder)) as file:
            archs.add(file.metadata["general.architecture"])
    assert archs == set(ARCHS)


# ---- transformers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_transformers(folder: Path, name: str) -> None:
    """Up to position 219: beyond windows of 48, original contexts of 64 and chunks of 64."""
    want = reference(name)
    with open_engine(unpack(name, folder), n_threads=2) as engine:
        got = run(engine, want.ids)[want.positions]
    assert want.positions.max() > 200
    assert mean_kl(want.logits, got) < FLOAT_KL
    assert np.abs(got - want.logits).max() < 1e-2 * want.logits.std()  # the f16 cache alone makes up to 7e-3 here


@pytest.mark.parametrize("name", [n for n in NAMES if reference(n).short_logits is not None])
def test_short_contexts_use_the_short_factors(folder: Path, name: str) -> None:
    """And the context's size decides, as in llama.cpp; transformers decides by the text's length."""
    want = reference(name)
    assert want.short_logits is not None
    ids = want.ids[: len(want.short_logits)]
    with open_engine(unpack(name, folder), n_ctx=64) as engine:
        short = run(engine, ids)
        layout = engine.kv.layout
    with open_engine(unpack(name, folder), n_ctx=65) as engine:
        long = run(engine, ids)
        assert engine.kv.layout != layout  # stored keys of one are no use to the other
    assert mean_kl(want.short_logits, short) < FLOAT_KL
    assert mean_kl(want.short_logits, long) > 1e-3


# ---- llama.cpp ------------------------------------------------------------------------------------------------------


@pytest.fixture
def llama_logits() -> Callable[[Path, list[int]], NDArray[np.float32]]:
    llama_reference = pytest.importorskip("llama_reference")

    def logits(path: Path, ids: list[int]) -> NDArray[np.float32]:
        model = llama_reference.LlamaCpp(path, 256, 2, n_batch=64)
        try:
            return np.concatenate([rows.copy() for rows in model.logits(ids)])
        finally:
            model.close()

    return logits


def comparable(name: str) -> int:
    """Positions up to which llama.cpp computes the same model: it leaves phi3's sliding window out."""
    return 48 if name == "phi3-window" else 220


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_llama_cpp(folder: Path, name: str, llama_logits) -> None:  # type: ignore[no-untyped-def]
    ids = reference(name).ids[: comparable(name)]
    path = unpack(name, folder)
    with open_engine(path, n_threads=2) as engine:
        got = run(engine, ids)
    assert mean_kl(llama_logits(path, ids), got) < FLOAT_KL


@pytest.mark.llama_cpp
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_quantized_logits_of_llama_cpp(folder: Path, name: str, kind: str, llama_logits) -> None:  # type: ignore[no-untyped-def]
    ids = reference(name).ids[: comparable(name)]
    path = copied(unpack(name, folder), folder / f"{name}-{kind}.gguf", kind)
    with open_engine(path, n_threads=2) as engine:
        got = run(engine, ids)
    assert mean_kl(llama_logits(path, ids), got) < QUANT_KL


# ---- our own promises -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param("F32", marks=pytest.mark.slow), "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_threads_and_cuts(folder: Path, name: str, kind: str) -> None:
    path = unpack(name, folder)
    if kind != "F32":
        path = copied(path, folder / f"{name}-{kind}-cuts.gguf", kind)
    ids = reference(name).ids[:140]
    with open_engine(path) as engine:
        whole = run(engine, ids)
    assert np.isfinite(whole).all()
    assert len({int(i) for i in whole.argmax(1)}) > 10
    for n_threads, cuts in ((2, [1]), (3, [64]), (3, [1, 2, 3, 4, 5, 6, 7, 8, 9, 31])):
        with open_engine(path, n_threads=n_threads) as engine:
            same(run(engine, ids, cuts), whole, f"{n_threads} threads, pieces of {cuts}")


@pytest.mark.parametrize("name", NAMES)
def test_company_and_rewinds(folder: Path, name: str) -> None:
    """Two sequences in one forward give what each gives alone, and a sequence that is cut goes on as if nothing had been."""
    path = copied(unpack(name, folder), folder / f"{name}-q8_0-company.gguf", "Q8_0")
    ids, other = reference(name).ids[:120], ids_of(90, 280, seed=4)
    with open_engine(path, n_threads=2) as engine:
        want, want_other = run(engine, ids), run(engine, other)
        a, b = engine.kv.open(), engine.kv.open()
        forward(engine, a, ids[:40])
        forward(engine, b, other[:7])
        for pieces, wanted in (([(a, ids[40:60]), (b, other[7:30])], (want[40:60], want_other[7:30])),):
            for rows, right in zip(joined(engine, pieces), wanted, strict=True):
                same(rows, right)
        run(engine, ids[60:], seq=a)
        for back in (119, 110, 100, 64, 30, 1, 0):
            reached = engine.kv.rewind(a, back)
            assert reached == back or engine.kv.n_past(a) == reached < back
            same(run(engine, ids[reached:], [17], a), want[reached:])


@pytest.mark.parametrize("kind", [fmt.name for fmt in FORMATS.values() if fmt.native])
def test_experts_of_every_type(tmp_path: Path, kind: str) -> None:
    """Each step against its twin, and the same logits whoever shares the forward."""
    path = build_tiny(tmp_path / "m.gguf", "qwen3moe", {"default": kind}, n_layer=1, n_expert=5)
    ids = ids_of(40)
    with open_engine(path, n_threads=2) as engine:
        whole = run(engine, ids)
        with traced(engine) as differences:
            seq = engine.kv.open()
            for n in (1, 3, 17):
                forward(engine, seq, ids_of(n, seed=n), "decode" if n == 1 else "prefill")
    assert differences.steps["experts_down"] == 3
    with open_engine(path, n_threads=3) as engine:
        same(run(engine, ids, [1, 2, 13]), whole)


@pytest.mark.parametrize("kind", [pytest.param("F32", marks=pytest.mark.slow), "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_steps_agree(folder: Path, name: str, kind: str) -> None:
    path = unpack(name, folder)
    if kind != "F32":
        path = copied(path, folder / f"{name}-{kind}-steps.gguf", kind)
    with open_engine(path, n_threads=2) as engine, traced(engine) as differences:
        seq = engine.kv.open()
        for n in (1, 5, 64, 1, 9):
            forward(engine, seq, ids_of(n, 280, seed=n), "decode" if n == 1 else "prefill")
    assert differences.off_by_one <= differences.values / 1000
    kinds = set(differences.steps)
    assert ("route" in kinds) == ("experts_up" in kinds) == ("experts_down" in kinds) == ("moe" in name)
    assert ("short_conv" in kinds) == (name == "lfm2")
