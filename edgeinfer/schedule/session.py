"""What stays in the KV cache when an answer has ended, and how the next prompt takes it up.

A session is a sequence of the engine and the tokens that it holds. When its answer has ended it is kept, idle, so that
the conversation goes on from its very last token; its whole pages are in the prefix cache too, where any prompt finds
them. Idle sessions and cached pages give way as soon as a running stream needs their pages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..engine.types import Engine
from ..errors import EdgeInferError

__all__ = ["NoPrefixCache", "PrefixCache", "PrefixMatch", "Session", "Sessions"]

_TAIL = 64  # tokens of an idle session that are given up rather than copied when a prompt parts from it
_WORTH = 8  # tokens that are worth copying a page for; fewer are evaluated in no time


class PrefixMatch(Protocol):
    """The cached prefix of a prompt: whole pages, referenced for whoever asked."""

    @property
    def n_tokens(self) -> int:
        """How many tokens the pages hold."""

    @property
    def pages(self) -> Sequence[Any]:
        """The pages, in order."""

    @property
    def divergence(self) -> Any:
        """Where the prompt left a cached path, when it left it late; else None."""


class PrefixCache(Protocol):
    """Pages of earlier prompts and answers, found again by their tokens. May be called from any thread."""

    def match(self, ids: Sequence[int]) -> PrefixMatch:
        """The longest cached prefix, at most len(ids) - 1 tokens."""

    def note(self, ids: Sequence[int], n_tokens: int) -> None:
        """Take note of a prompt of which an idle session holds n_tokens: what prompts share is worth keeping on disk."""

    def insert(self, ids: Sequence[int], seq: int) -> Any:
        """Keep the whole pages of a sequence that holds `ids`, by reference."""

    def reclaim(self, n_pages: int) -> int:
        """Give up to n_pages pages back that only the cache holds; return how many."""

    def stats(self) -> dict[str, Any]:
        """Figures."""


class _Miss(NamedTuple):
    n_tokens: int = 0
    pages: tuple[Any, ...] = ()
    divergence: Any = None


class NoPrefixCache:
    """Remembers nothing: idle sessions alone are taken up again."""

    def match(self, ids: Sequence[int]) -> PrefixMatch:
        """Nothing."""
        return _Miss()

    def note(self, ids: Sequence[int], n_tokens: int) -> None:
        """Forget it."""

    def insert(self, ids: Sequence[int], seq: int) -> None:
        """Forget it."""

    def reclaim(self, n_pages: int) -> int:
        """There is nothing to give."""
        return 0

    def stats(self) -> dict[str, Any]:
        """No figures."""
        return {}


class Session:
    """A sequence of the engine and the tokens that it holds."""

    def __init__(self, seq: int, ids: list[int]) -> None:
        self.seq, self.ids = seq, ids


class Sessions:
    """Opens, takes up, keeps and closes sessions. May be called from any thread.

    kv is the engine's; it may lack pages (`hold`, `open(pages)`), then only idle sessions are taken up again.
    """

    def __init__(self, engine: Engine, prefix: PrefixCache | None = None, *, most_idle: int = 8) -> None:
        self._kv: Any = engine.kv
        self.prefix: PrefixCache = prefix or NoPrefixCache()
        self.most_idle = most_idle
        self._page = int(getattr(self._kv, "page_size", _TAIL))
        self._idle: list[Session] = []  # least recently used first
        self._lock = threading.Lock()
        if hasattr(self._kv, "reclaim"):
            self._kv.reclaim = self.reclaim

    @property
    def idle(self) -> list[Session]:
        """The sessions that no stream has, least recently used first."""
        with self._lock:
            return list(self._idle)

    def new(self) -> Session:
        """An empty session."""
        return Session(self._open(()), [])

    def take(self, tokens: list[int]) -> tuple[Session, Any]:
        """A session that holds as long a prefix of tokens as there is, at least one token less, and the divergence.

        An idle session that goes on differently, by more than a little, is copied where there is room, so that its own
        conversation still finds it; else the larger part wins.
        """
        best, n = self._nearest(tokens)
        whole = (len(tokens) - 1) // self._page * self._page
        if best is not None and n >= whole:
            match: PrefixMatch = _Miss()
            self.prefix.note(tokens, n)
        else:
            match = self.prefix.match(tokens)
        try:
            session = None
            if best is not None and n > match.n_tokens:
                session = self._part(best, n, match.n_tokens)
            elif best is not None:
                self._add(best)
            if session is None:
                session = Session(self._open(match.pages), tokens[: match.n_tokens])
        finally:
            if match.pages:
                self._kv.drop(match.pages)
        return session, match.divergence

    def _nearest(self, tokens: list[int]) -> tuple[Session | None, int]:
        """The idle session that shares the most tokens, taken out of the idle ones, and how many it shares."""
        with self._lock:
            best, most = None, 0
            for session in reversed(self._idle):
                n = _shared(session.ids, tokens)
                if n > most:
                    best, most = session, n
            if best is not None:
                self._idle.remove(best)
            return best, most

    def _part(self, session: Session, n: int, n_match: int) -> Session | None:
        """A session with the first n tokens of an idle one, of which pages have n_match; None where it is not worth it."""
        gain, loss = n - n_match, len(session.ids) - n
        if loss and (loss >= min(gain, _TAIL)):
            if gain >= _WORTH and len(self._idle) + 1 < self.most_idle:
                try:
                    seq = self._kv.fork(session.seq, n)
                except EdgeInferError:
                    pass  # no room to copy it, or a window that has passed
                else:
                    self._add(session)
                    return Session(seq, session.ids[: self._kv.n_past(seq)])
            if gain < loss:
                self._add(session)
                return None
        try:
            reached = self._kv.rewind(session.seq, n)
            del session.ids[reached:]
            if reached > n_match or not n_match:
                return session
        except EdgeInferError:
            pass  # a sequence that cannot be mended is given up
        self.drop(session)
        return None

    def _open(self, pages: Sequence[Any]) -> int:
        """A new sequence; the oldest idle one makes room for it where all are open."""
        while True:
            try:
                return int(self._kv.open(pages) if pages else self._kv.open())
            except EdgeInferError:
                if not self.shed():
                    raise

    def share(self, session: Session) -> None:
        """Let other prompts find what a session holds."""
        self.prefix.insert(session.ids, session.seq)

    def keep(self, session: Session) -> None:
        """An answer has ended: keep its session, idle, for the prompt that goes on from it."""
        if session.ids:
            self._add(session)
        else:
            self.drop(session)

    def _add(self, session: Session) -> None:
        with self._lock:
            self._idle.append(session)
            surplus = [self._idle.pop(0) for _ in range(len(self._idle) - self.most_idle)]
        for old in surplus:
            self.drop(old)

    def settle(self, session: Session) -> bool:
        """After an error: make the sequence hold exactly what `ids` says; False when that cannot be, and it is closed."""
        try:
            held = self._kv.n_past(session.seq)
            reached = self._kv.rewind(session.seq, len(session.ids)) if held > len(session.ids) else held
            del session.ids[reached:]
        except Exception:  # the engine itself may be gone
            self.drop(session)
            return False
        return True

    def drop(self, session: Session) -> None:
        """Close a session and give its pages back."""
        session.ids = []
        try:
            self._kv.close(session.seq)
        except EdgeInferError:
            pass  # a closed engine has given everything back already

    def shed(self) -> bool:
        """Close the idle session that was used longest ago; False when there is none."""
        with self._lock:
            session = self._idle.pop(0) if self._idle else None
        if session is None:
            return False
        self.drop(session)
        return True

    def reclaim(self, n_pages: int) -> int:
        """Free n_pages pages, if there are so many that nobody needs; return how many were freed.

        Cached pages first, least recently used; then idle sessions, which hold most of theirs together with the cache.
        """
        before = self._kv.free_pages
        self.prefix.reclaim(n_pages)
        while self._kv.free_pages - before < n_pages and self.shed():
            self.prefix.reclaim(n_pages - (self._kv.free_pages - before))
        return max(0, int(self._kv.free_pages - before))

    def close(self) -> None:
        """Close what is idle; the prefix cache writes what it has to write."""
        while self.shed():
            pass
        finish = getattr(self.prefix, "close", None)
        if finish is not None:
            finish()

    def clear(self) -> None:
        """Forget all conversations and cached prefixes."""
        while self.shed():
            pass
        forget = getattr(self.prefix, "clear", None)
        if forget is not None:
            forget()
        else:
            self.prefix.reclaim(1 << 30)


def _shared(ids: list[int], tokens: list[int]) -> int:
    """How many tokens two lists share at their beginning, at most len(tokens) - 1."""
    low, high = 0, min(len(ids), len(tokens) - 1)
    if ids[:high] == tokens[:high]:
        return high
    while low < high - 1:  # ids[:low] == tokens[:low] and ids[:high] != tokens[:high]
        middle = (low + high) // 2
        if ids[low:middle] == tokens[low:middle]:
            low = middle
        else:
            high = middle
    return low
