"""Seeded random texts of many kinds, for tokenizers to agree on."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["KINDS", "LONG_RUNS", "texts"]

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    " \n\t\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u3000",
    "   \n\n",
    "'\"!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`",
    "éèüßñçøÅǅΩжЯאשعربहिनข้าวકോമ한국어日本語中文ﬁſK",
    "e\u0301a\u0308\u200d\u200b\ufe0f\u20e3",
    "🙂🚀👩‍👩‍👧‍👦🇩🇪🦙𝒳𐍈",
    "½²Ⅷ٣৪๓〇①",
    "€£¥©™→≠∑▁Ġ",
)
PIECES = ("'s", "'T", "'re", "'LL", " don't", " we've", "\r\n", "    ", "\n\n\n", "1234567", " 12.5", "the ", " world")
HAN = "中文字体漢語龥龦㐀䶿鿿豈﨎\U00020000\U0002a6dd\U0002b820\U0002f800〇々〆"
KANA = "ひらがなカタカナゟヿーｱｲﾟ"
OTHERS = "ㄅㄆㄯ한국가힣ㄱㆎᄀ๐ไทยລາວភាសាမြန်ꩠꧠ⼀"
MARKS = "、。〃「」！？：；，…“”‘’—～．０９ＡＺａｚ\u3000︰﹏"
EMOJI = ("🙂", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "3️⃣", "\u200d", "\ufe0f", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🤷🏻‍♀️")
WORDS = (
    *("the", "Hello", "WORLD", "camelCase", "HTMLParser", "naïve", "ﬁne", "Straße", "I'm", "don't", "WE'RE", "it's"),
    *("Ünïcödé", "привет", "ДА", "ελλάς", "e\u0301te\u0301", "x", "A", "iPhone", "O'Neil", "l'été", "rock'n'roll"),
)
CODE = (*("IMGIMGABCDZ", "IMGIMGZ", "<mask>", "<dna>ACGT</dna>"),)


def _unicode(rng: random.Random, extra: tuple[str, ...]) -> str:
    favoured = rng.sample(ALPHABETS, rng.randint(1, 4))
    parts = []
    for _ in range(rng.randint(0, 40)):
        dice = rng.random()
        if dice < 0.75:
            parts.append(rng.choice(rng.choice(favoured)))
        elif dice < 0.85:
            parts.append(rng.choice(PIECES + extra))
        else:
            point = rng.randrange(0x10FFFF if rng.random() < 0.5 else 0x3000)
            parts.append(chr(point) if not 0xD800 <= point < 0xE000 else "x")
    return "".join(parts)


def _mixed(*sources: str | tuple[str, ...]) -> Callable[[random.Random, tuple[str, ...]], str]:
    def make(rng: random.Random, extra: tuple[str, ...]) -> str:
        pool: list[str | tuple[str, ...]] = [*sources, extra or ("a",)] if rng.random() < 0.3 else [*sources]
        return "".join(rng.choice(rng.choice(pool)) for _ in range(rng.randint(0, 40)))

    return make


def _runs(alphabet: str, longest: int, between: tuple[str, ...]) -> Callable[[random.Random, tuple[str, ...]], str]:
    def make(rng: random.Random, extra: tuple[str, ...]) -> str:
        parts: list[str] = []
        for _ in range(rng.randint(0, 6)):
            run = rng.choice(alphabet) * rng.randint(1, longest)
            parts += [run if rng.random() < 0.6 else "".join(rng.choice(alphabet) for _ in run), rng.choice(between)]
        return "".join(parts[: rng.randint(0, len(parts))])

    return make


_CONTROL = "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f\xad\u061c\u200b\u200e\u202e\u2060\u2066\ufeff\ufffd\uffff"
_CONTROL += "\ue000\U000e0001\U000f0000\U0010fffd\U00100000\u0378\ufdd0"
_BETWEEN = ("a", "1", ".", "中", "é", " x", "\n", "'s", "")
_SPACES = " \n\t\r\v\f\x85\xa0\u2003\u2028\u3000"

KINDS: dict[str, Callable[[random.Random, tuple[str, ...]], str]] = {
    "Unicode": _unicode,
    "words": _mixed(WORDS, (" ", " ", "  ", ", ", ". ", "\n")),
    "code": _mixed(CODE, WORDS, (" ", "\n", "1", "a")),
    "spaces": _runs("   \n\n" + _SPACES, 12, _BETWEEN),
    "digits": _runs("0123456789٣½²৪０", 10, (" ", ",", ".", "-", "a", "中", "  ", "\n", "")),
    "CJK": _mixed(HAN, KANA, OTHERS, MARKS, "aB1 ,\n"),
    "emoji": _mixed(EMOJI, ("a", " ", "\n", "1")),
    "control": _mixed(_CONTROL, "ab1 .\n"),
}

# what a careless loop takes quadratic time for: many of one character, and what stands in the way at their end
LONG_RUNS = {
    **{name: (character, "") for name, character in (("letters", "a"), ("capitals", "A"), ("Chinese", "中"))},
    **{name: (character, "") for name, character in (("digits", "7"), ("marks", "!"), ("emoji", "🙂"), ("NUL", "\0"))},
    **{name: (character, "") for name, character in (("newlines", "\n"), ("spaces", " "), ("wide spaces", "\u3000"))},
    "spaces before Chinese": (" ", "中"),
    "spaces before a letter": (" ", "a"),
    "newlines before spaces": ("\n", "  x"),
    "short words": ("a ", ""),
    "accents": ("e\u0301", ""),
    "apostrophes": ("'", "s"),
    "words without end": ("Ab", ""),
}


def texts(seed: int, count: int, extra: tuple[str, ...] = ()) -> list[str]:
    """Texts of all kinds in turn; now and then they hold a piece of `extra`, such as a special token."""
    rng = random.Random(seed)
    makers = list(KINDS.values())
    return [makers[at % len(makers)](rng, extra) for at in range(count)]
