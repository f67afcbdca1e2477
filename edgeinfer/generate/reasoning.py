"""Tells thinking from the answer in the tokens of a model, and ends it when its budget is used up.

Marks that are tokens of their own count wherever they come; a mark that is spelled in ordinary text counts only where
the answer begins, so that an answer may speak about `<think>`. Must not know templates or streams.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SettingError
from ..model.thinking import CHANNELS, Thinking

__all__ = ["Channels", "Headed", "Reasoning", "Splitter", "choose_reasoning"]


@dataclass(frozen=True)
class Reasoning:
    """What was asked for, and what the model's template can do about it."""

    thinking: Thinking | None
    variables: Mapping[str, Any]  # for the template
    budget: int | None  # most tokens of thinking; None is no limit
    unwanted: bool = False  # no thinking was asked for

    def splitter(self, prompt: Sequence[int]) -> Splitter | None:
        """What tells thinking from the answer behind a prompt; None for a model whose thinking has no known marks."""
        if self.thinking is None or self.thinking.format is None:
            return None
        kind = Headed if self.thinking.format.heads else Splitter if self.thinking.format.start else Channels
        opened = self.thinking.opened(prompt)
        optional = not (opened or self.unwanted or self.thinking.closed(prompt))
        return kind(self.thinking, opened=opened, budget=self.budget, optional=optional)


def choose_reasoning(thinking: Thinking | None, wanted: bool | None = None, budget: int | None = None) -> Reasoning:
    """Put together what is asked for: wanted None leaves it to the template.

    Without thinking, a template that has no switch gets a budget of 0: its thinking is ended where it begins. Raises
    SettingError for a value that cannot be used, and for thinking that is wanted of a model that has none.
    """
    if wanted is not None and not isinstance(wanted, bool):
        raise SettingError(f"thinking is {wanted!r}; wanted True, False or None")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
        raise SettingError(f"think_budget is {budget!r}; wanted a whole number, 0 or more; left out, there is no limit")
    if thinking is None:
        if wanted:
            raise SettingError(
                "thinking cannot be switched on: this model's chat template knows no thinking; leave it out"
            )
        return Reasoning(None, {}, None)
    variables: dict[str, Any] = {} if wanted is None else dict(thinking.on if wanted else thinking.off)
    if wanted is False and not variables:
        budget = 0
    if thinking.takes_budget and budget is not None and wanted is not False:
        variables["thinking_budget"] = budget
    return Reasoning(thinking, variables, budget, wanted is False)


class Splitter:
    """Takes the tokens of one answer and the text that each made complete; gives (thinking, answer).

    White space around a mark belongs to it. Text is held back only while it may be the beginning of a mark.
    """

    def __init__(self, thinking: Thinking, *, opened: bool, budget: int | None = None, optional: bool = True) -> None:
        """`opened` says that the prompt ends inside the thinking, `optional` that the model may open it by itself."""
        assert thinking.format is not None
        self._format, self._marks = thinking.format, thinking.marks
        self._close_ids, self._budget = thinking.close_ids, budget
        self._forced: deque[int] = deque()
        self._closing = False
        self.thinking = opened
        self.n_tokens = 0  # of thinking so far
        self._fresh = True  # at the beginning of the thinking or the answer, whose white space is left out
        self._begun = opened  # something of the answer, or thinking, has come
        self._held = ""
        self._optional = optional
        self._constrained = False  # a grammar says what the answer may be
        self._settled = False  # all that follows is the answer, as it is

    def constrain(self) -> frozenset[int]:
        """A grammar is to hold for the answer: the tokens that may begin thinking in its place.

        Of marks that are spelled in ordinary text there are none: the grammar then holds from the first token, unless
        the prompt has opened the thinking.
        """
        self._constrained = True
        if self.thinking:
            return frozenset()
        starts = self._starts()
        self._begun = not starts
        return starts

    def _starts(self) -> frozenset[int]:
        start = self._marks.get(self._format.start)
        return frozenset() if start is None or not self._optional else frozenset({start})

    @property
    def settled(self) -> bool:
        """Whether the next token belongs to the answer. Not known before the first one where the model may think."""
        return self._settled or (self._begun and not self.thinking and not self._forced)

    def settle(self) -> None:
        """From here on all is the answer: neither marks nor white space are looked for."""
        self._settled, self._held = True, ""

    def behind_end(self, text: str) -> str:
        """What of the answer stands behind a spelled end mark if `text` is next, white space left out."""
        end = self._format.end
        return "" if not end or end in self._marks else (self._held + text).partition(end)[2].lstrip()

    def close(self) -> None:
        """End the thinking with the tokens that come next; does nothing where that was tried already."""
        if not self._closing:
            self._closing = True  # once: a vocabulary that cannot spell the mark must not force it for ever
            self._forced.extend(self._close_ids)

    def force(self) -> int | None:
        """The token that must come next, because the budget is used up; None where the model may choose."""
        over = self._budget is not None and self.thinking and self.n_tokens >= self._budget
        if over:
            self.close()
        return self._forced.popleft() if self._forced else None

    def push(self, token: int | None, text: str) -> tuple[str, str]:
        """Take the next token and its text (None: only text that was held back before it)."""
        self.n_tokens += int(self.thinking and token is not None)
        if self._settled:
            return "", text
        mark = next((mark for mark, index in self._marks.items() if index == token), None)
        if mark is None:
            return self._text(text)
        before = self._text(text.removesuffix(mark))
        rest = self._drain() if self._begun or self._held.strip() else ("", "")
        thought = self.thinking
        self._pass(mark)
        if self._constrained and thought and not self.thinking and not self._forced and token in self._close_ids:
            # the grammar has no place for what models are used to see behind the mark (new lines, the next channel)
            self._forced.extend(self._close_ids[self._close_ids.index(token) + 1 :])
        return before[0] + rest[0], before[1] + rest[1]

    def flush(self) -> tuple[str, str]:
        """No text follows: what was held back."""
        return self._drain()

    def _drain(self) -> tuple[str, str]:
        held, self._held = self._held, ""
        return (held, "") if self.thinking else ("", held)

    def _pass(self, mark: str) -> None:
        """A mark that is a token."""
        self._turn(mark == self._format.start)

    def _turn(self, thinking: bool) -> None:
        self.thinking, self._fresh, self._begun, self._held, self._closing = thinking, True, True, "", False

    def _text(self, text: str) -> tuple[str, str]:
        """Ordinary text, which may spell a mark."""
        thoughts, answers = "", ""
        self._held += text
        while self._held:
            if self._fresh and self._begun:
                self._held = self._held.lstrip()
                skip = self._format.skip if self.thinking else ""
                if skip and self._held.startswith(skip):
                    self._held, skip = self._held[len(skip) :].lstrip(), ""
                if not self._held or (skip and skip.startswith(self._held)):
                    break
            start, end = self._format.start, self._format.end
            if self.thinking and end not in self._marks:
                before, found, after = self._held.partition(end)
                if found:
                    thoughts += before
                    self._turn(False)
                    self._held = after
                    continue
                n = _overlap(before, end)
            elif not self._begun:
                text, spelled = self._held.lstrip(), start not in self._marks
                if spelled and text.startswith(start):
                    self._turn(True)
                    self._held = text[len(start) :]
                    continue
                n = len(self._held) if not text or (spelled and start.startswith(text)) else 0
            else:
                n = 0
            ready, self._held = self._held[: len(self._held) - n], self._held[len(self._held) - n :]
            if ready:
                self._fresh, self._begun = False, True
                thoughts, answers = (thoughts + ready, answers) if self.thinking else (thoughts, answers + ready)
            break
        return thoughts, answers


