"""The machinery of pre-tokenizer rules: steps that cut a text into ever smaller pieces. Must not know a rule or a name.

A step looks at the text in one of three forms, all as long as the text itself, so that places in one are places in all:

    kinds   bytes: ASCII as it is, anything else as the byte of its class (`unicode_classes`)
    points  str: the text, with white space beyond ASCII written as a vertical tab
    han     kinds, with Chinese characters told apart from other letters

so that no rule depends on the Unicode version that Python happens to have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .unicode_classes import LETTER, classes

__all__ = ["HAN_LETTER", "HAN_OTHER", "Reading", "Step", "by_function", "by_kinds", "by_points", "cut_pieces"]

HAN_LETTER, HAN_OTHER = 0xD7, 0xD8
_WIDE_SPACE = re.compile("[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
# first and last code points of the blocks that count as Chinese
_HAN = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


class Reading:
    """A text in the forms that steps look at; each is made when it is first asked for."""

    def __init__(self, text: str) -> None:
        """`text` has no lone surrogates."""
        self.text = text

    @cached_property
    def kinds(self) -> bytes:
        """One byte per code point: its class."""
        return classes(self.text)

    @cached_property
    def points(self) -> str:
        """The text with all white space in ASCII."""
        return self.text if self.text.isascii() else _WIDE_SPACE.sub("\v", self.text)

    @cached_property
    def han(self) -> bytes:
        """`kinds`, with HAN_LETTER and HAN_OTHER for code points of the Chinese blocks."""
        if self.text.isascii():
            return self.kinds
        points = np.frombuffer(self.text.encode("utf-32-le"), np.uint32)
        kinds = np.frombuffer(self.kinds, np.uint8)
        chinese = np.zeros(len(points), bool)
        for first, last in _HAN:
            chinese |= (points >= first) & (points <= last)
        return np.where(chinese, np.where(kinds == LETTER, HAN_LETTER, HAN_OTHER), kinds).astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Step:
    """One cut: where it finds a span, a piece is cut before and after that. An empty span cuts in its place."""

    form: str  # "kinds", "points" or "han"
    source: str = ""  # a pattern, compiled when it is first used: a process needs one rule of all
    function: Callable[[Any, int, int], Iterable[tuple[int, int]]] | None = None  # in place of a pattern
    whole: bool = False  # the pattern looks at nothing but the characters it takes, so a text without them is skipped

    @cached_property
    def pattern(self) -> re.Pattern[Any]:
        """The compiled pattern."""
        if self.form == "points":
            return re.compile(self.source, re.ASCII)
        return re.compile(self.source.encode("latin-1"))

    def spans(self, subject: Any, start: int, end: int) -> Iterable[tuple[int, int]]:
        """What is cut out of the piece from `start` to `end` of a text in this step's form."""
        if self.function is not None:
            return self.function(subject, start, end)
        return [match.span() for match in self.pattern.finditer(subject, start, end)]


def by_kinds(pattern: str, form: str = "kinds") -> Step:
    """A step by a pattern over classes, written in Latin-1."""
    return Step(form, pattern)


def by_points(pattern: str) -> Step:
    r"""A step by a pattern over characters, without anchors and look-ahead; `\s` is white space of any kind."""
    return Step("points", pattern, whole=True)


def by_function(function: Callable[[Any, int, int], Iterable[tuple[int, int]]]) -> Step:
    """A step over classes that no pattern does in linear time."""
    return Step("kinds", function=function)


def cut_pieces(text: str, steps: Iterable[Step]) -> list[str]:
    """The words of `text`, which joined give it back."""
    reading = Reading(text)
    pieces = [(0, len(text))] if text else []
    for step in steps:
        subject = getattr(reading, step.form)
        if step.whole and not step.pattern.search(subject):
            continue
        spans = step.spans
        cut: list[tuple[int, int]] = []
        for piece in pieces:
            done, end = piece
            if end - done == 1:
                cut.append(piece)
                continue
            for first, last in spans(subject, done, end):
                if first > done:
                    cut.append((done, first))
                if last > first:
                    cut.append((first, last))
                done = last
            if done < end:
                cut.append((done, end))
        pieces = cut
    return [text[start:end] for start, end in pieces]
