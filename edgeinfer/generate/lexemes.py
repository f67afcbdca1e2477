"""A GBNF grammar cut into pieces that can be read greedily, and written as Lark. Works on the tree that `gbnf.parse` gives.

A lexeme is a piece without recursion; the reader goes on with it as long as any lexeme that may stand there goes on. That
is another language than GBNF's when some lexeme X may be over, and something that begins with the character c may follow
it, while a lexeme Y that may stand in the same place goes on with c, too. For every such pair X (or Y, when X is a single
character) is taken apart one level. In the end no pair is left, at the worst because all lexemes are single characters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import SettingError
from .automata import Shape, Shapes
from .gbnf import Choice, Class, Node, Repeat, Rule, Sequence, Token, parse, write_class, write_text

__all__ = ["lark_of_gbnf"]

_MOST_CHOICES = 2_000  # lexemes that may stand in one place; llguidance's limit (max_items_in_row)


@dataclass(eq=False)
class _Lexeme:
    """A piece of the grammar at one place, without recursion."""

    node: Node
    shape: Shape | None = None
    looked_at: bool = False


def lark_of_gbnf(text: str) -> str:
    """The Lark grammar of a GBNF one.

    Raises SettingError with line and column, and for a grammar whose texts have no end or that is too large.
    """
    rules = parse(text)
    endless = sorted(set(rules) - _ending(rules))
    if "root" in endless:
        names = ", ".join(endless[:5]) + (", ..." if len(endless) > 5 else "")
        raise SettingError(
            f"grammar cannot be used: no text fits it, because 'root' has no end (rules that always need themselves or "
            f"each other again: {names}); give one of them an alternative without that, as in list ::= item | list item"
        )
    return _Cutter(rules).lark()


class _Cutter:
    """The rules, of which those that are recursive (or name tokens) hold lexemes."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self.regular = _regular(rules)
        edges = sorted({e for node in rules.values() for low, high in _ranges(node) for e in (low, high + 1)})
        self.shapes = Shapes(rules, {edge: i for i, edge in enumerate(edges)})
        self.trees: dict[str, object] = {}
        root = "root"
        todo = [root]
        while todo:
            name = todo.pop()
            if name not in self.trees:
                self.trees[name] = self.cut(rules[name])
                todo += _names(self.trees[name])

    # -- cutting ------------------------------------------------------------------------------------------------------

    def is_regular(self, node: Node) -> bool:
        if isinstance(node, Rule):
            return node.name in self.regular
        if isinstance(node, (Sequence, Choice)):
            return all(map(self.is_regular, node.parts))
        if isinstance(node, Repeat):
            return self.is_regular(node.part)
        return isinstance(node, Class)

    def cut(self, node: Node) -> object:
        """A tree of ("seq" | "alt", parts), ("rep", part, least, most), lexemes, rules and tokens."""
        if self.is_regular(node):
            return _Lexeme(node)
        if isinstance(node, Sequence):
            parts: list[object] = []
            run: list[Node] = []
            for part in node.parts:
                if self.is_regular(part):
                    run.append(part)
                    continue
                parts += [_Lexeme(_joined(run))] if run else []
                parts.append(self.cut(part))
                run = []
            parts += [_Lexeme(_joined(run))] if run else []
            return ("seq", parts)
        if isinstance(node, Choice):
            return ("alt", [self.cut(part) for part in node.parts])
        if isinstance(node, Repeat):
            return ("rep", self.cut(node.part), node.least, node.most)
        return node

    def apart(self, node: Node) -> object:
        """A lexeme's node one level further down."""
        if isinstance(node, Rule):
            return self.apart(self.rules[node.name])
        if isinstance(node, Sequence):
            return ("seq", [_Lexeme(part) for part in node.parts])
        if isinstance(node, Choice):
            return ("alt", [_Lexeme(part) for part in node.parts])
        assert isinstance(node, Repeat)
        return ("rep", _Lexeme(node.part), node.least, node.most)

    def single(self, node: Node) -> bool:
        """Whether a node is no more than one character."""
        if isinstance(node, Rule):
            return self.single(self.rules[node.name])
        return isinstance(node, Class) or (isinstance(node, Sequence) and not node.parts)

    # -- automata -----------------------------------------------------------------------------------------------------

    def shape(self, lexeme: _Lexeme) -> Shape | None:
        """The automaton of a lexeme; None when it is too large."""
        if not lexeme.looked_at:
            lexeme.shape, lexeme.looked_at = self.shapes.of(lexeme.node), True
        return lexeme.shape

    # -- conflicts ----------------------------------------------------------------------------------------------------

    def conflicts(self) -> set[_Lexeme]:
        """Lexemes that have to be taken apart; none when all can be read greedily."""
        start, after = _Order(self).tables()
        lexemes = list(after)
        most = max(len(start), *map(len, after.values()), 0)
        if most > _MOST_CHOICES:
            raise SettingError(
                f"grammar cannot be used: {most:,} pieces may stand in one place, and at most {_MOST_CHOICES:,} can be "
                "told apart; give it fewer alternatives, or write a plain list of texts as a regex (one|two|three)"
            )
        number = {lexeme: i for i, lexeme in enumerate(lexemes)}
        shapes = [self.shape(lexeme) for lexeme in lexemes]
        following = [sum(1 << number[z] for z in after[lexeme]) for lexeme in lexemes]  # sets of lexemes, as bits
        first = [-1 if shape is None else shape.first_mask for shape in shapes]
        next_masks = [0] * len(lexemes)
        for i, lexeme in enumerate(lexemes):
            for z in after[lexeme]:
                next_masks[i] |= first[number[z]]
        found: set[_Lexeme] = set()
        together = [0] * len(lexemes)  # with which others a lexeme may stand in one place
        todo = deque[tuple[int, int]]()

        met: set[int] = set()
        by_first: dict[int, int] = {}
        for i, masks in enumerate(first):
            by_first[masks] = by_first.get(masks, 0) | 1 << i
        overlap = {a: sum(some for b, some in by_first.items() if a & b) for a in by_first}

        def meet(some: int) -> None:
            if some in met:
                return
            met.add(some)
            for i in _bits(some):
                new = some & overlap[first[i]] & ~together[i]  # others have no text in common with it
                together[i] |= new
                todo.extend((i, j) for j in _bits(new))

        meet(sum(1 << number[lexeme] for lexeme in start))
        while todo:
            i, j = todo.popleft()
            one, other, x, y = shapes[i], shapes[j], lexemes[i], lexemes[j]
            if one is None or other is None:
                found.add(x if one is None else y)
                continue
            goes_on, same = self.shapes.compare(one, other)
            if goes_on & next_masks[i] and not (self.single(x.node) and self.single(y.node)):
                found.add(y if self.single(x.node) else x)
            if same:
                meet(following[i] | following[j])
        return found

    # -- writing ------------------------------------------------------------------------------------------------------

    def lark(self) -> str:
        """The grammar in Lark."""
        while found := self.conflicts():
            taken = {lexeme: self.apart(lexeme.node) for lexeme in found}
            self.trees = {name: _replaced(tree, taken) for name, tree in self.trees.items()}
        self.terminals: dict[Node, str] = {}
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        numbers = {name: "start" if name == "root" else f"rule_{i}" for i, name in enumerate(self.trees)}
        rules = [f"{numbers[name]}: {self._tree(tree, numbers)}" for name, tree in self.trees.items()]
        return "\n".join(["%llguidance {}", *rules, *self.lines, ""])

    def _tree(self, tree: object, numbers: dict[str, str]) -> str:
        if isinstance(tree, _Lexeme):
            return self._terminal(tree.node)
        if isinstance(tree, Rule):
            return numbers[tree.name]
        if isinstance(tree, Token):
            return tree.text
        assert isinstance(tree, tuple)
        if tree[0] == "rep":
            return f"({self._tree(tree[1], numbers)}){_times(tree[2], tree[3])}"
        parts = [self._tree(part, numbers) for part in tree[1]]
        if tree[0] == "alt":
            return "(" + " | ".join(parts) + ")"
        return " ".join(parts) if parts else '""'

    def _terminal(self, node: Node) -> str:
        if node not in self.terminals:
            self.terminals[node] = f"T_{len(self.terminals)}"
            name = self.terminals[node]
            body = self._write(self.rules[node.name] if isinstance(node, Rule) else node)
            self.lines.append(f"{name}: {body}")
        return self.terminals[node]

    def _write(self, node: Node) -> str:
        if isinstance(node, Class):
            low, high = node.ranges[0]
            alone = len(node.ranges) == 1 and low == high
            return write_text([low]) if alone else write_class(node.ranges)
        if isinstance(node, Rule):
            return self._terminal(node)
        if isinstance(node, Choice):
            return "(" + " | ".join(map(self._write, node.parts)) + ")"
        if isinstance(node, Repeat):
            return f"({self._write(node.part)}){_times(node.least, node.most)}"
        assert isinstance(node, Sequence)
        found: list[str] = []
        codes: list[int] = []
        for part in (*node.parts, None):
            if isinstance(part, Class) and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]:
                codes.append(part.ranges[0][0])
                continue
            if codes:
                found.append(write_text(codes))
                codes = []
            if part is not None:
                found.append(self._write(part))
        return "(" + " ".join(found) + ")" if found else '""'


