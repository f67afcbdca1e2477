"""DRY ("don't repeat yourself"): tokens that would go on repeating what was said before lose part of their logit.

After p-e-w's proposal (text-generation-webui #5677) as llama.cpp has it: a sequence counts up to the nearest breaker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .params import SamplingParams

__all__ = ["Breakers", "Dry", "find_breakers"]

_MOST_BYTES, _MOST_TAIL = 40, 20  # of a breaker: its bytes, and the tokens behind its first
_LOG_MAX = 88.7228391  # ln of the largest float32: the penalty is cut there, as in llama.cpp

# the token that a breaker begins in -> what tokens must follow for it to be whole: () where it lies in that one token
Breakers = Mapping[int, Sequence[tuple[int, ...]]]


def find_breakers(
    texts: Iterable[str], pieces: Sequence[bytes], encode: Callable[[str], list[int]]
) -> dict[int, list[tuple[int, ...]]]:
    """Where the texts can begin in a vocabulary, whose tokens add `pieces` to a text.

    A breaker of several characters may begin at the end of one token and go on in others: their ids are those of the
    rest of it by itself.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        whole = text.encode("utf-8", "replace")[:_MOST_BYTES]
        tails = {}
        for n in range(1, len(whole)):
            rest = whole[n:].decode("utf-8", "ignore")
            if rest.encode() == whole[n:]:  # cut between characters
                tails[whole[:n]] = tuple(encode(rest)[:_MOST_TAIL])
        for token, piece in enumerate(pieces):
            if whole in piece:
                _add(found, token, ())
            elif tails and piece[-1:] in whole:
                for head, tail in tails.items():
                    if piece.endswith(head):
                        _add(found, token, tail)
    return found


def _add(found: dict[int, list[tuple[int, ...]]], token: int, tail: tuple[int, ...]) -> None:
    known = found.setdefault(token, [])
    if tail not in known:
        known.append(tail)


class Dry:
    """The tokens so far, as far back as DRY looks, and what they cost."""

    def __init__(self, params: SamplingParams, n_vocab: int, breakers: Breakers, history: Iterable[int] = ()) -> None:
        self._multiplier, self._base = params.dry_multiplier, params.dry_base
        self._allowed = params.dry_allowed_length
        most = 0 if self._base <= 1.000001 else int(_LOG_MAX / math.log(self._base))
        self._longest = self._allowed + most  # longer repetitions cost no more
        self._most = most
        self._breakers = breakers
        self._is_head = np.zeros(n_vocab, np.bool_)
        self._is_head[[token for token in breakers if token < n_vocab]] = True
        self._back = params.dry_penalty_last_n
        tokens = list(history)
        if self._back >= 0:
            tokens = tokens[-self._back :] if self._back else []
        self._tokens = np.zeros(max(1024, 2 * len(tokens)), np.int64)
        self._tokens[: len(tokens)] = tokens
        self._n = len(tokens)

    def accept(self, token: int) -> None:
        """Note that a token became part of the text."""
        if self._n == len(self._tokens):
            kept = self._seen() if 0 <= self._back < self._n // 2 else self._tokens[: self._n]
            grown = np.zeros(max(1024, 2 * len(kept)), np.int64)
            grown[: len(kept)] = kept
            self._tokens, self._n = grown, len(kept)
        self._tokens[self._n] = token
        self._n += 1

    def _seen(self) -> NDArray[np.int64]:
        first = 0 if self._back < 0 else max(0, self._n - self._back)
        return self._tokens[first : self._n]

    def penalties(self) -> dict[int, float]:
        """What is to be taken from the logit of which token."""
        seen = self._seen()
        if len(seen) <= self._allowed:
            return {}
        limit = min(self._since_breaker(seen), self._longest)
        if limit < self._allowed:
            return {}
        last = len(seen) - 1
        ends = np.flatnonzero(seen[:last] == seen[last])  # where the last `length` tokens stand before, too
        lengths: dict[int, int] = {}
        length = 1
        while len(ends):
            if length >= self._allowed:
                lengths.update(dict.fromkeys(seen[ends + 1].tolist(), length))
            if length == limit:
                break
            ends = ends[ends >= length]
            ends = ends[seen[ends - length] == seen[last - length]]
            length += 1
        return {
            token: self._multiplier * self._base ** min(length - self._allowed, self._most or length)
            for token, length in lengths.items()
            if () not in self._breakers.get(token, ())
        }

    def _since_breaker(self, seen: NDArray[np.int64]) -> int:
        """How many tokens lie behind the nearest whole breaker; all of them if there is none."""
        n = len(seen)
        for place in np.flatnonzero(self._is_head[seen])[::-1].tolist():
            whole = [
                len(tail)
                for tail in self._breakers[int(seen[place])]
                if len(tail) < n - place and tuple(seen[place + 1 : place + 1 + len(tail)].tolist()) == tail
            ]
            if whole:
                return int(n - 1 - place - max(whole))
        return n
