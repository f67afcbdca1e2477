"""Lower case and bare base letters, character by character, after Unicode 15.1. Must not know what they are for.

Python's `unicodedata` follows the Python version. Of characters that it knows, decompositions and simple lower case
never change; those that it may not know yet are listed here, and those of later versions are left as they are.
"""

from __future__ import annotations

import unicodedata

from .unicode_classes import CONTROL, OTHER, class_of

__all__ = ["lowered", "stripped"]

# upper case letters of Unicode 14, which Python 3.10 does not know: first, last, distance to the lower case
_NEW_LETTERS = (
    (0x2C2F, 0x2C2F, 48),
    (0xA7C0, 0xA7C0, 1),
    (0xA7D0, 0xA7D0, 1),
    (0xA7D6, 0xA7D6, 1),
    (0xA7D8, 0xA7D8, 1),
    (0x10570, 0x1057A, 39),
    (0x1057C, 0x1058A, 39),
    (0x1058C, 0x10592, 39),
    (0x10594, 0x10595, 39),
)
_NEW = {chr(p): chr(p + distance) for first, last, distance in _NEW_LETTERS for p in range(first, last + 1)}


def _known(character: str) -> bool:
    return class_of(character) not in (OTHER, CONTROL)


def lowered(character: str) -> str:
    """The simple lower case of one character, which is one character."""
    if not _known(character):
        return character
    return _NEW.get(character) or character.lower()[0]


def stripped(character: str) -> str:
    """The first character of one character's canonical decomposition: its base letter."""
    return unicodedata.normalize("NFD", character)[0] if _known(character) else character
