"""The paged KV cache: pools of pages with counted references, one page table per sequence and layer group.

A page is 64 positions of every layer of its group. Pages are handed out as a sequence grows, so memory that no sequence
has used is never touched; the pools are as large at the end as at the start, and any free page serves any sequence, so
nothing can fragment. Whole pages are shared by reference (`hold`, `open(pages)`, `fork`); a page that is only partly
below a fork point, or that is shared and would be written again, is copied.

A layer group with a window gives pages back that no later position can see; a sequence is then rewound only as far as
its window reaches, else to 0 (`rewind` says how far it came). A group that carries state (short convolutions) keeps in each
page the state at the page's last few positions: a full page is a checkpoint that is shared and kept on disk like any other,
and a sequence that is cut between the checkpoints goes back to the one before. What a forward overwrites is saved until it
has ended, so that one that fails leaves the state as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..arch.family import KVGroup
from ..errors import ContextOverflowError, ModelFileError, NotFoundError, SettingError
from ..runtime.arena import Arena, aligned

__all__ = ["PAGE", "Page", "PagedKV"]

PAGE = 64
REWIND = 256  # positions that a windowed group keeps beyond its window, so that short rewinds need no new prefill
LAYOUT = 2  # of pages, for what is kept on disk
Page = tuple[int, ...]  # a page number for each group, -1 where a window has passed


class _Pool:
    """The pages of one group: page p of layer l lies at base + (p * n_layer + l) * page_bytes.

    All layers of a page lie side by side: a sequence that grows touches fresh memory in one place. Were the pages of a
    layer side by side instead, one token would touch a fresh huge page in every layer, and wait for all of them.
    """

    def __init__(self, group: KVGroup, n_pages: int, page_bytes: int):
        self.group = group
        self.n_pages = n_pages
        self.page_bytes = page_bytes
        # A group without layers still has a table, so that group numbers are positions in the state's tables.
        self.stride = max(1, group.n_layer) * page_bytes
        self.arena = Arena(n_pages * self.stride, "the KV cache")
        self.free = list(range(n_pages - 1, -1, -1))  # low numbers first: memory is touched from the start
        self.references = [0] * n_pages

    def take(self) -> int:
        page = self.free.pop()
        self.references[page] = 1
        return page

    def drop(self, page: int) -> None:
        if page >= 0:
            self.references[page] -= 1
            if self.references[page] == 0:
                self.free.append(page)

    def share(self, page: int) -> None:
        if page >= 0:
            self.references[page] += 1

    def bytes_of(self, page: int) -> NDArray[np.uint8]:
        """A page's bytes, layer by layer."""
        start = page * self.stride
        return self.arena.bytes[start : start + self.group.n_layer * self.page_bytes]

    def copy(self, source: int, target: int) -> None:
        self.bytes_of(target)[:] = self.bytes_of(source)


