"""The prefix cache: prompts that begin like earlier ones start from their KV pages, in RAM or from disk.

    match(ids) -> pages of the longest cached prefix          insert(ids, seq) -> the whole pages of a sequence are shared

Pages are shared by reference with running sequences, never copied. A page's keys and values depend on the tokens up to
its end and on nothing else (the engine is exact), so an answer from cached pages is the same to the bit. When the KV
cache needs pages, `reclaim` gives up leaves of the tree, the least recently used first.

What is worth a file (`prefix_store`) is a beginning of two pages or more that prompts share: one that was named with
`pin` (system text and tools), or one from which prompts went on in different ways. A conversation that goes on is neither,
nor is the same prompt again, so what a user says is not written as a rule.

Every method may be called from any thread. None is called by the KV cache while it holds a lock of its own, and none
calls what may ask for pages while it holds the lock of this cache.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ContextOverflowError, ModelFileError
from .doctor import Divergence, KnownTexts
from .page_kv import PageKV
from .prefix_store import PrefixStore
from .prefix_tree import Ids, Node, Page, PrefixTree, common_prefix
from .prefix_writer import PrefixWriter

__all__ = ["Match", "PrefixCache"]

Tokens = Sequence[int] | NDArray[np.integer[Any]]
_MOST_PINS = 16
_SMALLEST = 2  # pages that are worth a file


@dataclass(frozen=True)
class Match:
    """The cached beginning of a prompt. The references to its pages are the caller's, to be given back with `kv.drop`."""

    n_tokens: int
    pages: tuple[Page, ...]
    divergence: Divergence | None = None  # set when the prompt left an earlier text and that cost something


