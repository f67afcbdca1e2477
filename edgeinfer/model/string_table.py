"""Many short byte strings in three arrays, found by content or number without a Python object for each.

A vocabulary of 262,144 tokens takes 9 MB and 0.15 s this way; a list and a dict of str take 45 MB. Must not know what a
string means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["StringTable"]

_CHUNK = 1 << 14


def _view(array: NDArray[np.uint32]) -> memoryview:
    return memoryview(array)  # type: ignore[arg-type]  # typeshed does not see NumPy's buffers before Python 3.12


class StringTable:
    """Strings by number, and numbers by string. Where a string occurs twice, the first or the last number wins."""

    def __init__(
        self, blob: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], *, last_wins: bool = False
    ) -> None:
        """String i is blob[starts[i]:ends[i]]; starts and ends are (n,)."""
        n = len(starts)
        self.blob = blob
        self._mask = (1 << max(n - 1, 0).bit_length()) - 1
        buckets = np.empty(n, np.uint32)
        for at in range(0, n, _CHUNK):  # in chunks, so that few Python ints live at a time
            pairs = zip(starts[at : at + _CHUNK].tolist(), ends[at : at + _CHUNK].tolist(), strict=True)
            buckets[at : at + _CHUNK] = [crc32(blob[start:end]) for start, end in pairs]
        buckets &= np.uint32(self._mask)
        # strings sorted by bucket, and where each bucket begins
        order = np.argsort(buckets, kind="stable").astype(np.uint32)
        firsts = np.zeros(self._mask + 2, np.uint32)
        np.cumsum(np.bincount(buckets, minlength=self._mask + 1), out=firsts[1:])
        self._step = -1 if last_wins else 1
        # memoryviews give Python ints three times as fast as arrays do
        self._order, self._firsts = _view(order), _view(firsts)
        self._starts, self._ends = _view(starts.astype(np.uint32)), _view(ends.astype(np.uint32))

    @classmethod
    def of(cls, strings: Any, *, last_wins: bool = False) -> StringTable:
        """A table of a metadata array of strings (LazyArray), or of any iterable of str or bytes."""
        if hasattr(strings, "packed"):
            return cls(*strings.packed(), last_wins=last_wins)
        return cls.of_bytes((s.encode() if isinstance(s, str) else s for s in strings), last_wins=last_wins)

    @classmethod
    def of_bytes(cls, strings: Iterable[bytes], *, last_wins: bool = False) -> StringTable:
        """A table of byte strings."""
        listed = list(strings)
        ends = np.cumsum([len(s) for s in listed], dtype=np.int64) if listed else np.zeros(0, np.int64)
        starts = np.append(0, ends[:-1]).astype(np.int64)[: len(listed)]
        return cls(b"".join(listed), starts, ends, last_wins=last_wins)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> bytes:
        return self.blob[self._starts[index] : self._ends[index]]

    def find(self, string: bytes) -> int:
        """The number of `string`, -1 when it is not in the table. An empty string is never found."""
        if not string:
            return -1
        bucket = crc32(string) & self._mask
        starts, ends, blob, n = self._starts, self._ends, self.blob, len(string)
        for at in range(self._firsts[bucket], self._firsts[bucket + 1])[:: self._step]:
            index = self._order[at]
            start = starts[index]
            if ends[index] - start == n and blob.startswith(string, start):
                return index
        return -1

    def places(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Where each string starts and ends in the blob: (n,), (n,)."""
        return np.asarray(self._starts), np.asarray(self._ends)
