"""GBNF, the grammars of llama.cpp, read and written as the Lark that llguidance takes. Knows no vocabulary.

    root ::= "[" (number ("," number)*)? "]"
    number ::= [0-9]+

What has no recursion is a regular expression, and llguidance reads the largest such pieces (lexemes) at once, each as far
as it goes. GBNF goes character by character instead, so a piece that could also end earlier, in front of what follows it,
is taken apart until it cannot: `lexemes.py` finds those.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ..errors import SettingError

__all__ = ["ANY", "Choice", "Class", "Node", "Repeat", "Rule", "Sequence", "Token", "is_gbnf", "parse"]

_LAST = 0x10FFFF
_ESCAPES = {"t": 9, "n": 10, "r": 13, "\\": 92, '"': 34, "[": 91, "]": 93, "-": 45, "/": 47}
_HEX = {"x": 2, "u": 4, "U": 8}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MOST_DEPTH = 200


@dataclass(frozen=True)
class Class:
    """One character out of ranges of code points, both ends included."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Token:
    """One token of the vocabulary, as Lark writes it: <[5]> or <name>."""

    text: str


@dataclass(frozen=True)
class Rule:
    """What a rule of that name says."""

    name: str
    place: int = field(compare=False)  # of the reference in the text


@dataclass(frozen=True)
class Sequence:
    """One after the other; empty is nothing."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of them."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """The same thing least to most times; most None is without end."""

    part: Node
    least: int
    most: int | None


Node = Class | Token | Rule | Sequence | Choice | Repeat
ANY = Class(((0, _LAST),))


def is_gbnf(text: str) -> bool:
    """Whether a grammar is written in GBNF, not in Lark."""
    return re.search(r"^\s*[A-Za-z0-9_-]+\s*::=", text, re.MULTILINE) is not None


def parse(text: str) -> dict[str, Node]:
    """The rules of a grammar. Raises SettingError with line and column."""
    return _Parser(text).rules()


class _Parser:
    """Reads a grammar from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def wrong(self, what: str, place: int | None = None) -> SettingError:
        place = self.at if place is None else place
        line = self.text.count("\n", 0, place) + 1
        column = place - (self.text.rfind("\n", 0, place) + 1) + 1
        return SettingError(f"grammar cannot be used: line {line}, column {column}: {what}")

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        references: list[Rule] = []
        self.references = references
        self.space(lines=True)
        while self.at < len(self.text):
            start = self.at
            name = self.name()
            if name in rules:
                raise self.wrong(f"there are two rules {name!r}", start)
            self.space()
            if not self.take("::="):
                raise self.wrong(f"wanted ::= after the rule's name {name!r}")
            self.space(lines=True)
            rules[name] = self.choice(nested=False, depth=0)
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                raise self.wrong(f"{self.text[self.at]!r} does not belong here")
            self.space(lines=True)
        for reference in references:
            if reference.name not in rules:
                raise self.wrong(f"there is no rule {reference.name!r}", reference.place)
        if "root" not in rules:
            raise self.wrong("there is no rule 'root'", 0)
        return rules

    def take(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) * found
        return found

    def space(self, lines: bool = False) -> None:
        """Skip white space and comments, and new lines where they mean nothing."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in " \t" or (lines and self.text[self.at] in "\r\n"):
                self.at += 1
            else:
                return

    def name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self.wrong("wanted the name of a rule")
        self.at = found.end()
        return found[0]

    def choice(self, nested: bool, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            raise self.wrong(f"parentheses are nested more than {_MOST_DEPTH} deep")
        parts = [self.sequence(nested, depth)]
        while self.take("|"):
            self.space(lines=True)
            parts.append(self.sequence(nested, depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def sequence(self, nested: bool, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.text):
            start, sign = self.at, self.text[self.at]
            if sign == '"':
                part = self.literal()
            elif sign == "[":
                part = self.characters()
            elif sign == ".":
                self.at += 1
                part = ANY
            elif sign == "(":
                self.at += 1
                self.space(lines=True)
                part = self.choice(nested=True, depth=depth + 1)
                if not self.take(")"):
                    raise self.wrong("this parenthesis is not closed", start)
            elif sign in "<!":
                part = self.token()
            elif _NAME.match(sign):
                part = Rule(self.name(), start)
                self.references.append(part)
            else:
                break
            self.space(lines=nested)
            parts.append(self.repeated(part, nested))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeated(self, part: Node, nested: bool) -> Node:
        while self.at < len(self.text):
            start, sign = self.at, self.text[self.at]
            most: int | None
            if sign in "*+?":
                self.at += 1
                least, most = (1 if sign == "+" else 0), (1 if sign == "?" else None)
            elif sign == "{":
                found = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}").match(self.text, self.at)
                if found is None:
                    raise self.wrong("wanted {m}, {m,} or {m,n}")
                self.at = found.end()
                least = int(found[1])
                most = int(found[3]) if found[3] else (None if found[2] else least)
                if max(least, most or 0) > 10_000 or (most is not None and most < least):
                    raise self.wrong(f"{found[0]} repeats too often or the wrong way round", start)
            else:
                break
            part = Repeat(part, least, most)
            self.space(lines=nested)
        return part

    def literal(self) -> Node:
        start = self.at
        self.at += 1
        parts: list[Node] = []
        while not self.take('"'):
            if self.at >= len(self.text) or self.text[self.at] == "\n":
                raise self.wrong("this string is not closed", start)
            code = self.character()
            parts.append(Class(((code, code),)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def characters(self) -> Node:
        start = self.at
        self.at += 1
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                raise self.wrong("this class of characters is not closed", start)
            place = self.at
            low = high = self.character()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.character()
                if high < low:
                    raise self.wrong("this range is the wrong way round", place)
            ranges.append((low, high))
        kept = tuple(_merged(ranges))
        if negated:
            edges = [-1, *(edge for low, high in kept for edge in (low, high)), _LAST + 1]
            kept = tuple((a + 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a + 1 <= b - 1)
        if not kept:
            raise self.wrong("this class of characters is empty", start)
        return Class(kept)

    def character(self) -> int:
        """The next character or escape as a code point."""
        if self.at >= len(self.text):
            raise self.wrong("the grammar ends in the middle of a string")
        start, sign = self.at, self.text[self.at]
        self.at += 1
        if sign != "\\":
            return ord(sign)
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _HEX:
            digits = self.text[self.at : self.at + _HEX[kind]]
            if len(digits) == _HEX[kind] and re.fullmatch("[0-9a-fA-F]+", digits):
                self.at += len(digits)
                code = int(digits, 16)
                if code <= _LAST and not 0xD800 <= code < 0xE000:
                    return code
            raise self.wrong(f"\\{kind}{digits} is no character; wanted {_HEX[kind]} hexadecimal digits", start)
        if kind in _ESCAPES and kind:
            return _ESCAPES[kind]
        raise self.wrong(f"there is no escape \\{kind}", start)

    def token(self) -> Node:
        start = self.at
        negated = self.take("!")
        found = re.compile(r"<(?:\[(\d+)\]|([^<>\s]+))>").match(self.text, self.at)
        if found is None or (negated and not found[1]):
            wanted = "!<[ID]>" if negated else "<[ID]> or <NAME>"
            raise self.wrong(f"this is no token; wanted {wanted}", start)
        self.at = found.end()
        return Token(f"<[^{found[1]}]>" if negated else found[0])


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges without overlaps, ascending."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def write_class(ranges: tuple[tuple[int, int], ...]) -> str:
    """A class of characters as a regular expression."""
    inside = "".join(f"\\u{{{low:X}}}" + (f"-\\u{{{high:X}}}" if high > low else "") for low, high in ranges)
    return f"/[{inside}]/"


def write_text(codes: list[int]) -> str:
    """A literal as Lark writes it."""
    return json.dumps("".join(map(chr, codes)), ensure_ascii=False)