class PrefixCache:
    """Cached prefixes of one KV cache."""

    def __init__(self, kv: PageKV, *, max_pages: int = 0, store: PrefixStore | None = None) -> None:
        """At most max_pages pages stay cached (0: as many as the KV cache has)."""
        self._kv = kv
        self._page = kv.page_size
        self._max_pages = max_pages or kv.n_pages
        self._tree = PrefixTree(kv.page_size)
        self._pins: OrderedDict[bytes, None] = OrderedDict()
        self._known = KnownTexts()
        self._store = store
        self._writer = None if store is None else PrefixWriter(kv, store)
        self._lock = threading.Lock()
        self._count = dict.fromkeys(("prompts", "hits", "tokens", "reused", "restored", "evicted", "divergences"), 0)
        self.last_divergence: Divergence | None = None  # the last that a small difference caused

    # ---- using what is cached ---------------------------------------------------------------------------------------

    def match(self, ids: Tokens, *, partial: bool = False) -> Match:
        """The longest cached prefix of ids in whole pages, at most len(ids) - 1 tokens: one is left to evaluate.

        With `partial` one more page may come whose first tokens alone belong to ids: open a sequence with all of the
        pages, then rewind it to n_tokens.
        """
        prompt = np.asarray(ids, np.int32)
        most = max(0, len(prompt) - 1)
        self._restore(prompt, most // self._page)
        with self._lock:
            path = self._tree.walk(prompt, most // self._page)
            n = len(path) * self._page
            if path:
                self._left(path, prompt)
            if partial:
                node, shared = self._tree.nearest(path[-1] if path else self._tree.root, prompt[n:most])
                if node is not None:
                    node.used = self._tree.tick()
                    path, n = [*path, node], n + shared
            pages = tuple(node.page for node in path)
            self._kv.share(pages)
            return Match(n, pages, self._count_prompt(prompt, n))

    def note(self, ids: Tokens, n_tokens: int) -> None:
        """Take note of a prompt that needed no `match`: n_tokens of it were found in a sequence that is still open."""
        prompt = np.asarray(ids, np.int32)
        with self._lock:
            path = self._tree.walk(prompt, max(0, len(prompt) - 1) // self._page)
            if path:
                self._left(path, prompt)
            self._count_prompt(prompt, n_tokens)

    def _count_prompt(self, prompt: Ids, n: int) -> Divergence | None:
        """Count a prompt, n tokens of which are not evaluated again; the divergence that it made, if any."""
        count = self._count
        count["prompts"] += 1
        count["hits"] += n > 0
        count["tokens"] += len(prompt)
        count["reused"] += n
        divergence = self._known.divergence(prompt, n)
        if divergence is not None and divergence.avoidable:
            count["divergences"] += 1
            self.last_divergence = divergence
        return divergence

    def _restore(self, prompt: Ids, most: int) -> None:
        """Bring pages into the tree that only the disk has."""
        if self._store is None or self._writer is None:
            return
        self._writer.stir()
        with self._lock:
            have = len(self._tree.walk(prompt, most))
        if have >= most:
            return
        pages: list[Page] = []
        try:
            for data in self._store.get(prompt[: most * self._page], have):
                pages.append(self._kv.load(data))
        except (ContextOverflowError, ModelFileError):
            pass  # no room, or pages of another size: what came is used
        with self._lock:
            path = self._tree.walk(prompt, most)
            node = path[-1] if path else self._tree.root
            for i, page in enumerate(pages, start=have):
                if i != node.depth:  # another thread was faster, or the beginning was evicted meanwhile
                    self._kv.drop([page])
                    continue
                node = self._tree.add(node, self._key(prompt, i), page)
                node.stored = True
                self._count["restored"] += 1
            self._shrink()

    def _key(self, ids: Ids, page: int) -> bytes:
        return ids[page * self._page : (page + 1) * self._page].tobytes()

    # ---- filling it -------------------------------------------------------------------------------------------------

    def insert(self, ids: Tokens, seq: int) -> int:
        """Share the whole pages of a sequence that holds ids, or more; return how many are new here.

        Call it after each piece of a prompt (what a sliding window has passed cannot be shared any more) and after the
        answer.
        """
        held = np.asarray(ids, np.int32)
        if self._writer is not None:
            self._writer.stir()
        with self._lock:
            path = self._tree.walk(held, len(held) // self._page)
            node = path[-1] if path else self._tree.root
            pages = self._kv.hold(seq, node.depth, len(held) // self._page - node.depth)
            for page in pages:
                node = self._tree.add(node, self._key(held, node.depth), page)
            self._known.add(held)
            if pages:
                self._keep_pins(held)
                self._shrink()
            return len(pages)

    def pin(self, ids: Tokens) -> None:
        """Say that a beginning is worth a file: system text and tools. It is written when its pages are there."""
        head = np.asarray(ids, np.int32)
        n_pages = len(head) // self._page
        if self._writer is None or n_pages < _SMALLEST:
            return
        head = head[: n_pages * self._page]
        with self._lock:
            self._pins[head.tobytes()] = None
            self._keep_pins(head)
            while len(self._pins) > _MOST_PINS:
                self._pins.popitem(last=False)

    def _keep_pins(self, held: Ids) -> None:
        """Write the named beginnings of a text whose pages are all here."""
        for key in list(self._pins):
            head = np.frombuffer(key, np.int32)
            if common_prefix(head, held) == len(head):
                path = self._tree.walk(head, len(head) // self._page, touch=False)
                if len(path) * self._page == len(head) and self._keep(path):
                    del self._pins[key]

    def _left(self, path: list[Node], prompt: Ids) -> None:
        """A prompt goes on behind a path: do prompts share the path, so that it is worth a file?"""
        node = path[-1]
        rest = prompt[node.depth * self._page :].tobytes()
        branches = len(node.children) > 0 and len(prompt) // self._page > node.depth
        if branches or (node.rest and rest != node.rest):
            self._keep(path)
        node.rest = rest

    def _keep(self, path: list[Node]) -> bool:
        """Give a path to the writer; True when it has it now, or had it before."""
        node = path[-1]
        if self._writer is None or node.depth < _SMALLEST:
            return False
        if not node.stored:
            pages = [n.page for n in path]
            self._kv.share(pages)
            if not self._writer.put(np.concatenate([n.ids for n in path]), pages):
                self._kv.drop(pages)
                return False
            for n in path:
                n.stored = True
        return True

    # ---- giving back ------------------------------------------------------------------------------------------------

    def reclaim(self, n_pages: int) -> int:
        """Give up the least recently used pages until n_pages more are free; return how many are.

        A page that a running sequence uses as well is given up when its turn comes, but frees nothing.
        """
        with self._lock:
            return self._evict(n_free=n_pages)

    def _shrink(self) -> None:
        """Come back to max_pages."""
        over = len(self._tree) - self._max_pages
        if over > 0:
            self._evict(n_gone=over)

    def _evict(self, n_free: int = 1 << 62, n_gone: int = 1 << 62) -> int:
        """Drop leaves, oldest first, until n_free pages are free or n_gone are dropped; return how many are free."""
        order = [(node.used, -node.depth, id(node), node) for node in self._tree.leaves()]
        heapq.heapify(order)
        gone = freed = 0
        while order and freed < n_free and gone < n_gone:
            node = heapq.heappop(order)[-1]
            self._tree.remove(node)
            before = self._kv.free_pages
            self._kv.drop([node.page])
            freed += max(0, self._kv.free_pages - before)
            gone += 1
            parent = node.parent
            if parent is not None and parent.parent is not None and not parent.children:
                heapq.heappush(order, (parent.used, -parent.depth, id(parent), parent))
        self._count["evicted"] += gone
        return freed

    def clear(self) -> None:
        """Give up everything in RAM; the disk keeps what it has, and `pin` still holds."""
        with self._lock:
            self._evict()
            self._known.clear()

    def close(self, wait_s: float = 5.0) -> None:
        """Write what is waiting to be written, for at most wait_s, and give everything back. Comes before the engine's."""
        if self._writer is not None:
            self._writer.close(wait_s)
        self.clear()

    def stats(self) -> dict[str, Any]:
        """What the cache holds and did; tokens are of prompts, "disk" is None when that part is off."""
        disk = None if self._store is None else asdict(self._store.stats())
        with self._lock:
            count = self._count
            return {
                "pages": len(self._tree),
                "max_pages": self._max_pages,
                "prompts": count["prompts"],
                "prompts_reused": count["hits"],
                "tokens": count["tokens"],
                "tokens_reused": count["reused"],
                "pages_restored": count["restored"],
                "pages_evicted": count["evicted"],
                "avoidable_misses": count["divergences"],
                "disk": disk,
            }
