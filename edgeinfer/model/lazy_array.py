"""Metadata arrays that stay in the file until they are asked for. Must not know what a key means."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUMBER_TYPES", "STRING_TYPE", "LazyArray"]

# GGUF value type -> (name, struct code, bytes)
NUMBER_TYPES: dict[int, tuple[str, str, int]] = {
    0: ("uint8", "B", 1),
    1: ("int8", "b", 1),
    2: ("uint16", "H", 2),
    3: ("int16", "h", 2),
    4: ("uint32", "I", 4),
    5: ("int32", "i", 4),
    6: ("float32", "f", 4),
    7: ("bool", "?", 1),
    10: ("uint64", "Q", 8),
    11: ("int64", "q", 8),
    12: ("float64", "d", 8),
}
STRING_TYPE = 8


class LazyArray(Sequence[Any]):
    """An array of the metadata: its length is known, its elements are decoded on first use and then kept.

    `numpy()` gives numbers; `strings()` and `bytes_list()` decode all strings at once (262,144 in about 0.1 s).
    As a sequence it gives Python values: numbers, str, or LazyArray for nested arrays.
    """

    __slots__ = ("_cache", "_end", "_items", "_n", "_places", "_read", "_start", "_type", "kind")

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        type_id: int,
        n: int,
        start: int,
        end: int,
        items: tuple[LazyArray, ...] | None = None,
        places: array[int] | None = None,
    ) -> None:
        """`read(start, end)` gives bytes of the file; the lengths inside [start, end) have been checked already.

        `places` is where in the file each string's length stands, as far as that was noted; it serves the first use and is
        then dropped, since a vocabulary takes megabytes.
        """
        self.kind = "string" if type_id == STRING_TYPE else NUMBER_TYPES[type_id][0] if items is None else "array"
        self._type = type_id
        self._read = read
        self._n = n
        self._start = start
        self._end = end
        self._items = items
        self._places = places
        self._cache: Any = None

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        values = self._values()
        if isinstance(index, slice):
            picked = values[index]
            return picked.tolist() if isinstance(picked, np.ndarray) else list(picked)
        value = values[index]
        return value.item() if isinstance(value, np.generic) else value

    def __iter__(self) -> Iterator[Any]:
        values = self._values()
        return iter(values.tolist() if isinstance(values, np.ndarray) else values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyArray):
            return self.kind == other.kind and list(self) == list(other)
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LazyArray({self.kind}, {self._n} elements)"

    def numpy(self) -> NDArray[Any]:
        """The numbers as a read-only array (n,) of the stored type. Raises TypeError for strings and nested arrays."""
        if self.kind in ("string", "array"):
            raise TypeError(f"an array of {self.kind}s is not numeric")
        if self._cache is None:
            raw = self._read(self._start, self._end)
            if self.kind == "bool":  # any byte but 0 is true; NumPy would keep the byte
                self._cache = np.frombuffer(raw, np.uint8) != 0
            else:
                self._cache = np.frombuffer(raw, "<" + NUMBER_TYPES[self._type][1])
        return self._cache  # type: ignore[no-any-return]

    def strings(self, errors: str = "replace") -> list[str]:
        """All strings decoded from UTF-8; `errors` as in bytes.decode. The caller owns the list."""
        if self.kind != "string":
            raise TypeError(f"an array of {self.kind} holds no strings")
        raw, starts = self._split()
        joined, separator = _joined(raw, starts, b"\0\1\2\3\4\5\6\7")
        if joined is not None:
            try:
                return joined.decode().split(separator.decode())
            except UnicodeDecodeError:
                pass
        return [piece.decode(errors=errors) for piece in _split_strings(raw, starts)]

    def bytes_list(self) -> list[bytes]:
        """All strings as their exact bytes. The caller owns the list."""
        if self.kind != "string":
            raise TypeError(f"an array of {self.kind} holds no strings")
        return _split_strings(*self._split())

    def packed(self) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """All strings inside one bytes object, with where each starts and ends in it: (n,), (n,). Nothing is kept."""
        if self.kind != "string":
            raise TypeError(f"an array of {self.kind} holds no strings")
        raw, starts = self._split()
        return raw, starts, np.append(starts[1:] - 8, len(raw)) if len(starts) else starts

    def _values(self) -> Any:
        if self._items is not None:
            return self._items
        if self.kind != "string":
            return self.numpy()
        if self._cache is None:
            self._cache = self.strings()
        return self._cache

    def _split(self) -> tuple[bytes, NDArray[np.int64]]:
        """The raw bytes, and where each string's text starts in them (its u64 length stands before it)."""
        raw = self._read(self._start, self._end)
        places, self._places = self._places, None
        if places is not None:
            return raw, np.frombuffer(places, np.int64) + (8 - self._start) if self._n else np.zeros(0, np.int64)
        unpack, starts, pos = struct.Struct("<Q").unpack_from, array("q"), 0
        for _ in repeat(None, self._n):
            starts.append(pos + 8)
            pos += unpack(raw, pos)[0] + 8
        return raw, np.frombuffer(starts, np.int64) if self._n else np.zeros(0, np.int64)


def _split_strings(raw: bytes, starts: NDArray[np.int64]) -> list[bytes]:
    """The strings of an array's bytes, whose texts start at `starts`, each after its u64 length."""
    joined, separator = _joined(raw, starts, b"\xff\xfe\xfd\xfc\0\1\2\3")
    if joined is not None:
        return joined.split(separator)
    places = starts.tolist()
    ends = [*places[1:], len(raw) + 8]
    return [raw[start : end - 8] for start, end in zip(places, ends, strict=False)]  # no strings: one end too many


def _joined(raw: bytes, starts: NDArray[np.int64], candidates: bytes) -> tuple[bytes | None, bytes]:
    """All texts with one separator byte between them, for one fast split; None where no candidate is free.

    The eight bytes of each length are cut out, but for the last, which becomes the separator.
    """
    if not len(starts):
        return None, b""
    text = np.frombuffer(raw, np.uint8).copy()
    keep = np.ones(len(text), np.bool_)
    for back in range(2, 9):
        keep[starts - back] = False
    keep[7] = False
    inside = keep.copy()
    inside[starts - 1] = False
    used = np.bincount(text[inside], minlength=256)
    free = next((byte for byte in candidates if not used[byte]), None)
    if free is None:
        return None, b""
    text[starts - 1] = free
    return text[keep].tobytes(), bytes([free])
