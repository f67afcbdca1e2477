"""The paged KV cache: one pool of pages and one page table per layer group, counted references, copy of a shared last page.

A page is 64 positions of every layer of its group. Pages are handed out as a sequence grows, so memory that no sequence
has used is never touched. Sharing is by whole pages; a page that is only partly below the fork point is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..arch.family import KVGroup
from ..errors import ContextOverflowError, NotFoundError, SettingError
from ..runtime.arena import Arena, aligned

__all__ = ["PAGE", "PagedKV"]

PAGE = 64


class _Pool:
    """The pages of one group: page p of layer l lies at base + (l * n_pages + p) * page_bytes."""

    def __init__(self, group: KVGroup, n_pages: int, page_bytes: int):
        self.group = group
        self.n_pages = n_pages
        self.page_bytes = page_bytes
        # A group without layers still has a table, so that group numbers are positions in the state's tables.
        self.arena = Arena(max(1, group.n_layer) * n_pages * page_bytes, "the KV cache")
        self.free = list(range(n_pages - 1, -1, -1))  # low numbers first: memory is touched from the start
        self.references = [0] * n_pages

    def take(self) -> int:
        page = self.free.pop()
        self.references[page] = 1
        return page

    def drop(self, page: int) -> None:
        self.references[page] -= 1
        if self.references[page] == 0:
            self.free.append(page)

    def copy(self, source: int, target: int) -> None:
        for layer in range(self.group.n_layer):
            base = layer * self.n_pages
            a, b = (base + source) * self.page_bytes, (base + target) * self.page_bytes
            self.arena.bytes[b : b + self.page_bytes] = self.arena.bytes[a : a + self.page_bytes]


class PagedKV:
    """Sequences and their pages. Sequence ids are slots 0 .. n_seq-1."""

    def __init__(self, groups: Sequence[KVGroup], page_bytes: int, n_ctx: int, n_positions: int, n_seq: int = 64):
        self.n_ctx = n_ctx
        self.n_seq = n_seq
        self.page_bytes = page_bytes
        self.pages_per_seq = -(-n_ctx // PAGE)
        n_pages = -(-n_positions // PAGE)
        self.pools = [_Pool(group, n_pages, page_bytes) for group in groups]
        self._tables = aligned(n_seq * len(groups) * self.pages_per_seq)
        self.table = self._tables.reshape(n_seq, len(groups), self.pages_per_seq)
        self.table_address = int(self._tables.ctypes.data)
        self._length = [-1] * n_seq  # n_past, or -1 for a slot that is not open
        self._held = [0] * n_seq  # pages in a sequence's tables; entries beyond are stale
        self._lock = threading.Lock()

    def layer_address(self, group: int, index: int) -> int:
        """The address of page 0 of a group's layer."""
        pool = self.pools[group]
        return pool.arena.address + index * pool.n_pages * pool.page_bytes

    def open(self) -> int:
        """Start an empty sequence. Raises SettingError when all slots are taken."""
        with self._lock:
            return self._open()

    def _open(self) -> int:
        for seq, length in enumerate(self._length):
            if length < 0:
                self._length[seq] = 0
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
            if any(len(pool.free) < want - have for pool in self.pools):
                raise ContextOverflowError(
                    f"the KV cache is full: {want - have} pages wanted, {self.free_pages} free; close a sequence"
                )
            for g, pool in enumerate(self.pools):
                for page in range(have, want):
                    self.table[seq, g, page] = pool.take()
            self._held[seq] = want

    def advance(self, seq: int, n: int) -> None:
        """Count n positions as filled."""
        self._length[seq] += n

    def fork(self, src: int, n: int) -> int:
        """Start a sequence that shares the first n positions of src; a page only partly shared is copied."""
        with self._lock:
            self._check(src)
            if not 0 <= n <= self._length[src]:
                raise SettingError(f"cannot fork {n} positions of a sequence that holds {self._length[src]}")
            if n % PAGE and any(not pool.free for pool in self.pools):
                raise ContextOverflowError("the KV cache is full: no page free to fork into; close a sequence")
            seq = self._open()
            whole = n // PAGE
            for g, pool in enumerate(self.pools):
                for i in range(whole):
                    page = int(self.table[src, g, i])
                    pool.references[page] += 1
                    self.table[seq, g, i] = page
                if n % PAGE:
                    page = pool.take()
                    pool.copy(int(self.table[src, g, whole]), page)
                    self.table[seq, g, whole] = page
            self._length[seq] = n
            self._held[seq] = -(-n // PAGE)
            return seq

    def rewind(self, seq: int, n_past: int) -> int:
        """Shorten a sequence to n_past positions, giving pages back; returns the n_past reached (lower when full)."""
        with self._lock:
            self._check(seq)
            if not 0 <= n_past <= self._length[seq]:
                raise SettingError(f"cannot rewind to {n_past}: the sequence holds {self._length[seq]} positions")
            return self._rewind(seq, n_past)

    def _rewind(self, seq: int, n_past: int) -> int:
        last, part = divmod(n_past, PAGE)
        beyond = -(-n_past // PAGE)
        # A page that will be written again while another sequence reads it: take a copy of our own, or, with no page free
        # for it, go back to the page's start, which needs none. Decided for all groups before anything is given back.
        shared = [part > 0 and pool.references[int(self.table[seq, g, last])] > 1 for g, pool in enumerate(self.pools)]
        for g, pool in enumerate(self.pools):
            ours = self.table[seq, g, beyond : self._held[seq]]
            if shared[g] and not pool.free and all(pool.references[int(page)] > 1 for page in ours):
                return self._rewind(seq, last * PAGE)
        for g, pool in enumerate(self.pools):
            for page in self.table[seq, g, beyond : self._held[seq]]:
                pool.drop(int(page))
            if shared[g]:
                old, page = int(self.table[seq, g, last]), pool.take()
                pool.copy(old, page)
                pool.drop(old)
                self.table[seq, g, last] = page
        self._held[seq] = beyond
        self._length[seq] = n_past
        return n_past

    def close(self, seq: int) -> None:
        """Give the sequence's pages back."""
        self.rewind(seq, 0)
        with self._lock:
            self._length[seq] = -1

    def trim(self, seq: int) -> None:
        """Give back pages that were taken for positions that never came (a forward that failed)."""
        with self._lock:
            have = -(-self._length[seq] // PAGE)
            for g, pool in enumerate(self.pools):
                for page in self.table[seq, g, have : self._held[seq]]:
                    pool.drop(int(page))
            self._held[seq] = have

    @property
    def free_pages(self) -> int:
        """Pages that no sequence holds, in the group with the fewest."""
        return min(len(pool.free) for pool in self.pools)
