"""The cache doctor: where a prompt left the text that was cached, what differs there, and what to do about it.

A prompt shares work with an earlier one only up to the first token that differs. A clock at the top of a prompt
therefore throws everything away that stands behind it, and nothing looks wrong: it is only slow. The doctor compares the
ids of a prompt with those of the last prompts, and finds out whether the two go on alike behind the difference.

`find_divergence` runs for every prompt and is cheap (tens of microseconds); `diagnose` is for whoever wants to read it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .prefix_tree import Ids, common_prefix

__all__ = ["Divergence", "KnownTexts", "Report", "diagnose", "find_divergence", "visible"]

Decode = Callable[[Sequence[int]], str]
LATE = 64  # tokens that must be lost before it is worth a word
_ANCHOR = 16  # ids that must be equal in a row to say that two texts go on alike
_SEARCH = 16  # places of the new prompt where such a row is looked for, _ANCHOR ids apart
_SHOWN = 40  # ids of each side's difference that a report shows
_AROUND = 32  # ids before and after it that are looked at
_SHOWN_AROUND = 24  # characters of them that a report shows


@dataclass(frozen=True)
class Divergence:
    """Where a prompt left an earlier one. Ids only: nothing is decoded until somebody asks."""

    token: int  # the place of the first token that differs
    n_prompt: int  # tokens of the prompt
    n_cached: int  # tokens of the earlier text
    n_again: int  # tokens behind the difference that are the same in both, and were evaluated again all the same
    ours: tuple[int, ...]  # what stands there in the prompt
    theirs: tuple[int, ...]  # and in the earlier text; both may be cut at 40
    before: tuple[int, ...]  # what both have in front of it
    after: tuple[int, ...]  # what both have behind it; empty when they do not go on alike

    @property
    def avoidable(self) -> bool:
        """Whether a small difference cost much: the texts go on alike behind it."""
        return self.n_again >= LATE


@dataclass(frozen=True)
class Report:
    """A divergence in words."""

    token: int
    n_prompt: int
    n_cached: int
    n_evaluated: int  # tokens of the prompt from the difference on
    n_again: int
    ours: str  # the differing text of the prompt, control characters made visible
    theirs: str
    before: str
    after: str
    cause: str  # "clock", "date", "uuid", "id", "number", "tokens", "removed", "added", "changed" or "other text"
    hint: str
    avoidable: bool

    def paragraph(self) -> str:
        """The report as one short paragraph."""
        first = (
            f"the prompt left the cached text at token {self.token} of {self.n_prompt}: {self.n_evaluated} tokens were "
            "evaluated anew"
        )
        if self.n_again:
            first += f", {self.n_again} of them unchanged"
        here = f'there it says "{self.before}[{self.ours}]{self.after}", cached was "[{self.theirs}]"'
        return f"{first}; {here}. {self.hint}"


class KnownTexts:
    """The ids of the last texts that were cached, newest last, whether their pages are still there or not."""

    def __init__(self, most: int = 16) -> None:
        self._texts: list[Ids] = []
        self._most = most

    def add(self, held: Ids) -> None:
        """Keep a text, in place of its own beginnings."""
        if self._texts and len(self._texts[-1]) == len(held) and bool((self._texts[-1] == held).all()):
            return
        self._texts = [text for text in self._texts if common_prefix(text, held) < len(text)]
        self._texts.append(held.copy())
        del self._texts[: -self._most]

    def divergence(self, ids: Ids, n_reused: int) -> Divergence | None:
        """Where a prompt leaves them, see `find_divergence`."""
        return find_divergence(ids, self._texts, n_reused)

    def clear(self) -> None:
        """Forget them."""
        self._texts.clear()


def find_divergence(ids: Ids, known: Iterable[Ids], n_reused: int = 0) -> Divergence | None:
    """Compare a prompt (n,) with the texts that were cached lately, the newest last; None when nothing much was lost.

    n_reused tokens of the prompt were found in a cache.
    """
    if len(ids) - n_reused < LATE:
        return None
    best: tuple[int, int, int, int, Ids] | None = None
    for other in known:
        token = common_prefix(ids, other)
        if token == 0 or token < n_reused or len(other) - token < LATE or len(ids) - token < LATE:
            continue
        i, j = _goes_on(ids[token:], other[token:])
        again = common_prefix(ids[token + i :], other[token + j :]) if i >= 0 else 0
        if best is None or token + again >= best[0] + best[1]:
            best = token, again, i, j, other
    if best is None:
        return None
    token, again, i, j, other = best
    behind = ids[token + i : token + i + _AROUND] if again else ids[:0]
    ours = ids[token : token + i] if again else ids[token:]
    theirs = other[token : token + j] if again else other[token:]
    return Divergence(
        token=token,
        n_prompt=len(ids),
        n_cached=len(other),
        n_again=again,
        ours=_tuple(ours[:_SHOWN]),
        theirs=_tuple(theirs[:_SHOWN]),
        before=_tuple(ids[max(0, token - _AROUND) : token]),
        after=_tuple(behind),
    )


def _tuple(ids: Ids) -> tuple[int, ...]:
    return tuple(int(token) for token in ids)


def _goes_on(ours: Ids, theirs: Ids) -> tuple[int, int]:
    """The places (i, j) from which ours[i:] and theirs[j:] are alike again; (-1, -1) when they are not."""
    n = min(len(ours), len(theirs), _SEARCH * _ANCHOR)
    equal = np.concatenate([[0], np.cumsum(ours[:n] == theirs[:n])])
    rows = np.flatnonzero(equal[_ANCHOR:] - equal[:-_ANCHOR] == _ANCHOR)
    if len(rows):  # one word for another of as many tokens: a clock
        return int(rows[0]), int(rows[0])
    data = theirs.tobytes()
    for i in range(0, min(len(ours) - _ANCHOR, _SEARCH * _ANCHOR) + 1, _ANCHOR):
        row = ours[i : i + _ANCHOR].tobytes()
        at = data.find(row)
        while at >= 0 and at % 4:
            at = data.find(row, at + 1)
        if at >= 0:
            j = at // 4
            while i > 0 and j > 0 and ours[i - 1] == theirs[j - 1]:
                i, j = i - 1, j - 1
            return i, j
    return -1, -1


_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DAYS = "mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun"
# In this order: a date with a clock behind it is called a clock, what is finer.
_CAUSES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "uuid",
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I),
        "It looks like a random id (UUID): leave it out, or put it at the end of the prompt.",
    ),
    (
        "clock",
        re.compile(r"\b\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\b|\b\d{1,2}\s?[ap]\.?m\b", re.I),
        "It looks like a clock: put it at the end of the prompt, or round it, so that what comes before stays cached.",
    ),
    (
        "date",
        re.compile(
            rf"\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}\b|\b({_MONTHS})[a-z]*\.?\s+\d{{1,2}}\b"
            rf"|\b\d{{1,2}}\.?\s+({_MONTHS})[a-z]*\b|\b({_DAYS})(day)?\b",
            re.I,
        ),
        "It looks like a date: put it at the end of the prompt; at the top it costs the whole cache once a day.",
    ),
    (
        "id",
        re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b|\b(?=\w*\d)(?=\w*[A-Z])(?=\w*[a-z])\w{12,}\b"),
        "It looks like a random id: leave it out, or put it at the end of the prompt.",
    ),
    (
        "number",
        re.compile(r"\d"),
        "A number changed: a counter, a reading or a time stamp belongs at the end of the prompt.",
    ),
)


def diagnose(divergence: Divergence, decode: Decode) -> Report:
    """Put a divergence into words; `decode` turns ids into text, control tokens shown."""
    d = divergence
    cause, hint = _cause(d, decode)
    return Report(
        token=d.token,
        n_prompt=d.n_prompt,
        n_cached=d.n_cached,
        n_evaluated=d.n_prompt - d.token,
        n_again=d.n_again,
        ours=_cut(visible(decode(d.ours)), len(d.ours) >= _SHOWN),
        theirs=_cut(visible(decode(d.theirs)), len(d.theirs) >= _SHOWN),
        before=visible(decode(d.before)[-_SHOWN_AROUND:]),
        after=visible(decode(d.after)[:_SHOWN_AROUND]),
        cause=cause,
        hint=hint,
        avoidable=d.avoidable,
    )


def _cut(text: str, cut: bool) -> str:
    return text + "..." if cut else text


def _cause(d: Divergence, decode: Decode) -> tuple[str, str]:
    if not d.n_again:
        return "other text", "From there on the texts differ: another question or another conversation needs no remedy."
    ours, theirs = decode(d.ours), decode(d.theirs)
    if ours == theirs:
        return "tokens", (
            "The text is the same in other tokens: an answer was split differently when it came back as history; "
            "keep its token ids where you can."
        )
    if not d.ours:
        return "removed", (
            "Text was taken out there: turns that were dropped to fit the context, or reasoning that the template leaves "
            "out of earlier answers."
        )
    # the difference alone may be one digit; a pattern shows only with what stands around it
    head, tail = decode(d.before), decode(d.after)
    for name, pattern, hint in _CAUSES:
        if all(_touches(pattern, head, text, tail) for text in (ours, theirs)):
            return name, hint
    if not d.theirs:
        return "added", "Text was put in there: new text belongs at the end of the prompt."
    return "changed", "What changes from prompt to prompt belongs at the end of it."


def _touches(pattern: re.Pattern[str], head: str, text: str, tail: str) -> bool:
    """Whether the pattern is found in head + text + tail so that it reaches into text."""
    begin, end = len(head), len(head) + len(text)
    return any(m.start() < end and m.end() > begin for m in pattern.finditer(head + text + tail))


def visible(text: str) -> str:
    """Text in one line: control and formatting characters, and quotes' backslashes, as escapes."""
    shown = []
    for c in text:
        if c == "\\" or (unicodedata.category(c) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp") and c != "\u200d"):
            shown.append(c.encode("unicode_escape", "surrogatepass").decode("ascii"))
        else:
            shown.append(c)
    return "".join(shown)
