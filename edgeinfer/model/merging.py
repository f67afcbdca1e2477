"""Merge neighbours by rank: the loop that byte pair encoding and SentencePiece share. Must not know a vocabulary."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeVar

import numpy as np

from .string_table import StringTable

__all__ = ["MARK", "Memo", "WordMemo", "boundary", "merge", "pieces_between"]

MARK = "\u2581"  # stands for a space inside tokens
_LEFT = (1 << 32) - 1
_T = TypeVar("_T")


class Memo(dict[str, _T]):
    """What `find` answers for a string, remembered for the last 65,536 strings or so, or as many as `most` says."""

    most, longest = 1 << 16, sys.maxsize

    def __init__(self, find: Callable[[str], _T]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, string: str) -> _T:
        found = self._find(string)
        if len(string) <= self.longest:
            if len(self) >= self.most:
                self.clear()
            self[string] = found
        return found


class WordMemo(Memo[_T]):
    """The same for words: longer ones seldom come again, and what is made of them takes more memory."""

    most, longest = 1 << 15, 48


def merge(text: str, ranks: Mapping[str, int], joint: str = "") -> list[str]:
    """Merge the characters of `text`, lowest rank first and leftmost among equals, until no pair has a rank.

    `ranks[left + joint + right]` is the rank of a pair, -1 when it is none. Takes O(n log n) for n characters.
    """
    symbols = list(text)
    n = len(symbols)
    if n == 1:
        return symbols
    # of each symbol with the one after it
    rank_at = [ranks[left + joint + right] for left, right in pairwise(symbols)]
    queue = [rank << 32 | at for at, rank in enumerate(rank_at) if rank >= 0]
    if not queue:
        return symbols
    rank_at.append(-1)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    heapify(queue)
    while queue:
        entry = heappop(queue)
        left = entry & _LEFT
        if rank_at[left] != entry >> 32:  # one of the two has been merged since
            continue
        right = after[left]
        symbol = symbols[left] = symbols[left] + symbols[right]
        symbols[right] = ""
        rank_at[right] = rank_at[left] = -1
        follower = after[left] = after[right]
        if follower < n:
            before[follower] = left
            rank = ranks[symbol + joint + symbols[follower]]
            if rank >= 0:
                rank_at[left] = rank
                heappush(queue, rank << 32 | left)
        leader = before[left]
        if leader >= 0:
            rank = rank_at[leader] = ranks[symbols[leader] + joint + symbol]
            if rank >= 0:
                heappush(queue, rank << 32 | leader)
    return [symbol for symbol in symbols if symbol]


def boundary(strings: StringTable, *, joint: str = "") -> re.Pattern[str] | None:
    """Matches a character after which text can be cut before a space mark: no string holds the two side by side.

    Merges cannot cross such a place, so that words can be encoded one by one and remembered. `joint` is what stands in
    the strings between the two sides of a merge. None when a string that is not UTF-8 hides what precedes the mark.
    """
    blob = np.frombuffer(strings.blob, np.uint8)
    mark = MARK.encode()
    at = np.flatnonzero((blob[:-2] == mark[0]) & (blob[1:-1] == mark[1]) & (blob[2:] == mark[2]))
    starts, ends = strings.places()
    owners = np.searchsorted(starts, at, side="right") - 1
    inside = (owners >= 0) & (at > starts[owners]) & (at < ends[owners])
    joined = {MARK}
    for owner in np.unique(owners[inside]).tolist():
        try:
            string = strings[owner].decode()
        except UnicodeDecodeError:
            return None
        string = string[0] + string[1:].replace(joint, "", 1) if joint else string
        joined.update(match[0] for match in re.finditer(f".(?={MARK})", string, re.DOTALL))
    return re.compile(f"[^{re.escape(''.join(sorted(joined)))}](?={MARK})", re.DOTALL)


def pieces_between(text: str, cut: re.Pattern[str] | None) -> Iterator[str]:
    """The parts of `text`, cut after each match of `cut`."""
    start = 0
    if cut is not None:
        for match in cut.finditer(text):
            yield text[start : match.end()]
            start = match.end()
    if start < len(text):
        yield text[start:]
