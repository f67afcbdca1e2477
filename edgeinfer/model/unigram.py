"""Unigram as SentencePiece does it (`tokenizer.ggml.model` = t5): the row of tokens with the best sum of scores.

Text is rewritten by the file's character map first, and spaces become U+2581. What has no token is unknown, runs of it
count once. Must not know special tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .charsmap import CharacterMap
from .merging import MARK, Memo, WordMemo, boundary, pieces_between
from .string_table import StringTable

__all__ = ["UnigramEncoder"]

_UNKNOWN_PENALTY = np.float32(10.0)  # how much worse than the worst token no token is
_TIE = 1e-6  # scores this close may change places by rounding, so that what stands before them matters


class UnigramEncoder:
    """Text -> ids."""

    def __init__(
        self,
        vocab: StringTable,
        scores: NDArray[np.float64],
        worst: float,
        unknown: int,
        charsmap: CharacterMap,
        *,
        add_space_prefix: bool,
        merge_spaces: bool,
    ) -> None:
        """`scores` is (n_vocab,), NaN for a token that text must not become; `worst` is the lowest of an ordinary one.

        `merge_spaces` makes every run of spaces one.
        """
        self._vocab = vocab
        self._scores: list[float] = scores.tolist()
        usable = np.isfinite(scores).tobytes()
        self._unknown = unknown
        self._unknown_score = float(np.float32(worst) - _UNKNOWN_PENALTY)
        self._charsmap = charsmap
        self._add_space_prefix = add_space_prefix
        self._merge_spaces = merge_spaces
        self._boundary = boundary(vocab)
        self._words = WordMemo(lambda word: self._best(word, 0.0))
        self._longest: dict[str, int] | None = None  # characters of the longest token, by its first two

        def find(text: str) -> int:
            index = vocab.find(text.encode())
            return index if index >= 0 and usable[index] else -1

        self._tokens = Memo(find)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text (no lone surrogates)."""
        ids: list[int] = []
        total = 0.0
        for word in pieces_between(self._normalized(text), self._boundary):
            best, scores, close = self._words[word]
            if close:
                best, scores, _ = self._best(word, total)
            for score in scores:
                total += score
            ids += best
        unknown = self._unknown
        return [i for at, i in enumerate(ids) if i != unknown or at == 0 or ids[at - 1] != unknown]

    def _normalized(self, text: str) -> str:
        text = self._charsmap.rewrite(text)
        if self._merge_spaces:
            return "".join(MARK + word for word in text.split(" ") if word)
        if self._add_space_prefix and (bare := text.lstrip(" ")):
            text = text[: len(text) - len(bare)] + " " + bare
        return text.replace(" ", MARK)

    def _lengths(self) -> dict[str, int]:
        if self._longest is None:
            self._longest = {}
            for index in range(len(self._vocab)):
                token = self._vocab[index].decode(errors="replace")
                for first in (token[:1], token[:2]):
                    if len(token) > self._longest.get(first, 0):
                        self._longest[first] = len(token)
        return self._longest

    def _best(self, word: str, before: float) -> tuple[list[int], list[float], bool]:
        """The ids of `word` with the best sum of scores, their scores, and whether another row came close.

        `before` is the sum of all that stands before the word: sums are rounded, and equal ones are told apart by it.
        """
        n = len(word)
        lengths, tokens, token_scores = self._lengths(), self._tokens, self._scores
        sums = [before, *[-np.inf] * n]
        steps: list[tuple[int, int, float]] = [(0, self._unknown, 0.0)] * (n + 1)  # where it starts, id, score
        close = False
        for at in range(n):
            here = sums[at]
            single = False
            for end in range(at + 1, min(n, at + lengths.get(word[at : at + 2], 1)) + 1):
                index = tokens[word[at:end]]
                if index < 0:
                    continue
                single = single or end == at + 1
                score = token_scores[index]
                ahead = here + score - sums[end]
                if -_TIE < ahead < _TIE:
                    close = True
                if here + score > sums[end]:
                    sums[end], steps[end] = here + score, (at, index, score)
            if not single:
                score = self._unknown_score
                if abs(here + score - sums[at + 1]) < _TIE:
                    close = True
                if here + score > sums[at + 1]:
                    sums[at + 1], steps[at + 1] = here + score, (at, self._unknown, score)
        ids, scores = [], []
        while n:
            n, index, score = steps[n]
            ids.append(index)
            scores.append(score)
        return ids[::-1], scores[::-1], close
