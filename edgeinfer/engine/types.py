"""The seam that every backend fits: Batch in, Logits out, a KV cache of sequences. Knows no tokenizer and no text.

Both the native engine and the llama.cpp backend implement `Engine`; everything from `generate/` on sees only this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError

if TYPE_CHECKING:
    from ..model.config import ModelConfig

__all__ = ["Batch", "Engine", "ForwardStopped", "KVCache", "Logits"]


class ForwardStopped(Exception):
    """A forward was stopped in the middle; its sequences are as before."""


@dataclass(frozen=True)
class Batch:
    """Tokens to evaluate in one forward: the shape of a llama.cpp batch.

    Tokens of one sequence must be adjacent, at consecutive positions that start at the sequence's n_past.
    """

    token_ids: NDArray[np.int32]  # (n,)
    positions: NDArray[np.int32]  # (n,)
    seq_ids: NDArray[np.int32]  # (n,)
    wants_logits: NDArray[np.bool_]  # (n,) rows of the answer, in order

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(cls, seq: int, token_ids: Sequence[int], n_past: int, logits: str = "last") -> Batch:
        """A batch of one sequence: `token_ids` at positions n_past, n_past+1, ...; logits "last", "all" or "none"."""
        n = len(token_ids)
        wants = np.zeros(n, np.bool_)
        if logits == "all":
            wants[:] = True
        elif logits == "last" and n:
            wants[-1] = True
        ids = np.asarray(token_ids, np.int64)
        if n and not -(1 << 31) <= int(ids.min()) <= int(ids.max()) < 1 << 31:
            raise SettingError("a token id is outside 32 bits; wanted ids of the vocabulary")
        return cls(
            ids.astype(np.int32),
            np.arange(n_past, n_past + n, dtype=np.int32),
            np.full(n, seq, np.int32),
            wants,
        )


class Logits(Protocol):
    """The rows that a batch asked for, in order; a view that is valid until the lane's next forward."""

    def __len__(self) -> int:
        """How many rows there are."""

    def row(self, i: int) -> NDArray[np.float32]:
        """Row i as a float32 array (n_vocab,): a view, copy it to keep it."""

    def argmax(self, i: int) -> int:
        """The id of the largest logit of row i, the lowest id among equals, as the forward left it."""

    def top(self, i: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The k largest logits of row i, descending, ties by ascending id: (ids, values)."""

    def finite(self, i: int) -> bool:
        """Whether row i holds neither NaN nor infinity, as the forward left it."""


class KVCache(Protocol):
    """The memory of sequences. Sequence ids are small integers handed out by `open`."""

    def open(self) -> int:
        """Start an empty sequence and return its id."""

    def n_past(self, seq: int) -> int:
        """How many positions the sequence holds."""

    def fork(self, src: int, n: int) -> int:
        """Start a sequence that shares the first n positions of src; return its id."""

    def rewind(self, seq: int, n_past: int) -> int:
        """Shorten a sequence to n_past positions; return the n_past really reached (it may be lower)."""

    def close(self, seq: int) -> None:
        """Give the sequence's pages back."""


@runtime_checkable
class Engine(Protocol):
    """One loaded model that turns batches into logits."""

    config: ModelConfig
    n_ctx: int  # most positions of a sequence
    n_batch: int  # most tokens of one forward
    n_vocab: int  # length of a row of logits
    n_out: int  # most rows of logits of one forward

    @property
    def kv(self) -> KVCache:
        """The memory of sequences."""

    def forward(self, batch: Batch, lane: str = "decode", n_threads: int = 0) -> Logits:
        """Evaluate a batch in a lane ("prefill" or "decode") on up to n_threads threads (0: all that are free).

        The lanes may run at once on different sequences. Raises ContextOverflowError, SettingError, EngineError.
        """

    def close(self) -> None:
        """Release threads and memory; later calls raise EngineError."""