def _overlap(text: str, mark: str) -> int:
    """How many of the last characters of a text are the beginning of a mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)


class _Messages(Splitter):
    """Thinking and answer in messages, each with a head that is read before its text."""

    _head: str | None = None  # of a message, while it is read

    @property
    def settled(self) -> bool:
        """As of any splitter; a head is read before its message."""
        return super().settled and self._head is None

    def _text(self, text: str) -> tuple[str, str]:
        if self._head is not None:
            self._head += text
            return "", ""
        if self._fresh and self._begun and not self._held:
            text = text.lstrip()
        ready, self._held = self._held + text, ""
        begins = ready.lstrip()
        if not self._begun and (begins.startswith("to=") or "to=".startswith(begins)):
            self._held = ready  # perhaps addressed to somebody, before the channel is named
            if begins.startswith("to="):
                self._head, self._held = ready, ""
            return "", ""
        if ready:
            self._fresh, self._begun = False, True
        return (ready, "") if self.thinking else ("", ready)


class Channels(_Messages):
    """Thinking and answer in channels, as gpt-oss writes them: <|channel|>NAME<|message|>TEXT<|end|>.

    The channel "analysis" is thinking. What is addressed to somebody (a call of a tool) stays in the answer with its
    head, so that nothing of it is lost.
    """

    def _starts(self) -> frozenset[int]:
        return frozenset({self._marks[CHANNELS[0]]})  # an answer has a channel, too

    def _pass(self, mark: str) -> None:
        channel, message, _, start = CHANNELS
        if mark == message:
            head = (self._head or "").strip().removeprefix("assistant").lstrip()
            name = head.partition(channel)[2]
            self._turn(name.strip().startswith("analysis"))
            self._head = None
            if "to=" in head and not self._constrained:
                self._held, self._fresh = head + message, False
        elif mark in (channel, start):
            self._turn(False)
            self._head = (self._head or "") + (mark if mark == channel else "")
        else:
            self._turn(False)
            self._head = ""


class Headed(_Messages):
    """Thinking and answer in messages whose head says which they are (`model.thinking.Heads`).

    What is neither (a call of a tool) stays in the answer with its head, so that nothing of it is lost.
    """

    def __init__(self, thinking: Thinking, *, opened: bool, budget: int | None = None, optional: bool = True) -> None:
        super().__init__(thinking, opened=opened, budget=budget, optional=optional)
        assert self._format.heads is not None
        self._heads = self._format.heads

    def _starts(self) -> frozenset[int]:
        # an answer has a mark of its own, too, where the prompt leaves the choice to the next token
        return frozenset(self._marks[mark] for mark in self._heads.bodies[:2] if len(self._heads.bodies) > 1)

    def flush(self) -> tuple[str, str]:
        """No text follows: what was held back. What looked like a head, and no mark came before or behind it, is text."""
        if self._head and not self._head.startswith(self._heads.opens):
            self._held = self._head
        self._head = None
        return super().flush()

    def _pass(self, mark: str) -> None:
        if mark not in self._heads.bodies:
            self._turn(False)
            self._head = mark
            return
        whole = (self._head or "").rstrip() + mark
        self._turn(re.search(self._heads.thinks, whole) is not None)
        self._head = None
        if not self.thinking and not self._constrained and re.search(self._heads.plain, whole) is None:
            self._held, self._fresh = whole, False
