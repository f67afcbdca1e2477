"""Summaries of turns that no longer fit, written by the model itself and remembered. Knows no engine.

summary = Summary(ask)       ask(messages, max_tokens) -> text: a plain chat at temperature 0
fit(..., policy="summarise", summarise=summary)
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Summary"]

_ASK = (
    "Summarise the following conversation in a few short sentences. Keep names, numbers, decisions and open questions. "
    "Write only the summary.\n\n"
)
_MOST_REMEMBERED = 32


class Summary:
    """Summarises growing beginnings of conversations; each part is read once. Safe to use from several threads."""

    def __init__(self, ask: Callable[[list[dict[str, Any]], int], str], n_ctx: int) -> None:
        """`ask` answers messages with at most so many tokens; n_ctx bounds how much text it is given at once."""
        self._ask = ask
        self._most_chars = max(
            64, n_ctx
        )  # about a quarter of the context: a character may be a token, mostly it is less
        self._known: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, messages: Sequence[Mapping[str, Any]], n_tokens: int) -> str:
        """A summary of at most n_tokens tokens. What was summarised before, as the beginning of these, is not read again."""
        lines = [f"{m.get('role', '')}: {m.get('content') or ''}" for m in messages]
        keys = self._keys(lines, n_tokens)
        with self._lock:
            done = next((n for n in range(len(lines), 0, -1) if keys[n] in self._known), 0)
            text = self._known[keys[done]] if done else ""
            if done:
                self._known.move_to_end(keys[done])
        part: list[str] = []
        for n in range(done, len(lines)):
            part.append(_middle_out(lines[n], self._most_chars))
            ahead = len(lines[n + 1]) if n + 1 < len(lines) else 0
            if n + 1 == len(lines) or sum(map(len, part)) + ahead > self._most_chars:
                said = [f"Summary so far: {text}", *part] if text else part
                text = self._ask([{"role": "user", "content": _ASK + "\n".join(said)}], n_tokens).strip()
                part = []
        with self._lock:
            self._known[keys[len(lines)]] = text
            while len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
        return text

    def _keys(self, lines: list[str], n_tokens: int) -> list[str]:
        """A name for each beginning of the lines."""
        digest = hashlib.sha256(str(n_tokens).encode())
        keys = [""]
        for line in lines:
            digest.update(json.dumps(line).encode())
            keys.append(digest.hexdigest())
        return keys


def _middle_out(text: str, most: int) -> str:
    """A text cut in its middle to at most so many characters."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
