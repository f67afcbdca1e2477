"""What one rendering of a chat template may use: time, and memory made. Must not know how templates run.

Every value that a template makes is counted here before or when it is made, and no single operation can take long on
values of the size that is allowed; so it is enough to look at the clock between operations.
"""

from __future__ import annotations

import sys
import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

import jinja2
from jinja2.utils import Namespace

__all__ = ["Budget", "LimitError"]

_VALUE_LIMIT = 1 << 20  # characters and elements of one value, beside four times what the caller passed in
_TOTAL_LIMIT = 64 << 20  # bytes of all values made, beside 256 times the characters that the caller passed in
_BITS_LIMIT = 1 << 14  # of a whole number
_DEPTH_LIMIT = 200  # of lists in lists: some C code walks them on its own stack
_OPERATION = 64  # bytes that an operation is counted as, whatever it makes
_ELEMENT = 40  # bytes of an element of a list, beside its place in the list
_SECONDS_PER_CHARACTER = 1e-5  # of input, beside the fixed time: some honest templates are quadratic, some boards slow
_LOOK_EVERY_S = 0.01  # at the thread's own clock, which is dear to read


class LimitError(jinja2.TemplateRuntimeError):
    """A template asked for more time or memory than it may have."""


class Budget:
    """What one rendering may still use. Time is that of the thread's own work, so a busy machine changes nothing."""

    def __init__(self, seconds: float, n_input: int) -> None:
        """`n_input` is the number of characters that the caller passed in: long conversations may take longer."""
        self._seconds = seconds + n_input * _SECONDS_PER_CHARACTER
        self._deadline = time.thread_time() + self._seconds
        self._next_look = 0.0
        self._value_limit = _VALUE_LIMIT + 4 * n_input
        self._left = _TOTAL_LIMIT + 256 * n_input
        # what containers hold: id -> (the container, kept so that its id stays its own; size; depth)
        self._known: dict[int, tuple[Any, int, int]] = {}

    def tick(self) -> None:
        """Note an operation, and look at the clock."""
        self._left -= _OPERATION
        if self._left < 0 or time.perf_counter() > self._next_look:
            self._spend(0)
            if time.thread_time() > self._deadline:
                raise LimitError(f"it ran for more than {self._seconds:.3g} seconds")
            self._next_look = time.perf_counter() + _LOOK_EVERY_S

    def _spend(self, n_bytes: int) -> None:
        self._left -= n_bytes
        if self._left < 0:
            raise LimitError("it makes too many values, or too large ones")

    def allow(self, size: int) -> None:
        """Refuse a value of `size` characters or elements that is about to be made."""
        if size > self._value_limit:
            raise LimitError(f"it makes a value of more than {self._value_limit} characters or elements")

    def allow_work(self, n: int) -> None:
        """Refuse an operation of n steps that could not be interrupted."""
        if n > 50 * _VALUE_LIMIT:
            raise LimitError("it asks for an operation that would take too long")

    def allow_bits(self, bits: int) -> None:
        """Refuse a whole number of so many bits, whose arithmetic would take too long."""
        if bits > _BITS_LIMIT:
            raise LimitError(f"it makes a number of more than {_BITS_LIMIT} bits")

    def charge(self, value: Any) -> None:
        """Count a value that was made."""
        kind = type(value)
        if kind is str or isinstance(value, (str, bytes)):
            self.allow(len(value))
            self._spend(sys.getsizeof(value))
        elif kind is int:
            self.allow_bits(value.bit_length())
        elif isinstance(value, (list, tuple, dict)):
            self.allow(len(value))
            self._spend(sys.getsizeof(value) + _ELEMENT * len(value))
            self.size(value)

    def size(self, value: Any) -> int:
        """About how many characters a value has as text, with all that is in it; refuses what is over the limit."""
        return self._size(value)[0]

    def _size(self, value: Any) -> tuple[int, int]:
        """Size, and depth of nesting. What is shared counts each time, as it would be written each time."""
        if value is None or isinstance(value, (bool, float)):
            return 8, 0
        if isinstance(value, str):
            return 4 + len(value), 0
        if isinstance(value, int):
            return 4 + value.bit_length() // 3, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        if isinstance(value, Mapping):
            parts: Any = (part for pair in value.items() for part in pair)
        elif isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)):
            parts = value
        elif isinstance(value, Namespace):
            raise LimitError("it writes a namespace, or puts one into a list")
        else:
            return 64, 0  # a macro, a loop, an iterator: nothing that is written at length
        size, depth = 8, 0
        for part in parts:
            part_size, part_depth = self._size(part)
            size, depth = size + part_size, max(depth, part_depth)
            if size > self._value_limit:
                self.allow(size)
        if depth >= _DEPTH_LIMIT:
            raise LimitError(f"it nests lists more than {_DEPTH_LIMIT} deep")
        self._known[id(value)] = (value, size, depth + 1)
        return size, depth + 1
