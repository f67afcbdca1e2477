"""SentencePiece encoding with score-ranked merges and byte fallback (`tokenizer.ggml.model` = llama).

The best-scored pair of neighbours that is a token together is merged, leftmost among equals, until there is none.
Must not know special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .string_table import StringTable

__all__ = ["SPACE", "ScoreEncoder"]

SPACE = "\u2581"  # stands for a space inside tokens
_MEMO = 1 << 15
_MEMO_LENGTH = 48  # longer words seldom come again


class ScoreEncoder:
    """Text -> ids. `allowed(id)` says whether text may become that token: control tokens must not."""

    def __init__(
        self, vocab: StringTable, scores: NDArray[np.float32], unknown: int | None, allowed: Callable[[int], bool]
    ) -> None:
        """`scores` is (n_vocab,), higher is merged earlier; `unknown` is for bytes that have no token."""
        self._vocab = vocab
        self._scores = scores
        self._unknown = unknown
        self._allowed = allowed
        self._pairs: dict[str, tuple[float, int]] = {}  # text -> negative score, id (-1: no token)
        self._words: dict[str, list[int]] = {}
        self._boundary = _boundary(vocab)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text (no lone surrogates). Spaces become tokens' space mark; no prefix is added."""
        ids: list[int] = []
        text = text.replace(" ", SPACE)
        start = 0
        cuts = [match.end() for match in self._boundary.finditer(text)] if self._boundary else []
        for end in [*cuts, len(text)]:
            word = text[start:end]
            start = end
            found = self._words.get(word)
            if found is None:
                found = self._word(word)
                if len(word) <= _MEMO_LENGTH:
                    if len(self._words) >= _MEMO:
                        self._words.clear()
                    self._words[word] = found
            ids += found
        return ids

    def _find(self, text: str) -> tuple[float, int]:
        """Negative score and id of a token, (0, -1) when `text` is none."""
        pair = self._pairs.get(text)
        if pair is None:
            index = self._vocab.find(text.encode())
            pair = (-float(self._scores[index]), index) if index >= 0 and self._allowed(index) else (0.0, -1)
            if len(self._pairs) >= _MEMO:
                self._pairs.clear()
            self._pairs[text] = pair
        return pair

    def _word(self, word: str) -> list[int]:
        find = self._find
        symbols = list(word)
        n = len(symbols)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        queue = []
        for left in range(n - 1):
            cost, index = find(symbols[left] + symbols[left + 1])
            if index >= 0:
                queue.append((cost, left, left + 1, 2))
        heapify(queue)
        while queue:
            _, left, right, size = heappop(queue)
            # stale when either side has been merged since
            if after[left] != right or not symbols[left] or len(symbols[left]) + len(symbols[right]) != size:
                continue
            text = symbols[left] = symbols[left] + symbols[right]
            symbols[right] = ""
            follower = after[left] = after[right]
            if follower < n:
                before[follower] = left
                cost, index = find(text + symbols[follower])
                if index >= 0:
                    heappush(queue, (cost, left, follower, size + len(symbols[follower])))
            if (leader := before[left]) >= 0:
                cost, index = find(symbols[leader] + text)
                if index >= 0:
                    heappush(queue, (cost, leader, left, size + len(symbols[leader])))
        ids: list[int] = []
        for symbol in symbols:
            if symbol:
                index = find(symbol)[1]
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


def _boundary(vocab: StringTable) -> re.Pattern[str] | None:
    """Matches a character after which text can be cut before a space mark: no token holds the two side by side.

    Merges cannot cross such a place, so that words can be encoded one by one and remembered. None when a token that is
    not UTF-8 hides which characters precede the mark.
    """
    blob = np.frombuffer(vocab.blob, np.uint8)
    mark = SPACE.encode()
    at = np.flatnonzero((blob[:-2] == mark[0]) & (blob[1:-1] == mark[1]) & (blob[2:] == mark[2]))
    starts, ends = vocab.places()
    owners = np.searchsorted(starts, at, side="right") - 1
    inside = (owners >= 0) & (at > starts[owners]) & (at < ends[owners])
    joined = {SPACE}
    for owner in np.unique(owners[inside]).tolist():
        try:
            token = vocab[owner].decode()
        except UnicodeDecodeError:
            return None
        joined.update(match[0] for match in re.finditer(f".(?={SPACE})", token, re.DOTALL))
    return re.compile(f"[^{re.escape(''.join(sorted(joined)))}](?={SPACE})", re.DOTALL)
