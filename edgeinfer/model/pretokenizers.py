"""How text is cut into words before byte pairs are merged: one rule per value of `tokenizer.ggml.pre`.

Each rule is a row of patterns; a pattern cuts every piece that the one before it left. Patterns run over one byte per
code point (`unicode_classes`), which keeps their sets small and the rule independent of Python's Unicode version.
Must not know a vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UnsupportedModelError
from .unicode_classes import classes

__all__ = ["RULES", "PreTokenizer", "rule_named"]

_L, _N, _P = "A-Za-z\xd2", "0-9\xd1", "!-#%-*,-/:;?@\\[-\\]_{}\xd3"
_ENGLISH = "'(?:[sdmt]|re|ve|ll)"
_ENGLISH_ANY_CASE = "'(?:[sdmtSDMT]|[rR][eE]|[vV][eE]|[lL][lL])"
_GPT2 = rf"{_ENGLISH}| ?[{_L}]+| ?[{_N}]+| ?[^\s{_L}{_N}]+|\s+(?!\S)|\s+"


def _modern(number: str) -> str:
    """The rule of Llama 3 and Qwen 2, which differ in how many digits stay together."""
    return (
        rf"{_ENGLISH_ANY_CASE}|[^\r\n{_L}{_N}]?[{_L}]+|[{_N}]{number}| ?[^\s{_L}{_N}]+[\r\n]*"
        rf"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """A rule, and what else its name settles."""

    patterns: tuple[re.Pattern[bytes], ...]
    ignore_merges: bool = False  # a whole word that is a token is taken as it is
    add_bos: bool = False  # where the file does not say

    def split(self, text: str) -> list[str]:
        """The words of `text`, which joined give it back."""
        kinds = classes(text)
        pieces = [(0, len(text))] if text else []
        for pattern in self.patterns:
            cut: list[tuple[int, int]] = []
            for start, end in pieces:
                done = start
                for match in pattern.finditer(kinds, start, end):
                    first, last = match.span()
                    if first > done:
                        cut.append((done, first))
                    cut.append((first, last))
                    done = last
                if done < end:
                    cut.append((done, end))
            pieces = cut
        return [text[start:end] for start, end in pieces]


def _rule(*patterns: str, ignore_merges: bool = False, add_bos: bool = False) -> PreTokenizer:
    return PreTokenizer(tuple(re.compile(p.encode("latin-1")) for p in patterns), ignore_merges, add_bos)


_DEFAULT = _rule(rf"[{_P}$+<=>^~|]+", _GPT2, f"[{_N}]+", "[0-9]{3}")
_GPT = _rule(_GPT2)
_DIGITS_APART = _rule(f"[{_N}]", _GPT2)
_LLAMA3 = _rule(_modern("{1,3}"), ignore_merges=True, add_bos=True)
_QWEN2 = _rule(_modern(""))

# the first name of each row is the one that is tested; llama.cpp cuts by the same rule under the others
RULES: dict[str, PreTokenizer] = {
    name: rule
    for rule, names in (
        (_DEFAULT, "default"),
        (_GPT, "gpt-2 phi-2 mpt olmo jais trillion granite-docling"),
        (_DIGITS_APART, "smollm starcoder refact command-r codeshell exaone"),
        (_LLAMA3, "llama-bpe llama3 llama-v3"),
        (_QWEN2, "qwen2 stablelm2 deepseek-r1-qwen megrez"),
    )
    for name in names.split()
}


def rule_named(name: str) -> PreTokenizer:
    """The rule for a value of `tokenizer.ggml.pre`. Raises UnsupportedModelError naming a value that has none."""
    try:
        return RULES[name]
    except KeyError:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {name!r}, a way of cutting text that is not known here; another way would make the "
            f"answers worse, so the model is refused. Known are {', '.join(RULES)}"
        ) from None
