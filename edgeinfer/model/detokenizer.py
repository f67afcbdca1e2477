"""Ids -> text as it grows: a character is released as soon as its last byte is there. Must not know encoding."""

from __future__ import annotations

import codecs
from typing import Protocol

__all__ = ["Detokenizer"]


class Pieces(Protocol):
    """What a detokenizer needs of a vocabulary."""

    @property
    def add_space_prefix(self) -> bool:
        """Whether encoding puts a space before a text."""

    @property
    def prefix_after_special(self) -> bool:
        """Whether it does so after special tokens, and not only at the beginning of a text."""

    def piece(self, token_id: int, special: bool = False) -> bytes:
        """The bytes of a token."""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control or user-defined one."""


class Detokenizer:
    """Turns the ids of one text, one by one, into text.

    Bytes that are no UTF-8 become U+FFFD, but only once no further byte could complete them. The space that encoding
    put before the text is taken off again.
    """

    def __init__(self, pieces: Pieces, after: int | None = None, special: bool = False) -> None:
        """`after` is the id before the first one, None at the beginning of a text; `special` shows control tokens."""
        self._pieces = pieces
        self._special = special
        self._strip = pieces.add_space_prefix and (after is None or pieces.is_special(after))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next id; return the text that became complete, often none. Raises SettingError for an unknown id."""
        piece = self._pieces.piece(token_id, self._special)
        if self._pieces.add_space_prefix:
            if self._pieces.prefix_after_special and self._pieces.is_special(token_id):
                self._strip = True
            elif self._strip and piece:
                piece = piece.removeprefix(b" ")
                self._strip = False
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The ids have ended: return U+FFFD if they ended inside a character. The stream can then take a new text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
