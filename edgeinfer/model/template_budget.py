"""What one rendering of a chat template may use: time, and characters made. Must not know how templates run."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

import jinja2
from jinja2.utils import Namespace

__all__ = ["Budget", "LimitError"]

_VALUE_LIMIT = 4 << 20  # characters or elements of one value, beside four times what the caller passed in
_TOTAL_LIMIT = 64 << 20  # of all values made, beside 256 times what the caller passed in
_BITS_LIMIT = 1 << 14  # of a whole number


class LimitError(jinja2.TemplateRuntimeError):
    """A template asked for more time or memory than it may have."""


class Budget:
    """What one rendering may still use."""

    def __init__(self, seconds: float, n_input: int) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._value_limit = _VALUE_LIMIT + 4 * n_input
        self._left = _TOTAL_LIMIT + 256 * n_input

    def tick(self) -> None:
        """Look at the clock."""
        if time.monotonic() > self._deadline:
            raise LimitError(f"it ran for more than {self._seconds:g} seconds")

    def allow(self, size: int) -> None:
        """Refuse a value of `size` characters or elements that is about to be made."""
        if size > self._value_limit:
            raise LimitError(f"it makes a value of more than {self._value_limit} characters or elements")

    def allow_bits(self, bits: int) -> None:
        """Refuse a whole number of so many bits, whose arithmetic would take too long."""
        if bits > _BITS_LIMIT:
            raise LimitError(f"it makes a number of more than {_BITS_LIMIT} bits")

    def charge(self, value: Any) -> None:
        """Count a value that was made."""
        if isinstance(value, int):
            self.allow_bits(value.bit_length())
        if isinstance(value, (str, bytes, list, tuple, dict)):
            self.allow(len(value))
            self._left -= len(value)
            if self._left < 0:
                raise LimitError("it makes too many large values")

    def measure(self, *values: Any) -> int:
        """About how many characters the values have as text; refuses what is over the limit."""
        total, stack = 0, list(values)
        while stack:
            value = stack.pop()
            total += 4
            if isinstance(value, (str, bytes)):
                total += len(value)
            elif isinstance(value, int):
                total += value.bit_length() // 3
            elif isinstance(value, Mapping):
                stack += [*value.keys(), *value.values()]
            elif isinstance(value, (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)):
                stack += value
            elif isinstance(value, Namespace):
                stack.append(getattr(value, "_Namespace__attrs", None))
            if total > self._value_limit:
                self.allow(total)
        return total
