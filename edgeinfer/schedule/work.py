"""A forward to be run: whose tokens it holds, and the batch that the engine takes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from ..engine.types import Batch
from .cost import looks_of
from .sharing import Way
from .stream import Stream

__all__ = ["LANES", "Piece", "Work"]

LANES = ("prefill", "decode")


@dataclass(frozen=True)
class Piece:
    """The next n tokens of a stream, in a forward."""

    stream: Stream
    n: int
    n_rows: int  # of logits that are wanted: none, the last one, or all


@dataclass
class Work:
    """One forward of a lane."""

    lane: str
    n_threads: int
    pieces: list[Piece]
    way: Way | None  # how the cores are shared; None when this phase works alone
    _: KW_ONLY
    n_steps: int = 0  # the first pieces that are steps of answers; the others are chunks of prompts
    rows: int = 0
    looks: int = 0  # sum of the rows' positions
    chunk_looks: int = 0  # the same of the rows of prompts alone
    spans: int = 0  # sum of the positions at which the pieces begin

    @property
    def shares(self) -> bool:
        """Whether the other lane may run at the same time, on the rest of the threads."""
        return self.way is not None and self.way.name == "split"

    def add_chunk(self, stream: Stream, n: int, n_rows: int) -> None:
        """Add the next n tokens of a prompt, of which n_rows give logits."""
        self.pieces.append(Piece(stream, n, n_rows))
        looks = looks_of(stream.n_held, n)
        self.rows += n
        self.looks += looks
        self.chunk_looks += looks
        self.spans += stream.n_held

    def batch(self) -> Batch:
        """The forward's tokens as the engine takes them."""
        ids: list[int] = []
        seqs: list[int] = []
        positions: list[int] = []
        wants: list[bool] = []
        for piece in self.pieces:
            stream, first = piece.stream, piece.stream.n_held
            assert stream.session is not None  # a stream that is in has one
            ids += stream.tokens[first : first + piece.n]
            seqs += [stream.session.seq] * piece.n
            positions += range(first, first + piece.n)
            wants += [False] * (piece.n - piece.n_rows) + [True] * piece.n_rows
        return Batch(
            np.array(ids, np.int32), np.array(positions, np.int32), np.array(seqs, np.int32), np.array(wants, np.bool_)
        )