class _Order:
    """Which lexemes may begin an answer, and which may follow which."""

    def __init__(self, cutter: _Cutter) -> None:
        self.cutter = cutter
        self.first: dict[str, set[_Lexeme]] = {name: set() for name in cutter.trees}
        self.last: dict[str, set[_Lexeme]] = {name: set() for name in cutter.trees}
        self.empty: dict[str, bool] = dict.fromkeys(cutter.trees, False)
        self.after: dict[_Lexeme, set[_Lexeme]] = {}

    def tables(self) -> tuple[set[_Lexeme], dict[_Lexeme, set[_Lexeme]]]:
        while True:
            before = self._size()
            for name, tree in reversed(self.cutter.trees.items()):  # what is needed mostly comes later
                first, last, empty = self._visit(tree)
                self.first[name] |= first
                self.last[name] |= last
                self.empty[name] |= empty
            if self._size() == before:
                return self.first["root"], self.after

    def _size(self) -> int:
        tables = (*self.first.values(), *self.last.values(), *self.after.values())
        return sum(map(len, tables)) + sum(self.empty.values()) + len(self.after)

    def _visit(self, tree: object) -> tuple[set[_Lexeme], set[_Lexeme], bool]:
        if isinstance(tree, _Lexeme):
            self.after.setdefault(tree, set())
            shape = self.cutter.shape(tree)
            return {tree}, {tree}, shape is not None and shape.empty
        if isinstance(tree, Rule):
            return set(self.first[tree.name]), set(self.last[tree.name]), self.empty[tree.name]
        if isinstance(tree, Token):
            return set(), set(), False  # a token is told apart from text by itself
        assert isinstance(tree, tuple)
        if tree[0] == "alt":
            found = [self._visit(part) for part in tree[1]]
            return set().union(*(f[0] for f in found)), set().union(*(f[1] for f in found)), any(f[2] for f in found)
        if tree[0] == "rep":
            first, last, empty = self._visit(tree[1])
            if tree[3] is None or tree[3] > 1:
                self._follow(last, first)
            return first, last, empty or tree[2] == 0
        first, last, empty = set[_Lexeme](), set[_Lexeme](), True
        for part in tree[1]:
            next_first, next_last, next_empty = self._visit(part)
            self._follow(last, next_first)
            first = first | next_first if empty else first
            last = last | next_last if next_empty else next_last
            empty = empty and next_empty
        return first, last, empty

    def _follow(self, last: set[_Lexeme], first: set[_Lexeme]) -> None:
        for lexeme in last:
            self.after[lexeme] |= first


