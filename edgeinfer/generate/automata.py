"""Lexemes as automata: one place for each character of a piece of grammar, and which place may follow which (Glushkov)."""

from __future__ import annotations

from dataclasses import dataclass

from .gbnf import Choice, Class, Node, Repeat, Rule, Sequence

__all__ = ["Shape", "Shapes"]

_UNROLLED = 3  # a bounded repetition is looked at as one without end if it is longer: more conflicts at the worst
_MOST_PAIRS = 20_000  # of places looked at for one pair of lexemes before it counts as a conflict
_MOST_PLACES = 4_000  # characters of one lexeme; a longer one is taken apart


@dataclass
class Shape:
    """A lexeme as an automaton: a place for each of its characters (Glushkov)."""

    masks: list[int]  # of each place: its characters, as a set of bits
    first: set[int]
    last: set[int]
    follow: list[set[int]]
    empty: bool  # nothing at all matches

    @property
    def first_mask(self) -> int:
        """The characters that it may begin with."""
        masks = 0
        for place in self.first:
            masks |= self.masks[place]
        return masks


class Shapes:
    """The automata of the pieces of one grammar, and what was seen when two were compared."""

    def __init__(self, rules: dict[str, Node], edges: dict[int, int]) -> None:
        """edges: the code points at which some class of the grammar begins or has just ended, numbered in order."""
        self._rules, self._edges = rules, edges
        self._known: dict[Node, Shape | None] = {}
        self._compared: dict[tuple[int, int], tuple[int, bool]] = {}

    def of(self, node: Node) -> Shape | None:
        """The automaton of a piece, the same one for equal pieces; None when it is too large."""
        if node not in self._known:
            shape = Shape([], set(), set(), [], False)
            try:
                shape.first, shape.last, shape.empty = self._grow(shape, node)
                self._known[node] = shape
            except OverflowError:
                self._known[node] = None
        return self._known[node]

    def compare(self, x: Shape, y: Shape) -> tuple[int, bool]:
        """The characters that y goes on with where x is over, as bits, and whether they share a whole text."""
        key = (id(x), id(y))
        if key not in self._compared:
            self._compared[key] = _compare(x, y)
        return self._compared[key]

    def _mask(self, node: Class) -> int:
        """A class as bits, one for each stretch of characters that no class of the grammar tells apart."""
        bits = 0
        for low, high in node.ranges:
            bits |= (1 << self._edges[high + 1]) - (1 << self._edges[low])
        return bits

    def _grow(self, shape: Shape, node: Node) -> tuple[set[int], set[int], bool]:
        if isinstance(node, Class):
            if len(shape.masks) >= _MOST_PLACES:
                raise OverflowError
            shape.masks.append(self._mask(node))
            shape.follow.append(set())
            place = len(shape.masks) - 1
            return {place}, {place}, False
        if isinstance(node, Rule):
            return self._grow(shape, self._rules[node.name])
        if isinstance(node, Choice):
            found = [self._grow(shape, part) for part in node.parts]
            firsts, lasts, empties = zip(*found, strict=True)
            return set().union(*firsts), set().union(*lasts), any(empties)
        if isinstance(node, Sequence):
            return self._chain(shape, list(node.parts))
        assert isinstance(node, Repeat)
        endless = node.most is None or node.most - node.least > _UNROLLED
        least = min(node.least, _UNROLLED)
        more = 0 if node.most is None or endless else node.most - node.least
        if least < node.least:
            endless = True
        parts: list[Node] = [node.part] * least + [Choice((node.part, Sequence(())))] * more
        if endless and not parts:
            first, last, _ = self._loop(shape, self._grow(shape, node.part))
            return first, last, True
        if endless:
            first, last, empty = self._chain(shape, parts[:-1])
            again = self._loop(shape, self._grow(shape, node.part))
            return self._link(shape, (first, last, empty), again)
        return self._chain(shape, parts)

    def _loop(self, shape: Shape, part: tuple[set[int], set[int], bool]) -> tuple[set[int], set[int], bool]:
        for place in part[1]:
            shape.follow[place] |= part[0]
        return part

    def _chain(self, shape: Shape, parts: list[Node]) -> tuple[set[int], set[int], bool]:
        so_far: tuple[set[int], set[int], bool] = (set(), set(), True)
        for part in parts:
            so_far = self._link(shape, so_far, self._grow(shape, part))
        return so_far

    def _link(
        self, shape: Shape, a: tuple[set[int], set[int], bool], b: tuple[set[int], set[int], bool]
    ) -> tuple[set[int], set[int], bool]:
        for place in a[1]:
            shape.follow[place] |= b[0]
        return a[0] | b[0] if a[2] else a[0], a[1] | b[1] if b[2] else b[1], a[2] and b[2]


def _compare(x: Shape, y: Shape) -> tuple[int, bool]:
    """The characters that y goes on with where x is over, as bits, and whether they share a whole text."""
    seen = {(p, q) for p in x.first for q in y.first if x.masks[p] & y.masks[q]}
    todo = list(seen)
    goes_on, same = 0, False
    while todo:
        p, q = todo.pop()
        if p in x.last:
            same = same or q in y.last
            for r in y.follow[q]:
                goes_on |= y.masks[r]
        if len(seen) > _MOST_PAIRS:
            return -1, True
        for r in x.follow[p]:
            for s in y.follow[q]:
                if x.masks[r] & y.masks[s] and (r, s) not in seen:
                    seen.add((r, s))
                    todo.append((r, s))
    return goes_on, same
