"""The table of character classes against Python's own, which is of another Unicode version."""

from __future__ import annotations

import unicodedata

from edgeinfer.model import unicode_classes as u

OF_CATEGORY = {"L": u.LETTER, "N": u.NUMBER, "P": u.PUNCTUATION, "M": u.MARK, "S": u.SYMBOL, "C": u.CONTROL}
SPACES = {0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def test_ascii_stands_for_itself() -> None:
    text = "".join(map(chr, range(128)))
    assert u.classes(text) == bytes(range(128))
    assert u.classes(text + "é")[:128] == bytes(range(128))


def test_known_characters() -> None:
    assert u.classes("é½€—\u0301\u3000🙂中\ufdd0") == bytes(
        [u.LETTER, u.NUMBER, u.SYMBOL, u.PUNCTUATION, u.MARK, u.SPACE, u.SYMBOL, u.LETTER, u.OTHER]
    )


def test_agrees_with_unicodedata_on_every_character_that_both_know() -> None:
    points = [p for p in range(0x80, 0x110000) if not 0xD800 <= p < 0xE000]
    ours = u.classes("".join(map(chr, points)))
    assert ours == bytes(map(u.class_of, map(chr, points)))
    differing = []
    for point, found in zip(points, ours, strict=True):
        category = unicodedata.category(chr(point))
        expected = u.SPACE if point in SPACES else u.OTHER if category == "Cn" else OF_CATEGORY[category[0]]
        # a character that this Python does not know yet, or the other way round in a Python newer than 15.1
        if found != expected and category != "Cn" and found != u.OTHER:
            differing.append((hex(point), category, found))
    assert differing == []
    if unicodedata.unidata_version == "15.1.0":
        assert u.OTHER in ours
