"""What logits must not depend on, to the last bit: threads, cuts of the prompt, company in the batch, a sequence's past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.formats import FORMATS
from tests.engine.open import forward, ids_of, joined, open_engine, run
from tests.tiny import build_tiny

TYPES = [fmt.name for fmt in FORMATS.values() if fmt.native]
ARCHS = ["llama", "gemma3"]
MIXED = {"default": "Q4_0", "attn_v": "Q5_1", "ffn_down": "F16", "token_embd": "Q8_0", "output": "Q8_0"}
same = np.testing.assert_array_equal


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_threads_and_cuts(tmp_path: Path, arch: str, weight_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type}, n_layer=2)
    ids = ids_of(49)
    with open_engine(path) as engine:
        whole = run(engine, ids)
    assert np.isfinite(whole).all()
    assert len({int(i) for i in whole.argmax(1)}) > 5
    for n_threads, cuts in ((1, [1]), (2, [64]), (2, [1]), (3, [64]), (3, [1]), (2, [1, 2, 3, 4, 5, 6, 7, 8, 9, 4])):
        with open_engine(path, n_threads=n_threads) as engine:
            same(run(engine, ids, cuts), whole, f"{n_threads} threads, pieces of {cuts}")


@pytest.mark.parametrize("arch", ARCHS)
def test_company_in_the_batch(tmp_path: Path, arch: str) -> None:
    """Several sequences in one forward, of many lengths and at many positions, give what each gives alone."""
    path = build_tiny(tmp_path / "m.gguf", arch, MIXED)
    texts = [ids_of(n, seed=n) for n in (1, 2, 5, 11, 17)]
    with open_engine(path, n_threads=2) as engine:
        alone = [run(engine, text) for text in texts]
        seqs = [engine.kv.open() for _ in texts]
        first = [len(text) // 2 for text in texts]
        starts = [(seq, text[:n]) for seq, text, n in zip(seqs, texts, first, strict=True) if n]
        rest = [(seq, text[n:]) for seq, text, n in zip(seqs, texts, first, strict=True)]
        got: dict[int, list[Any]] = {seq: [] for seq in seqs}
        for pieces in (starts, rest[::-1]):
            for (seq, _), rows in zip(pieces, joined(engine, pieces), strict=True):
                got[seq].append(rows)
        for seq, want in zip(seqs, alone, strict=True):
            same(np.concatenate(got[seq]), want)


@pytest.mark.parametrize("arch", ARCHS)
def test_rewind_then_replay(tmp_path: Path, arch: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, MIXED)
    ids = ids_of(150)
    with open_engine(path, n_threads=2) as engine:
        seq = engine.kv.open()
        whole = run(engine, ids, seq=seq)
        for back in (149, 130, 128, 64, 63, 1, 0):
            run(engine, ids_of(20, seed=9), [7], seq) if back < 149 else None  # something else was there meanwhile
            assert engine.kv.rewind(seq, back) == back
            same(run(engine, ids[back:], [13], seq), whole[back:])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("n", [1, 64, 90, 128, 150])
def test_fork_then_diverge(tmp_path: Path, arch: str, n: int) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, MIXED)
    ids, other = ids_of(170), ids_of(20, seed=5)
    with open_engine(path, n_threads=2) as engine:
        want, want_other = run(engine, ids), run(engine, [*ids[:n], *other])
        seq = engine.kv.open()
        run(engine, ids[:150], seq=seq)
        child = engine.kv.fork(seq, n)
        same(run(engine, other, [3], child), want_other[n:])
        same(run(engine, ids[150:], [6], seq), want[150:])  # the parent saw nothing of it
        engine.kv.close(seq)
        engine.kv.rewind(child, n)
        same(run(engine, other, [20], child), want_other[n:])  # nor does the child miss the parent


@pytest.mark.parametrize(
    ("arch", "n", "window"),
    [
        *(("llama", 300, 0), ("llama", 1100, 0), ("gemma3", 300, 32), ("gemma3", 300, 1), ("gemma3", 300, 257)),
        ("gemma3", 600, 300),
    ],
)  # fmt: skip
def test_long_texts(tmp_path: Path, arch: str, n: int, window: int) -> None:
    """Beyond the window, and across many blocks of 256 positions."""
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q8_0"}, sliding_window=window, n_ctx_train=2048)
    ids = ids_of(n)
    with open_engine(path, n_ctx=n) as engine:
        whole = run(engine, ids)
    with open_engine(path, n_ctx=2048, n_threads=3) as engine:
        same(run(engine, ids, [1, 31, 17, 1, 1, 64, 6]), whole)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_long_texts_token_by_token(tmp_path: Path, arch: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q4_K"}, sliding_window=100, n_ctx_train=2048)
    ids = ids_of(1300)
    with open_engine(path, n_ctx=1300, n_threads=2) as engine:
        same(run(engine, ids, [1]), run(engine, ids))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 2), (10, 2), (8, 1)])
def test_heads_that_share_keys(tmp_path: Path, heads: tuple[int, int]) -> None:
    """A tile of query rows may hold the heads of one token or parts of two."""
    n_head, n_head_kv = heads
    path = build_tiny(
        tmp_path / "m.gguf", "llama", {"default": "Q8_0"}, n_head=n_head, n_head_kv=n_head_kv, head_dim=16
    )
    ids = ids_of(40)
    with open_engine(path) as one, open_engine(path, n_threads=3) as three:
        whole = run(one, ids)
        same(run(three, ids, [1]), whole)
        same(run(three, ids, [3, 5]), whole)


def test_batch_size_does_not_matter(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", MIXED)
    with open_engine(path, n_batch=7) as small, open_engine(path, n_batch=64) as large:
        same(run(small, ids_of(40), [7]), run(large, ids_of(40)))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("weight_type", ["F16", "Q8_0", "Q6_K", "Q4_K"])
def test_tied_output_is_the_token_table(tmp_path: Path, arch: str, weight_type: str) -> None:
    types = {"default": "Q4_K" if "K" in weight_type else "Q4_0", "token_embd": weight_type, "output": weight_type}
    tied = build_tiny(tmp_path / "tied.gguf", arch, types, tied=True)
    double = build_tiny(tmp_path / "double.gguf", arch, types, duplicate_output=True)
    assert double.stat().st_size > tied.stat().st_size
    with open_engine(tied) as one, open_engine(double) as two:
        assert (one.config.tied_embeddings, two.config.tied_embeddings) == (True, False)
        same(run(one, ids_of(9)), run(two, ids_of(9)))


def test_both_lanes_give_the_same(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", MIXED)
    with open_engine(path, n_threads=2) as engine:
        a, b = engine.kv.open(), engine.kv.open()
        for ids in ([7], ids_of(12), [9]):
            same(forward(engine, a, ids, "prefill"), forward(engine, b, ids, "decode"))


def test_padding_rows_of_the_table_have_no_logits(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", MIXED, n_rows=420)
    with open_engine(path) as engine:
        assert engine.config.n_vocab == 420
        assert engine.n_vocab == engine.config.n_tokens < 420
        assert run(engine, ids_of(3)).shape == (3, engine.n_vocab)
