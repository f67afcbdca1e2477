"""SentencePiece encoding with score-ranked merges and byte fallback (`tokenizer.ggml.model` = llama).

The best-scored pair of neighbours that is a token together is merged, leftmost among equals, until there is none.
Must not know special tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .merging import MARK, Memo, WordMemo, boundary, merge, pieces_between
from .string_table import StringTable

__all__ = ["ScoreEncoder"]


class ScoreEncoder:
    """Text -> ids. `allowed(id)` says whether text may become that token: control tokens must not."""

    def __init__(
        self, vocab: StringTable, scores: NDArray[np.float32], unknown: int | None, allowed: Callable[[int], bool]
    ) -> None:
        """`scores` is (n_vocab,), higher is merged earlier; `unknown` is for bytes that have no token."""
        self._vocab = vocab
        # the place of each token among all, best score first; equal scores share one
        self._places = np.unique(-scores, return_inverse=True)[1].astype(np.int32)
        self._unknown = unknown
        self._allowed = allowed
        self._ranks = Memo(self._place)
        self._words = WordMemo(self._word)
        self._boundary = boundary(vocab)

    def encode(self, text: str, prefix: bool) -> list[int]:
        """The ids of plain text (no lone surrogates), with one more space before it where `prefix`."""
        ids: list[int] = []
        text = (" " + text if prefix else text).replace(" ", MARK)
        for word in pieces_between(text, self._boundary):
            ids += self._words[word]
        return ids

    def _find(self, text: str) -> int:
        index = self._vocab.find(text.encode())
        return index if index >= 0 and self._allowed(index) else -1

    def _place(self, text: str) -> int:
        index = self._find(text)
        return int(self._places[index]) if index >= 0 else -1

    def _word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in merge(word, self._ranks):
            index = self._find(symbol)
            ids += [index] if index >= 0 else self._bytes(symbol)
        return ids

    def _bytes(self, symbol: str) -> list[int]:
        """The byte tokens of a character that is no token."""
        ids = []
        for byte in symbol.encode():
            index = self._vocab.find(b"<0x%02X>" % byte)
            if index < 0:
                index = self._vocab.find(bytes([byte]))
            if index >= 0:
                ids.append(index)
            elif self._unknown is not None:
                return [self._unknown]
        return ids
