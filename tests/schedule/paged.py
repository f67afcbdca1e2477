"""A KV cache of pages whose content is the very ids that it depends on, with counted references."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.errors import ContextOverflowError, ModelFileError

__all__ = ["FakeKV", "Ids", "Page"]

Ids = tuple[int, ...]
Page = tuple[int, ...]


class FakeKV:
    """Sequences, pages and references, checked at every step."""

    def __init__(self, n_pages: int = 32, page_size: int = 4) -> None:
        self.n_pages, self.page_size = n_pages, page_size
        self.free = list(range(n_pages))
        self.references = [0] * n_pages
        self.content: dict[int, Ids] = {}  # the ids up to the end of the page
        self.seqs: dict[int, tuple[list[int], list[Page]]] = {}
        self.reclaim: Callable[[int], int] | None = None
        self.lock = threading.RLock()
        self.n_opened = 0
        self.before_load: Callable[[], None] = lambda: None

    @property
    def free_pages(self) -> int:
        return len(self.free)

    def _take(self, content: Ids) -> Page:
        page = self.free.pop()
        assert self.references[page] == 0
        self.references[page] = 1
        self.content[page] = content
        return (page,)

    def _want(self, n: int) -> None:
        if self.reclaim is not None and len(self.free) < n:
            self.reclaim(n - len(self.free))

    def open(self, pages: Sequence[Page] = ()) -> int:
        with self.lock:
            self.share(pages)
            self.n_opened += 1
            self.seqs[self.n_opened] = (list(self.content[pages[-1][0]]) if pages else [], list(pages))
            return self.n_opened

    def extend(self, seq: int, ids: Sequence[int]) -> None:
        """What a forward does: evaluate ids behind those that the sequence holds. Raises ContextOverflowError."""
        held, pages = self.seqs[seq]
        for token in ids:
            if len(held) % self.page_size == 0:
                self._want(1)
                with self.lock:
                    if not self.free:
                        raise ContextOverflowError("full")
                    pages.append(self._take(()))
            held.append(int(token))
            with self.lock:
                assert self.references[pages[-1][0]] == 1, "a shared page is written"
                self.content[pages[-1][0]] = tuple(held)

    def hold(self, seq: int, first: int, count: int) -> list[Page]:
        with self.lock:
            held, pages = self.seqs[seq]
            found = pages[first : min(first + count, len(held) // self.page_size)]
            self.share(found)
            return found

    def share(self, pages: Sequence[Page]) -> None:
        with self.lock:
            for (page,) in pages:
                assert self.references[page] > 0, "a free page is shared"
                self.references[page] += 1

    def drop(self, pages: Sequence[Page]) -> None:
        with self.lock:
            for (page,) in pages:
                assert self.references[page] > 0, "a page is dropped twice"
                self.references[page] -= 1
                if not self.references[page]:
                    self.free.append(page)

    def rewind(self, seq: int, n_past: int) -> int:
        with self.lock:
            held, pages = self.seqs[seq]
            del held[n_past:]
            keep = -(-n_past // self.page_size)
            self.drop(pages[keep:])
            del pages[keep:]
            if n_past % self.page_size and self.references[pages[-1][0]] > 1:
                own = self._take(tuple(held))
                self.drop(pages[-1:])
                pages[-1] = own
            return n_past

    def close(self, seq: int) -> None:
        with self.lock:
            self.drop(self.seqs.pop(seq)[1])

    def export(self, page: Page) -> bytes:
        with self.lock:
            assert self.references[page[0]] > 0, "a free page is read"
            ids = np.array(self.content[page[0]], np.int32).tobytes()
        return ids.ljust(4096, b"\xff")

    def load(self, data: bytes) -> Page:
        if len(data) != 4096:
            raise ModelFileError("size")
        self.before_load()
        self._want(1)
        with self.lock:
            if not self.free:
                raise ContextOverflowError("full")
            ids = np.frombuffer(data, np.int32)
            return self._take(tuple(int(i) for i in ids[ids >= 0]))
