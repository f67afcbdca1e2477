"""How text is cut into words before byte pairs are merged: one rule per value of `tokenizer.ggml.pre`.

Each rule is a row of steps; a step cuts every piece that the one before it left. The rules are llama.cpp's, which now
and then differ from those of the model's own tokenizer (it knows upper and lower case in ASCII only, for one): files
are made and tested with llama.cpp. Must not know a vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ..errors import SettingError, UnsupportedModelError
from .text_cutting import HAN_LETTER, HAN_OTHER, Step, by_function, by_kinds, by_points, cut_pieces

__all__ = ["RULES", "PreTokenizer", "rule_named"]


@dataclass(frozen=True)
class PreTokenizer:
    """A rule, and what else its name settles."""

    steps: tuple[Step, ...]
    ignore_merges: bool = False  # a whole word that is a token is taken as it is
    add_bos: bool = False  # where the file does not say
    byte_level: bool = True  # merges work on the byte alphabet; if not, on characters, with byte tokens for the rest
    marks_spaces: bool = False  # spaces are written as U+2581 before anything else
    newlines_whole: bool = False  # a run of newlines that is a token is taken as it is
    always_bos: bool = False  # whatever the file says

    def split(self, text: str) -> list[str]:
        """The words of `text`, which joined give it back."""
        return cut_pieces(text, self.steps)


# -- classes, as they stand inside brackets ---------------------------------------------------------------------------

_L, _N, _M = "A-Za-z\xd2", "0-9\xd1", "\xd4"  # letters, numbers, marks
_P = "!-#%-*,-/:;?@\\[-\\]_{}\xd3"  # punctuation
_S = "$+<=>\\^`|~\xd5"  # symbols
_UPPER, _LOWER = "A-Z\xd2", "a-z\xd2"  # beyond ASCII a letter counts as either
_ASCII_MARKS = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
_HAN_LETTER, _HAN_OTHER = chr(HAN_LETTER), chr(HAN_OTHER)

# -- alternatives that many rules share -------------------------------------------------------------------------------

_ENGLISH = "'(?:[sdmt]|re|ve|ll)"
_ANY_CASE = "'(?:[sdmtSDMT]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACES = r"\s+(?!\S)|\s+"
_LINES_SPACES = rf"\s*[\r\n]+|{_SPACES}"
_BEFORE = rf"[^\r\n{_L}{_N}]?"  # what a word may begin with
_REST = rf" ?[^\s{_L}{_N}]+"
_GPT2 = rf"{_ENGLISH}| ?[{_L}]+| ?[{_N}]+|{_REST}|{_SPACES}"


def _modern(number: str, contraction: str = f"{_ANY_CASE}|") -> str:
    """The rule of Llama 3, Qwen 2 and their kin, which differ in how many digits stay together."""
    return rf"{contraction}{_BEFORE}[{_L}]+|[{_N}]{number}|{_REST}[\r\n]*|{_LINES_SPACES}"


def _cased(number: str, after: str, more: str = "") -> str:
    """The rule of GPT-4o and its kin: a word is upper case, then lower case; `after` is what may follow it."""
    upper, lower = f"[{_UPPER}{more}]", f"[{_LOWER}{more}]"
    return (
        rf"{_BEFORE}{upper}*{lower}+{after}|{_BEFORE}{upper}+{lower}*{after}"
        rf"|{number}|{_REST}[\r\n/]*|{_LINES_SPACES}"
    )


def _code(lines: str) -> str:
    """The rule of DeepSeek 3 and its kin, once numbers and Chinese are cut out; `lines` is what ends in line breaks."""
    return rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n{_L}{_P}{_S}]?[{_L}{_M}]+| ?[{_P}{_S}]+{lines}|{_SPACES}"


# -- steps that no pattern does in linear time ------------------------------------------------------------------------

_WHITE = b" \t\n\r\v\f"


def _trailing_space(kinds: bytes, start: int, end: int) -> list[tuple[int, int]]:
    kept = start + len(kinds[start:end].rstrip(_WHITE))
    return [(kept, end)] if kept < end else []


_NUMBERS, _DIGITS = re.compile(f"[{_N}]+".encode("latin-1")), re.compile(b"[0-9]+")


def _after_thousands(kinds: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Numbers in groups of three, counted from the right; what stands before a number stays with its first group."""
    for run in _NUMBERS.finditer(kinds, start, end):
        first, last = run.span()
        lead = (last - first) % 3
        for at in range(first + (lead or 3), last + 1, 3):
            yield at, at


