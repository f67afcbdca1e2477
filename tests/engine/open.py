"""Native engines on tiny models, and forwards in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.native import NativeEngine
from edgeinfer.engine.types import Batch
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.weights import Weights
from edgeinfer.settings import settings

__all__ = ["forward", "ids_of", "joined", "open_engine", "run"]


@contextmanager
def open_engine(
    path: Path, *, n_ctx: int = 256, n_batch: int = 64, n_threads: int = 1, isa: str = "", **more: Any
) -> Iterator[NativeEngine]:
    """The engine of a GGUF file."""
    file = GGUFFile.open(path)
    try:
        weights = Weights(file, ModelConfig.from_gguf(file))
        options = replace(settings(), isa=isa)
        engine = NativeEngine(weights, n_ctx=n_ctx, n_batch=n_batch, n_threads=n_threads, options=options, **more)
    except BaseException:
        file.close()
        raise
    try:
        yield engine
    finally:
        engine.close()


def ids_of(n: int, n_vocab: int = 250, seed: int = 0) -> list[int]:
    """n token ids that tell positions apart."""
    return [int(i) for i in np.random.default_rng(seed).integers(5, n_vocab, n)]


def forward(engine: NativeEngine, seq: int, ids: Sequence[int], lane: str = "prefill") -> NDArray[np.float32]:
    """The logits (n, n_vocab) of every token, appended to a sequence in one forward."""
    logits = engine.forward(Batch.of(seq, ids, engine.kv.n_past(seq), "all"), lane)
    return np.array([logits.row(i) for i in range(len(logits))])


def run(
    engine: NativeEngine, ids: Sequence[int], cuts: Sequence[int] = (64,), seq: int | None = None
) -> NDArray[np.float32]:
    """The logits of every token of a text that is fed in pieces of the given sizes, in turn."""
    mine = engine.kv.open() if seq is None else seq
    rows, at, turn = [], 0, 0
    while at < len(ids):
        n = cuts[turn % len(cuts)]
        rows.append(forward(engine, mine, ids[at : at + n], "decode" if n == 1 else "prefill"))
        at, turn = at + n, turn + 1
    if seq is None:
        engine.kv.close(mine)
    return np.concatenate(rows)


def joined(engine: NativeEngine, pieces: Sequence[tuple[int, Sequence[int]]]) -> list[NDArray[np.float32]]:
    """One forward with pieces of several sequences side by side; the logits of each piece."""
    batches = [Batch.of(seq, ids, engine.kv.n_past(seq), "all") for seq, ids in pieces]
    names = ("token_ids", "positions", "seq_ids", "wants_logits")
    batch = Batch(*(np.concatenate([getattr(b, name) for b in batches]) for name in names))
    logits = engine.forward(batch, "prefill")
    rows = np.array([logits.row(i) for i in range(len(logits))])
    return np.split(rows, np.cumsum([len(b) for b in batches])[:-1])
