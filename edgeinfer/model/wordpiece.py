"""WordPiece as BERT does it (`tokenizer.ggml.model` = bert): the longest token that fits, again and again, in each word.

Words are what stands between white space, punctuation and Chinese characters, in lower case and without accents where
the file asks for it. The file writes the beginning of a word with U+2581 before it and the rest of a word without the
"##" that other programs print. Reading is lossy: white space, case and accents do not come back. Must not know special
tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from .merging import MARK, Memo, WordMemo
from .string_table import StringTable
from .unicode_classes import CONTROL, PUNCTUATION, SPACE, class_of
from .unicode_classes import MARK as ACCENT
from .unicode_folding import lowered, stripped

__all__ = ["WordPieceEncoder"]

_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_ASCII_SPACE = frozenset(" \t\n\v\f\r")
# blocks whose characters are words of their own; llama.cpp's list, a gap at U+2B820 included
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class _Normalized(dict[int, str]):
    """Code point -> what it becomes: a lower case letter, nothing, or a word of its own. Filled as it is used."""

    def __init__(self, lower: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lower, self._strip_accents = lower, strip_accents

    def __missing__(self, point: int) -> str:
        self[point] = found = self._of(chr(point))
        return found

    def _of(self, character: str) -> str:
        if self._strip_accents:
            character = stripped(character)
        point, kind = ord(character), class_of(character)
        if kind == SPACE or character in _ASCII_SPACE:
            return " "
        if character in "\0\ufffd" or kind == CONTROL or point < 0x20 or point == 0x7F:
            return ""
        if self._strip_accents and kind == ACCENT:
            return ""
        text = lowered(character) if self._lower else character
        alone = kind == PUNCTUATION or character in _ASCII_PUNCTUATION or any(a <= point <= z for a, z in _CHINESE)
        return f" {text} " if alone else text


class WordPieceEncoder:
    """Text -> ids. `allowed(id)` says whether text may become that token: control tokens must not."""

    def __init__(
        self,
        vocab: StringTable,
        unknown: int | None,
        allowed: Callable[[int], bool],
        *,
        lower: bool = True,
        strip_accents: bool = True,
    ) -> None:
        """`unknown` stands for a word that has a part without a token."""
        self._vocab = vocab
        self._unknown = [] if unknown is None else [unknown]
        self._allowed = allowed
        self._normalized = _Normalized(lower, strip_accents)
        self._words = WordMemo(lambda word: self._word(MARK + word))
        self._parts = Memo(self._find)
        self._longest: dict[str, int] = {}  # characters of the longest token, by its first character
        for index in range(len(vocab)):
            token = vocab[index].decode(errors="replace")
            if len(token) > self._longest.get(token[:1], 0):
                self._longest[token[:1]] = len(token)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text (no lone surrogates)."""
        ids: list[int] = []
        for word in text.translate(self._normalized).split(" "):
            if not word:
                continue
            ids += self._words[word]
        return ids

    def _find(self, part: str) -> int:
        index = self._vocab.find(part.encode())
        return index if index >= 0 and self._allowed(index) else -1

    def _word(self, word: str) -> list[int]:
        ids = []
        at, end = 0, len(word)
        while at < end:
            for stop in range(min(end, at + self._longest.get(word[at], 0)), at, -1):
                index = self._parts[word[at:stop]]
                if index >= 0:
                    ids.append(index)
                    at = stop
                    break
            else:
                return self._unknown
        return ids
