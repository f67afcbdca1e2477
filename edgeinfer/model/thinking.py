"""How a model's thinking is told from its answer: the marks around it, and how a template switches it on and off.

Found in the template itself, in what it writes, and in the vocabulary. Must not know how answers are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = [
    "FORMATS",
    "Heads",
    "Thinking",
    "ThinkingFormat",
    "Vocabulary",
    "find_format",
    "find_switch",
    "speaks_of_thinking",
]


@dataclass(frozen=True)
class Heads:
    """Messages that begin with a head, which says what they are: MARK HEAD MARK TEXT MARK. All marks are tokens."""

    opens: tuple[str, ...]  # marks behind which a head is read; they end the text before it, too
    bodies: tuple[str, ...]  # marks that end a head
    thinks: str  # a regular expression for the head with the marks around it: the message is thinking
    plain: str  # the same: it is the answer, or nothing; any other message stays in the answer with its head
    sign: str  # where it stands in a template, or in what that writes, the format is this one

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return (*self.opens, *self.bodies)


@dataclass(frozen=True)
class ThinkingFormat:
    """The marks of one way to think aloud. Empty marks: channels, as gpt-oss has them."""

    name: str
    start: str
    end: str
    close: str  # what ends the thinking when it is to end: the end mark, and what models are used to see behind it
    skip: str = ""  # stands behind the start mark and is no part of the thinking
    heads: Heads | None = None


CHANNELS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
_ANGLE = re.compile(r"</((?:\w+:)?(?:think|thinking|thought)(?::\w+)?)>")

FORMATS = (
    ThinkingFormat("channels", "", "", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ThinkingFormat(
        "final response", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "[BEGIN FINAL RESPONSE]\n"
    ),
    ThinkingFormat("gemma", "<|channel>", "<channel|>", "<channel|>", skip="thought\n"),
    ThinkingFormat("command", "<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    ThinkingFormat("mistral", "[THINK]", "[/THINK]", "[/THINK]"),
    ThinkingFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),
    ThinkingFormat("kimi", "◁think▷", "◁/think▷", "◁/think▷"),
    ThinkingFormat(
        "kimi-k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>",
        heads=Heads(
            ("<|open|>", "<|close|>"), ("<|sep|>",), r"^<\|open\|>think<",
            r"^(<\|open\|>response|<\|close\|>(think|response|message))<", "<|open|>think<|sep|>",
        ),
    ),
    ThinkingFormat(
        "solar", "<|think|>", "<|end|>", "<|end|><|begin|>assistant<|content|>",
        heads=Heads(
            ("<|begin|>", "<|end|>"), ("<|think|>", "<|content|>", "<|tool_calls|>"), r"<\|think\|>$",
            r"<\|content\|>$", "<|begin|>assistant<|think|>",
        ),
    ),
    ThinkingFormat(
        "muse", "to=self<|message|>", "<|eom|>", "<|eom|><|start|>assistant to=user<|message|>",
        heads=Heads(
            ("<|start|>", "<|eom|>"), ("<|message|>",), r"\bto=self<", r"\bto=user<|^(<\|start\|>assistant)?<\|message",
            "assistant to=self<|message|>",
        ),
    ),
    ThinkingFormat("thoughts", "<|begin_of_thought|>", "<|end_of_thought|>", "<|end_of_thought|>\n\n"),
)  # fmt: skip  # and <think>, <seed:think>, <think:...>, <thinking>, <thought>, by their form

# what templates call the switch, with the values for on and off
_SWITCHES: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("reasoning", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("thinking_option", "on", "off"),
    ("thinking_budget", -1, 0),
    ("reasoning_effort", "high", "no_think"),  # only where the template knows that word
)


def speaks_of_thinking(source: str) -> bool:
    """Whether a template is worth a closer look: most are not, and are not rendered for it."""
    return re.search("think|thought|reason|<\\|channel|<\\|inner_", source, re.IGNORECASE) is not None


def find_format(text: str) -> ThinkingFormat | None:
    """The format whose marks occur in a template, or in what it writes; None when there are none."""
    if all(mark in text for mark in ("<|channel|>", "<|message|>", "analysis")):
        return FORMATS[0]
    for known in FORMATS[1:]:
        if (known.heads.sign if known.heads else known.end) in text:
            return known
    found = _ANGLE.findall(text)
    if not found:
        return None
    name = max(found, key=found.count)
    return ThinkingFormat(name, f"<{name}>", f"</{name}>", f"</{name}>\n\n")


def find_switch(
    source: str, render: Callable[[Mapping[str, Any]], str | None]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The variables that switch thinking on, those that switch it off, and the prompts that were tried.

    `render` makes a prompt, None when the template refuses. Both dicts are empty where the template has no switch, or one
    that changes nothing: it is tried, so that a name in the text is enough to look for.
    """
    chosen = [entry for entry in _SWITCHES if re.search(rf"(?<![\w.'\"]){entry[0]}\b", source)]
    chosen = [entry for entry in chosen if entry[0] != "reasoning_effort" or "no_think" in source]
    on, off = {name: on for name, on, _ in chosen}, {name: off for name, _, off in chosen}
    if not chosen:
        return {}, {}, [render({}) or ""]
    prompts = [render(on), render(off)]
    tried = [prompt for prompt in prompts if prompt is not None]
    return (on, off, tried) if len(tried) == 2 and tried[0] != tried[1] else ({}, {}, tried)


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    def encode_fragment(self, text: str, masked: str | None = None, *, control: bool) -> list[int]:
        """The ids of a text with its control tokens read."""

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of ids, control tokens shown with `special`."""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control or user-defined one."""


@dataclass(frozen=True)
class Thinking:
    """How one model thinks: its marks as text and ids, and its template's switch."""

    format: ThinkingFormat | None  # None: it can be switched, but its marks are not known here
    marks: Mapping[str, int] = field(default_factory=dict)  # marks that are one special token, by their text
    close_ids: tuple[int, ...] = ()
    on: Mapping[str, Any] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
    takes_budget: bool = False  # the template has a variable `thinking_budget`
    tail: Callable[[Sequence[int]], str] = lambda ids: ""  # the text of a prompt's last ids

    @classmethod
    def of(
        cls, found: ThinkingFormat | None, vocabulary: Vocabulary, on: Mapping[str, Any], off: Mapping[str, Any]
    ) -> Thinking:
        """With the ids that a vocabulary has for the marks. Channels and heads need all of theirs to be tokens."""
        texts: tuple[str, ...] = (found.start, found.end) if found else ()
        if found and (found is FORMATS[0] or found.heads):
            texts = found.heads.marks if found.heads else CHANNELS
        marks = {}
        for text in texts:
            ids = vocabulary.encode_fragment(text, control=True)
            if len(ids) == 1 and vocabulary.is_special(ids[0]):
                marks[text] = ids[0]
        if found and (found is FORMATS[0] or found.heads) and len(marks) < len(texts):
            found, marks = None, {}
        return cls(
            found,
            marks,
            tuple(vocabulary.encode_fragment(found.close, control=True)) if found else (),
            on,
            off,
            "thinking_budget" in on,
            lambda ids: vocabulary.decode(list(ids)[-40:], special=True),
        )

    def opened(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends inside the thinking: its template has written the start mark for the model."""
        if self.format is None or not self.format.start:
            return False
        return self.tail(prompt).rstrip().endswith((self.format.start + self.format.skip).rstrip())

    def closed(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends behind thinking that its template has written, mostly none."""
        if self.format is None or not self.format.end:
            return False
        return self.tail(prompt).rstrip().endswith(self.format.end)
