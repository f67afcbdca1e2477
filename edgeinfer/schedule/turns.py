"""The turns of a conversation, and how many of the oldest must go for the rest to fit. Knows no policy and no engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ContextOverflowError, TemplateError

__all__ = ["PINNED", "Encode", "Summarise", "Turns"]

Encode = Callable[[list[dict[str, Any]]], list[int]]
Summarise = Callable[[list[dict[str, Any]], int], str]
PINNED = ("system", "developer")  # roles of messages that never go
_SUMMARY = "Summary of the earlier conversation, which no longer fits: "


class Turns:
    """The turns of a conversation, and how many of the oldest must go."""

    def __init__(self, messages: list[dict[str, Any]], encode: Encode, n_ctx: int, whole: list[int]) -> None:
        self.messages, self.encode, self.n_ctx, self.whole = messages, encode, n_ctx, whole
        self.turns: list[list[int]] = []  # places of the messages of each turn, oldest first, pinned ones in none
        for i, message in enumerate(messages):
            if message.get("role") in PINNED:
                continue
            if not self.turns or message.get("role") == "user":
                self.turns.append([])
            self.turns[-1].append(i)
        self._made: dict[int, list[int]] = {0: whole}

    def gone(self, n: int) -> tuple[int, ...]:
        """The messages of the n oldest turns."""
        return tuple(sorted(i for turn in self.turns[:n] for i in turn))

    def ids(self, n: int) -> list[int]:
        """The prompt without the n oldest turns."""
        if n not in self._made:
            gone = set(self.gone(n))
            self._made[n] = self.encode([m for i, m in enumerate(self.messages) if i not in gone])
        return self._made[n]

    def cut(self, room: int, summarise: Summarise | None = None) -> tuple[list[int], int, str]:
        """A prompt that leaves `room` tokens free if that can be had, how many turns are not in it, and their summary.

        It may still be too long: then nothing more can go.
        """
        if len(self.whole) + room <= self.n_ctx:
            return self.whole, 0, ""
        n_summary = max(16, self.n_ctx // 8) if summarise is not None else 0
        n = self._fewest(room + n_summary)
        if summarise is not None and n:
            ids, summary = self._with_summary(n, summarise, n_summary, room)
            return ids, n, summary
        return self.ids(n), n, ""

    def _fewest(self, room: int) -> int:
        """How many of the oldest turns go, the last one never; the cut is one of a few places that stay the same while
        the conversation grows, where one of them will do."""
        last = len(self.turns) - 1
        if last < 1:
            return 0
        sizes = (sum(len(str(self.messages[i].get("content", ""))) for i in turn) for turn in self.turns)
        total = [0, *itertools.accumulate(sizes)]
        fine = max(1, self.n_ctx // 4)  # characters: a token is four of them, or one
        for step in (4 * fine, fine, 0):
            places = [n for n in range(1, last + 1) if not step or total[n - 1] // step != total[n] // step]
            low, high = 0, len(places)  # the first place that will do, by halving: a prompt without more is not longer
            while low < high:
                middle = (low + high) // 2
                if len(self.ids(places[middle])) + room <= self.n_ctx:
                    high = middle
                else:
                    low = middle + 1
            if low < len(places):
                return places[low]
        return last

    def _with_summary(self, n: int, summarise: Summarise, n_summary: int, room: int) -> tuple[list[int], str]:
        """The prompt with a summary of the n oldest turns; without one where there is no room for it, or it is empty."""
        gone = set(self.gone(n))
        plain = self.ids(n)
        if len(plain) >= self.n_ctx:
            return plain, ""
        try:
            summary = summarise([self.messages[i] for i in sorted(gone)], n_summary).strip()
        except ContextOverflowError:  # a context that does not even hold the request for a summary
            return plain, ""
        for messages in self._carrying(_SUMMARY + summary, gone) if summary else ():
            try:
                ids = self.encode(messages)
            except TemplateError:
                continue
            # a summary is not worth the room that the answer would have without it
            if len(ids) > len(plain) and len(ids) + min(room, self.n_ctx - len(plain)) <= self.n_ctx:
                return ids, summary
        return plain, ""

    def _carrying(self, text: str, gone: set[int]) -> Iterator[list[dict[str, Any]]]:
        """The messages that are left with a text: in the system message, else in front of the first user message."""
        kept = [dict(m) for i, m in enumerate(self.messages) if i not in gone]
        if kept and kept[0].get("role") in PINNED:
            yield [{**kept[0], "content": f"{kept[0].get('content', '')}\n\n{text}"}, *kept[1:]]
        else:
            yield [{"role": "system", "content": text}, *kept]
        for i, message in enumerate(kept):  # for templates that know no system message
            if message.get("role") == "user":
                yield [*kept[:i], {**message, "content": f"{text}\n\n{message.get('content', '')}"}, *kept[i + 1 :]]
                return