def _before_thousands(kinds: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Groups of three ASCII digits, counted from the right, are cut off before each group."""
    for run in _DIGITS.finditer(kinds, start, end):
        first, last = run.span()
        for at in range(first + (last - first) % 3, last, 3):
            yield at, at


def _halved_spaces(kinds: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """White space that ends in no line break is cut into pieces of 512, then 256, and so on down to 4, 2 or 1."""
    if kinds[end - 1] in b"\r\n" or kinds[start:end].strip(_WHITE):
        return
    size = 512
    while start < end:
        while size > end - start:
            size = size // 2 if size != 4 else 2
        yield start, start + size
        start += size


_BEFORE_THOUSANDS, _AFTER_THOUSANDS = by_function(_before_thousands), by_function(_after_thousands)
_TRIPLES = by_kinds(f"[{_N}]{{1,3}}")
_SINGLES = by_kinds(f"[{_N}]")
_CJK = by_points("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+")
_CJK_AND_HANGUL = by_points("[\u0800-\u9fa5\uac00-\ud7ff]+")
_LINE_BREAKS = by_points("[\r\n]")
_LINES = by_kinds("[^\n]+|\n+")

# -- the rules --------------------------------------------------------------------------------------------------------


def _rule(*steps: Step | str, **more: bool) -> PreTokenizer:
    return PreTokenizer(tuple(by_kinds(step) if isinstance(step, str) else step for step in steps), **more)


_GPT = _rule(_GPT2)
_DIGITS_APART = _rule(_SINGLES, _GPT2)
_LLAMA3 = _rule(_modern("{1,3}"))
_QWEN2 = _rule(_modern(""))
_GPT4O = _rule(_cased(f"[{_N}]{{1,3}}", f"(?:{_ANY_CASE})?"))
_DEEPSEEK3 = _rule(_TRIPLES, _CJK, _code(r"[\r\n]*|\s*[\r\n]+"))
_FINNISH = by_points(r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+")
_BY_LINES = _rule(_LINES, byte_level=False, marks_spaces=True)

# cased letters of scripts that have them, as DeepSeek's tokenizer lists them
_DEEPSEEK_LETTERS = (
    r"A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    r"\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    r"\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    r"\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    r"\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    r"\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    r"\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    r"\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    r"\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    r"\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = _rule(
    _LINE_BREAKS,
    by_points(rf"\s?[{_DEEPSEEK_LETTERS}]+"),
    by_points(r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
    by_function(_trailing_space),
    _CJK_AND_HANGUL,
    by_kinds(f"[{_N}]+"),
)
_YOUTU = _rule(
    by_points(
        r"[\uac00-\ud7a3\u3131-\u318e]+"
        r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        r"|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    ),
    rf"{_BEFORE}[{_L}{_M}]+(?:{_ANY_CASE})?|[{_N}]|{_REST}[\r\n/]*|{_LINES_SPACES}",
    ignore_merges=True,
)
_CHAMELEON = _rule(
    by_points("<sentinel:[0-9]+>"),
    by_points("IMGIMG[A-I]{1,4}Z"),
    by_points("[\t\n]|    |  "),
    _SINGLES,
    rf"[{_P}!-/:-@\[-`{{-~]",
    _GPT2,
    add_bos=True,
)
_KIMI = _rule(
    by_kinds(
        rf"[{_HAN_LETTER}{_HAN_OTHER}]+|[^\r\n{_L}{_N}{_HAN_LETTER}]?[{_L}]+(?:{_ANY_CASE})?|[{_N}]{{1,3}}"
        rf"| ?[^\s{_L}{_N}{_HAN_LETTER}]+[\r\n]*|{_LINES_SPACES}",
        form="han",
    )
)
_AFMOE = _rule(
    _AFTER_THOUSANDS,
    by_points(
        "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
        "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
    ),
    _code(r"[\r\n]*|\s*[\r\n]+"),
)
_EXAONE_MOE = _rule(
    rf"{_ANY_CASE}|{_BEFORE}[{_L}][{_L}{_M}]*(?: [{_L}][{_L}{_M}]*)*|[{_N}]|{_REST}[\r\n/]?|\s*[\r\n]|{_SPACES}"
)

# the first name of each row is the one that is tested at length; the others are cut by the same rule
RULES: dict[str, PreTokenizer] = {
    name: rule
    for rule, names in (
        (_rule(rf"[{_P}$+<=>^~|]+", _GPT2, f"[{_N}]+", "[0-9]{3}"), "default"),
        (
            _GPT,
            "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat exaone4 mellum a.x-4.0 modern-bert roberta-bpe "
            "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code",
        ),
        (_DIGITS_APART, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
        (
            replace(_LLAMA3, ignore_merges=True, add_bos=True),
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        ),
        (_LLAMA3, "dbrx smaug-bpe chatglm-bpe"),
        (replace(_LLAMA3, ignore_merges=True), "glm4 glm5"),
        (
            _QWEN2,
            "qwen2 stablelm2 deepseek-r1-qwen megrez kormo f2llmv2 hunyuan solar-open grok-2 bailingmoe bailingmoe2 "
            "llada-moe",
        ),
        (
            _rule(
                rf"{_ANY_CASE}|{_BEFORE}[{_L}{_M}]+|[{_N}]| ?[^\s{_L}{_M}{_N}]+[\r\n]*|{_LINES_SPACES}",
            ),
            "qwen35",
        ),
        (_rule(_modern("", contraction="")), "ufakzeka"),
        (_rule(_LINES, _modern("")), "laguna"),
        (_rule(_TRIPLES, _modern("+"), ignore_merges=True), "minicpm5"),
        (_rule(_modern("{1,3}"), by_function(_halved_spaces)), "jais-2"),
        (_rule(rf"{_ANY_CASE}|{_BEFORE}[{_L}]+|[{_N}]| ?[^\s{_L}{_N}\r\n]+|{_LINES_SPACES}"), "seed-coder"),
        (_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
        (
            _rule(_cased(f"[{_N}]{{1,3}}", f"(?:{_ANY_CASE})?", more=_M), ignore_merges=True),
            "granite-embed-multi-97m",
        ),
        (_rule(_cased(f"[{_N}]", ""), ignore_merges=True, add_bos=True), "tekken"),
        (
            _rule(
                _AFTER_THOUSANDS,
                rf"{_BEFORE}[{_L}{_M}]+(?:{_ANY_CASE})?|[{_N}]{{1,3}}|{_REST}[\r\n/]*|{_LINES_SPACES}",
            ),
            "tiny_aya cohere2moe",
        ),
        (_rule(f"[{_N}]+", _BEFORE_THOUSANDS), "superbpe"),
        (_DEEPSEEK_LLM, "deepseek-llm"),
        (
            _rule(_LINE_BREAKS, rf"\s?[{_L}]+", rf"\s?[{_P}]+", _CJK_AND_HANGUL, _SINGLES),
            "deepseek-coder",
        ),
        (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
        (_rule(_TRIPLES, _CJK, _code(r"|[\r\n]"), _SINGLES), "spark2_5"),
        (_YOUTU, "youtu"),
        (_AFMOE, "afmoe"),
        (_KIMI, "kimi-k2"),
        (_EXAONE_MOE, "exaone-moe"),
        (_rule(rf"[{_P}$+<=>^~|`]+", _GPT2, "[0-9]{3}"), "falcon"),
        (_rule(_FINNISH), "poro-chat bloom gpt3-finnish"),
        (_rule(_FINNISH, _SINGLES), "viking"),
        (_CHAMELEON, "chameleon"),
        (replace(_BY_LINES, newlines_whole=True, always_bos=True), "gemma4 granite-embed-multi-311m"),
        (_BY_LINES, "sarvam-moe"),
        (_rule(by_points(r"\S+"), byte_level=False), "whitespace"),
    )
    for name in names.split()
}


def rule_named(name: str, *, override: bool = False) -> PreTokenizer:
    """The rule for a value of `tokenizer.ggml.pre`, or for one that the user gave in its place.

    Raises UnsupportedModelError (SettingError for the user's) naming a value that has no rule.
    """
    if name in RULES:
        return RULES[name]
    close = get_close_matches(name, RULES, 3, cutoff=0.7)
    meant = f"; did you mean {' or '.join(close)}" if close else ""
    if override:
        raise SettingError(f"the pre-tokenizer {name!r} is not known{meant}. Known are {_known()}")
    raise UnsupportedModelError(
        f"tokenizer.ggml.pre is {name!r}, a way of cutting text that is not known here; another way would make the "
        "answers worse, so the model is refused. If its makers say that it cuts like a known one, load it with that "
        f"one's name (--pre NAME, or pre=NAME in Python): {_known()}"
    )


def _known() -> str:
    """One name of each rule: all names would fill a screen."""
    firsts = {id(rule): name for name, rule in reversed(RULES.items())}
    return f"{', '.join(sorted(firsts.values()))}, and other names of these"