class PagedKV:
    """Sequences and their pages. Sequence ids are slots 0 .. n_seq-1. Every method may be called from any thread."""

    page_size = PAGE

    def __init__(
        self,
        groups: Sequence[KVGroup],
        page_bytes: int,
        n_ctx: int,
        n_positions: int,
        n_seq: int = 64,
        layout: str = "f16",
    ):
        self.n_ctx = n_ctx
        self.n_seq = n_seq
        self.page_bytes = page_bytes
        self.pages_per_seq = -(-n_ctx // PAGE)
        self.n_pages = -(-n_positions // PAGE)
        self.pools = [_Pool(group, self.n_pages, group.state_bytes or page_bytes) for group in groups]
        shape = ",".join(f"{g.n_layer}/{g.window}" + (f"/{g.state_bytes}" if g.state_bytes else "") for g in groups)
        self.layout = (
            f"{layout} page {PAGE}x{page_bytes} groups {shape} layout {LAYOUT}"  # what exported pages depend on
        )
        # Called without the lock when n pages are wanted and not free; it may drop held pages, and returns how many.
        self.reclaim: Callable[[int], int] | None = None
        self._tables = aligned(n_seq * len(groups) * self.pages_per_seq)
        self.table = self._tables.reshape(n_seq, len(groups), self.pages_per_seq)
        self.table[:] = -1
        self.table_address = int(self._tables.ctypes.data)
        self._length = [-1] * n_seq  # n_past, or -1 for a slot that is not open
        self._first = [[0] * len(groups) for _ in range(n_seq)]  # first page that a group still has
        self._keep = min((g.keep for g in groups if g.state_bytes), default=-1)  # -1: no group carries state
        self._written = [0] * n_seq  # positions up to here were written, maybe by tokens that are gone since
        self._saved: dict[int, tuple[int, list[tuple[int, bytes]]]] = {}  # written, and state by pool, by sequence
        self._lock = threading.Lock()

    def layer_address(self, group: int, index: int) -> int:
        """The address of page 0 of a group's layer."""
        pool = self.pools[group]
        return pool.arena.address + index * pool.page_bytes

    def page_stride(self, group: int) -> int:
        """Bytes from a page of a layer to the next page of the same layer."""
        return self.pools[group].stride

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds, in the group with the fewest."""
        return min(len(pool.free) for pool in self.pools)

    # ---- sequences --------------------------------------------------------------------------------------------------

    def open(self, pages: Sequence[Page] = ()) -> int:
        """Start a sequence, empty or with whole held pages in front. Raises SettingError when all slots are taken."""
        with self._lock:
            if len(pages) > self.pages_per_seq:
                raise ContextOverflowError(f"{len(pages) * PAGE} positions were given to a context of {self.n_ctx}")
            seq = self._open()
            for i, page in enumerate(pages):
                for g, pool in enumerate(self.pools):
                    pool.share(page[g])
                    self.table[seq, g, i] = page[g]
            self._length[seq] = self._written[seq] = len(pages) * PAGE
            for g in range(len(self.pools)):
                missing = [i for i, page in enumerate(pages) if page[g] < 0]
                self._first[seq][g] = missing[-1] + 1 if missing else 0
            return seq

    def _open(self) -> int:
        for seq, length in enumerate(self._length):
            if length < 0:
                self._length[seq] = self._written[seq] = 0
                self._first[seq] = [0] * len(self.pools)
                return seq
        raise SettingError(f"all {self.n_seq} sequences of the KV cache are open; close one first")

    def n_past(self, seq: int) -> int:
        """How many positions the sequence holds."""
        self._check(seq)
        return self._length[seq]

    def _check(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq or self._length[seq] < 0:
            raise NotFoundError(f"sequence {seq} is not open")

    def grow(self, seq: int, n: int) -> None:
        """Make room for n more positions. Raises ContextOverflowError, leaving the sequence as it was."""
        with self._lock:
            self._check(seq)
            past = self._length[seq]
            if past + n > self.n_ctx:
                raise ContextOverflowError(
                    f"the sequence holds {past} tokens and {n} more were given; the context is {self.n_ctx}"
                )
            have, want = -(-past // PAGE), -(-(past + n) // PAGE)
        self._want(want - have)
        with self._lock:
            if any(len(pool.free) < want - have for pool in self.pools):
                raise ContextOverflowError(
                    f"the KV cache is full: {want - have} pages wanted, {self.free_pages} free; close a sequence"
                )
            for g, pool in enumerate(self.pools):
                for i in range(have, want):
                    self.table[seq, g, i] = pool.take()
            self._save(seq, n)
            self._written[seq] = max(self._written[seq], past + n)

    def _save(self, seq: int, n: int) -> None:
        """Before n more positions: keep what they may overwrite of the state that the sequence goes on from."""
        self._saved.pop(seq, None)
        past = self._length[seq]
        if 0 <= self._keep < n and past % PAGE:
            held = [
                (g, pool.bytes_of(int(self.table[seq, g, past // PAGE])).tobytes())
                for g, pool in enumerate(self.pools)
                if pool.group.state_bytes
            ]
            self._saved[seq] = (self._written[seq], held)

    def _want(self, n: int) -> None:
        """Ask the holder of cached pages to give some up when n are not free."""
        if self.reclaim is not None and self.free_pages < n:
            self.reclaim(n - self.free_pages)

    def advance(self, seq: int, n: int) -> None:
        """Count n positions as filled, and give back pages that windowed groups have left behind."""
        with self._lock:
            self._length[seq] += n
            self._saved.pop(seq, None)
            for g, pool in enumerate(self.pools):
                if pool.group.window:
                    keep = max(0, self._length[seq] - pool.group.window - REWIND) // PAGE
                    for i in range(self._first[seq][g], keep):
                        pool.drop(int(self.table[seq, g, i]))
                        self.table[seq, g, i] = -1
                    self._first[seq][g] = max(self._first[seq][g], keep)

    def fork(self, src: int, n: int) -> int:
        """Start a sequence that shares the first n positions of src; a page only partly shared is copied.

        Raises SettingError where a window has passed what the new sequence would have to see, or no state is kept of it.
        """
        self._want(1 if n % PAGE else 0)
        with self._lock:
            self._check(src)
            if not 0 <= n <= self._length[src]:
                raise SettingError(f"cannot fork {n} positions of a sequence that holds {self._length[src]}")
            reached = self._reachable(src, n)
            if reached != n:
                why = (
                    f"state is kept at {reached}"
                    if reached
                    else f"the window of sequence {src} has passed that position"
                )
                raise SettingError(f"cannot fork at {n}: {why}")
            if n % PAGE and any(not pool.free for pool in self.pools):
                raise ContextOverflowError("the KV cache is full: no page free to fork into; close a sequence")
            seq = self._open()
            whole = n // PAGE
            for g, pool in enumerate(self.pools):
                for i in range(whole):
                    page = int(self.table[src, g, i])
                    pool.share(page)
                    self.table[seq, g, i] = page
                if n % PAGE:
                    page = pool.take()
                    pool.copy(int(self.table[src, g, whole]), page)
                    self.table[seq, g, whole] = page
            self._length[seq] = n
            self._written[seq] = self._written_at(src, n)
            if n:
                self._first[seq] = list(self._first[src])
            return seq

    def _reachable(self, seq: int, n: int) -> int:
        """n when a sequence may be cut there, else the highest position below where it may.

        Every group must still have what position n would look at: 0 where a window has passed it, and the end of the page
        before where a layer carries state that is not kept for n.
        """
        if n % PAGE and 0 <= self._keep < self._written_at(seq, n) - n:
            n -= n % PAGE
        if n == 0:
            return 0
        for g, pool in enumerate(self.pools):
            lowest = max(0, n + 1 - pool.group.window) if pool.group.window else 0
            if self._first[seq][g] * PAGE > lowest:
                return 0
        return n

    def _written_at(self, seq: int, n: int) -> int:
        """How far the page was written that a sequence of n positions would go on in."""
        return min(self._written[seq], -(-n // PAGE) * PAGE)

    def rewind(self, seq: int, n_past: int) -> int:
        """Shorten a sequence to n_past positions, giving pages back; returns the n_past reached, which may be lower."""
        with self._lock:
            self._check(seq)
            if not 0 <= n_past <= self._length[seq]:
                raise SettingError(f"cannot rewind to {n_past}: the sequence holds {self._length[seq]} positions")
            if n_past == self._length[seq]:
                return n_past
            return self._rewind(seq, self._reachable(seq, n_past))

    def _rewind(self, seq: int, n_past: int) -> int:
        last = n_past // PAGE
        if n_past % PAGE:
            shared = [g for g, pool in enumerate(self.pools) if pool.references[int(self.table[seq, g, last])] > 1]
            # The page will be written again, and another holder reads it: take a copy of our own, or, with no page free,
            # go back to the page's start, which needs none.
            if any(not self.pools[g].free for g in shared):
                return self._rewind(seq, self._reachable(seq, last * PAGE))
            for g in shared:
                pool = self.pools[g]
                old, page = int(self.table[seq, g, last]), pool.take()
                pool.copy(old, page)
                pool.drop(old)
                self.table[seq, g, last] = page
        for g, pool in enumerate(self.pools):
            for i in range(-(-n_past // PAGE), -(-self._length[seq] // PAGE)):
                pool.drop(int(self.table[seq, g, i]))
                self.table[seq, g, i] = -1
            if n_past == 0:
                self._first[seq][g] = 0
        self._written[seq] = self._written_at(seq, n_past)
        self._length[seq] = n_past
        self._saved.pop(seq, None)
        return n_past

    def close(self, seq: int) -> None:
        """Give the sequence's pages back."""
        with self._lock:
            self._check(seq)
            self._rewind(seq, 0)
            self._length[seq] = -1

    def trim(self, seq: int) -> None:
        """Give back pages taken for positions that never came (a forward that failed), and the state from before them."""
        with self._lock:
            if seq in self._saved:
                self._written[seq], held = self._saved.pop(seq)
                for g, state in held:
                    page = int(self.table[seq, g, self._length[seq] // PAGE])
                    self.pools[g].bytes_of(page)[:] = np.frombuffer(state, np.uint8)
            self._written[seq] = self._written_at(seq, self._length[seq])
            for g, pool in enumerate(self.pools):
                for i in range(-(-self._length[seq] // PAGE), self.pages_per_seq):
                    page = int(self.table[seq, g, i])
                    if page < 0:
                        break
                    pool.drop(page)
                    self.table[seq, g, i] = -1

    # ---- pages ------------------------------------------------------------------------------------------------------

    def hold(self, seq: int, first: int, count: int) -> list[Page]:
        """References to `count` whole pages of a sequence from page `first`; fewer where it does not have so many."""
        with self._lock:
            self._check(seq)
            pages: list[Page] = []
            for i in range(first, min(first + count, self._length[seq] // PAGE)):
                page = tuple(int(self.table[seq, g, i]) for g in range(len(self.pools)))
                if min(page) < 0:
                    break  # a window has passed
                for pool, number in zip(self.pools, page, strict=True):
                    pool.share(number)
                pages.append(page)
            return pages

    def share(self, pages: Sequence[Page]) -> None:
        """One more reference to each of some held pages."""
        with self._lock:
            for page in pages:
                for pool, number in zip(self.pools, page, strict=True):
                    pool.share(number)

    def drop(self, pages: Sequence[Page]) -> None:
        """Give references to pages back."""
        with self._lock:
            for page in pages:
                for pool, number in zip(self.pools, page, strict=True):
                    pool.drop(number)

    def export(self, page: Page) -> bytes:
        """The content of a held page, all groups and layers, in the order of `layout`."""
        return b"".join(pool.bytes_of(n).tobytes() for pool, n in zip(self.pools, page, strict=True))

    def load(self, data: bytes) -> Page:
        """A fresh page with exported content, held once. Raises ContextOverflowError (full), ModelFileError (size)."""
        wanted = sum(pool.group.n_layer * pool.page_bytes for pool in self.pools)
        if len(data) != wanted:
            raise ModelFileError(f"a KV page is {len(data)} bytes; wanted {wanted}")
        self._want(1)
        with self._lock:
            if any(not pool.free for pool in self.pools):
                raise ContextOverflowError("the KV cache is full: no page free to load into; close a sequence")
            page = tuple(pool.take() for pool in self.pools)
        content = np.frombuffer(data, np.uint8)
        at = 0
        for pool, n in zip(self.pools, page, strict=True):
            target = pool.bytes_of(n)
            target[:] = content[at : at + target.size]
            at += target.size
        return page