def _bits(number: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _regular(rules: dict[str, Node]) -> set[str]:
    """The rules that neither come back to themselves nor name tokens."""
    regular: set[str] = set()
    needs = {name: (set(_names(node)), _has_token(node)) for name, node in rules.items()}
    while True:
        more = {name for name, (names, token) in needs.items() if not token and names <= regular} - regular
        if not more:
            return regular
        regular |= more


def _ending(rules: dict[str, Node]) -> set[str]:
    """The rules that some text without recursion fits."""
    found: set[str] = set()

    def ends(node: Node) -> bool:
        if isinstance(node, Rule):
            return node.name in found
        if isinstance(node, Choice):
            return any(map(ends, node.parts))
        if isinstance(node, Sequence):
            return all(map(ends, node.parts))
        return not isinstance(node, Repeat) or node.least == 0 or ends(node.part)

    while more := {name for name, node in rules.items() if name not in found and ends(node)}:
        found |= more
    return found


def _children(tree: object) -> list[object]:
    if isinstance(tree, (Sequence, Choice)):
        return list(tree.parts)
    if isinstance(tree, Repeat):
        return [tree.part]
    if isinstance(tree, tuple):
        return [tree[1]] if tree[0] == "rep" else list(tree[1])
    return []


def _names(tree: object) -> list[str]:
    if isinstance(tree, Rule):
        return [tree.name]
    return [name for child in _children(tree) for name in _names(child)]


def _has_token(node: object) -> bool:
    return isinstance(node, Token) or any(map(_has_token, _children(node)))


def _ranges(node: object) -> list[tuple[int, int]]:
    if isinstance(node, Class):
        return list(node.ranges)
    return [pair for child in _children(node) for pair in _ranges(child)]


def _joined(run: list[Node]) -> Node:
    return run[0] if len(run) == 1 else Sequence(tuple(run))


def _replaced(tree: object, taken: dict[_Lexeme, object]) -> object:
    """A tree with some lexemes taken apart."""
    if isinstance(tree, _Lexeme):
        return taken.get(tree, tree)
    if isinstance(tree, tuple):
        if tree[0] == "rep":
            return ("rep", _replaced(tree[1], taken), tree[2], tree[3])
        return (tree[0], [_replaced(part, taken) for part in tree[1]])
    return tree


def _times(least: int, most: int | None) -> str:
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return signs.get((least, most), f"{{{least},{'' if most is None else most}}}")
