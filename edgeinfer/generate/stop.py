"""Stop strings over token borders. Sees pieces of text; knows no token."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Lets text through until one of the stop strings is complete; text that may become one is held back.

    The stop string that is complete first ends the text, the longest of those that end at one place. So what comes out
    does not depend on how the text was cut into pieces.

    >>> stops = StopStrings(["EFGHIJ"])
    >>> [stops.push(piece) for piece in ("D", "EF", "GHI", "J")], stops.matched
    (['D', '', '', ''], 'EFGHIJ')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)  # an empty string would stop everything: ignored
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece; return what can be shown. Once `matched` is set, everything later is swallowed."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        found: tuple[int, int] | None = None  # (end, start) of the match that ends first, the longest of those
        for stop in self._stops:
            start = held.find(stop)
            if start >= 0 and (found is None or (start + len(stop), start) < found):
                found = (start + len(stop), start)
        if found is not None:
            end, start = found
            self.matched = held[start:end]
            self._held = ""
            return held[:start]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text has ended: return what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of text are a start of stop."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
