"""Cached prefixes as a radix tree of whole KV pages: an edge is the exact ids of one page. Knows no KV cache and no lock.

An edge's key is the page's ids themselves, not a hash of them, so a lookup cannot find a page of other tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ids", "Node", "Page", "PrefixTree", "common_prefix"]

Ids = NDArray[np.int32]
Page = tuple[int, ...]  # what the KV cache calls a page; opaque here
_SIBLINGS = 64  # children that a search for the nearest one looks at, newest first


def common_prefix(a: Ids, b: Ids) -> int:
    """How many ids a (n,) and b (m,) share at their beginning."""
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    return int(differing[0]) if len(differing) else n


class Node:
    """One page of a cached prefix. The root stands for the empty prefix and has no page."""

    __slots__ = ("children", "depth", "key", "page", "parent", "rest", "stored", "used")

    def __init__(self, parent: Node | None, key: bytes, page: Page) -> None:
        self.parent = parent
        self.key = key  # the page's ids as int32 bytes
        self.page = page
        self.children: dict[bytes, Node] = {}
        self.depth: int = 0 if parent is None else parent.depth + 1  # pages from the root, this one included
        self.used = 0  # the tree's clock at the last use
        self.rest = b""  # how the last prompt that left the tree here went on
        self.stored = False  # this prefix is on disk, or on its way there

    @property
    def ids(self) -> Ids:
        """The ids of this page alone."""
        return np.frombuffer(self.key, np.int32)

    def path(self) -> list[Node]:
        """The nodes from the first page to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixTree:
    """Nodes, a clock of uses, and the leaves in the order in which they may go."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node(None, b"", ())
        self._clock = itertools.count(1)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def tick(self) -> int:
        """The next reading of the clock of uses."""
        return next(self._clock)

    def walk(self, ids: Ids, n_pages: int, *, touch: bool = True) -> list[Node]:
        """The nodes of the longest cached prefix of ids, n_pages at most; `touch` makes them the last used."""
        node, nodes = self.root, []
        for i in range(min(n_pages, len(ids) // self.page_size)):
            child = node.children.get(ids[i * self.page_size : (i + 1) * self.page_size].tobytes())
            if child is None:
                break
            nodes.append(child)
            node = child
        if touch:
            now = self.tick()
            for node in nodes:
                node.used = now
        return nodes

    def nearest(self, node: Node, rest: Ids) -> tuple[Node | None, int]:
        """The child whose page begins most like `rest`, and how many ids they share; (None, 0) without one."""
        best, most = None, 0
        rest = rest[: self.page_size]
        for child in itertools.islice(reversed(node.children.values()), _SIBLINGS):
            n = common_prefix(child.ids, rest)
            if n > most:
                best, most = child, n
        return best, most

    def add(self, parent: Node, key: bytes, page: Page) -> Node:
        """Hang a page below a node, as the last used. The key must be new there."""
        node = Node(parent, key, page)
        node.used = self.tick()
        parent.children[key] = node
        self._n += 1
        return node

    def remove(self, leaf: Node) -> None:
        """Take a leaf out."""
        if leaf.parent is not None and leaf.parent.children.pop(leaf.key, None) is leaf:
            self._n -= 1

    def leaves(self) -> list[Node]:
        """The nodes that no other hangs on."""
        return [node for node in self.nodes() if not node.children]

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())
