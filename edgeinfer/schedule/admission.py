"""Who comes in next: the line of waiting requests, and the ledger of pages that running ones have reserved.

A request's place in line is a time: when it was accepted, later by `aging_s` for each step down in priority. So a voice
is served before the background, and a background request that has waited long enough before a new voice. Nobody is
passed over because a smaller request would fit. Knows no engine: pages are numbers here.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import BusyError, SettingError

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["PRIORITIES", "Ledger", "Line", "level_of"]

PRIORITIES = ("voice", "interactive", "background")


def level_of(priority: str) -> int:
    """0 for the priority that is served first. Raises SettingError for one that is not known."""
    if priority not in PRIORITIES:
        raise SettingError(f"priority is {priority!r}; wanted one of {', '.join(PRIORITIES)}")
    return PRIORITIES.index(priority)


def _place(stream: Stream) -> tuple[float, int]:
    return stream.place


class Line:
    """Requests that wait, in the order in which they come in."""

    def __init__(self, max_queue: int, aging_s: float) -> None:
        self.max_queue, self.aging_s = max_queue, aging_s
        self._streams: list[Stream] = []
        self._numbers = itertools.count()  # among equals, who came first
        self.n_refused = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams)

    def join(self, stream: Stream, n_free: int, retry_after_s: Callable[[], float]) -> None:
        """Let a new request wait. Raises BusyError when as many wait as may, beyond the n_free that can start at once."""
        if len(self._streams) >= self.max_queue + max(0, n_free):
            self.n_refused += 1
            seconds = retry_after_s()
            raise BusyError(
                f"the model is busy: {self.max_queue} requests wait for their turn, as many as may (max_queue); "
                f"try again in about {seconds:.0f} s",
                retry_after_s=seconds,
            )
        stream.place = (stream.run.accepted + stream.level * self.aging_s, next(self._numbers))
        insort(self._streams, stream, key=_place)

    def back(self, stream: Stream) -> None:
        """Put a request back at its place; there is no limit for one that was in already."""
        insort(self._streams, stream, key=_place)

    @property
    def head(self) -> Stream | None:
        """The next request to come in."""
        return self._streams[0] if self._streams else None

    def leave(self, stream: Stream) -> None:
        """Take a request out of the line."""
        self._streams.remove(stream)


class Ledger:
    """Pages reserved for the streams that are in. What is reserved can always be had: all else in the pool may go.

    A stream reserves its prompt and MARGIN pages of answer, and more as its answer grows. Pages that streams share count
    for each of them, which errs on the safe side.
    """

    MARGIN = 2

    def __init__(self, page_size: int, n_pages: int | None) -> None:
        self.page_size = page_size
        self.n_pages = n_pages  # None: the engine sets no limit
        self.reserved = 0

    def pages(self, n_tokens: int) -> int:
        """Pages that n tokens lie on."""
        return -(-n_tokens // self.page_size)

    def admit(self, stream: Stream) -> bool:
        """Reserve what a stream needs to come in; False when there is not so much."""
        wanted = min(self.pages(len(stream.tokens)) + self.MARGIN, self.pages(stream.n_longest))
        if self.n_pages is not None and self.reserved + wanted > self.n_pages:
            return False
        stream.reserved = wanted
        self.reserved += wanted
        return True

    def grow(self, stream: Stream) -> bool:
        """Make sure that the stream's next token has a page; False when there is none to reserve."""
        needed = self.pages(len(stream.tokens))
        if needed <= stream.reserved:
            return True
        wanted = min(needed + self.MARGIN - 1, self.pages(stream.n_longest))
        for total in (wanted, needed):
            if self.n_pages is None or self.reserved + total - stream.reserved <= self.n_pages:
                self.reserved += total - stream.reserved
                stream.reserved = total
                return True
        return False

    def free(self, stream: Stream) -> None:
        """Take a stream's reservation back."""
        self.reserved -= stream.reserved
        stream.reserved = 0
