"""Thinking models without weights: their marks over `tests.fakes`' byte tokenizer, as text or as tokens of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.model.thinking import CHANNELS, FORMATS, Thinking, find_format
from tests.fakes import N_VOCAB, ByteTokenizer, ToyTemplate

__all__ = ["THINK", "ThinkingTemplate", "marked", "spelled"]

THINK = find_format("<think></think>")


def spelled(format: Any = THINK, tokenizer: ByteTokenizer | None = None) -> Thinking:
    """A model that spells its marks in ordinary text."""
    used = tokenizer or ByteTokenizer()
    return Thinking(format, close_ids=tuple(used.encode(format.close)), tail=lambda ids: used.decode(list(ids)[-40:]))


def marked(format: Any = THINK) -> tuple[ByteTokenizer, Thinking]:
    """A model whose marks are tokens, and its tokenizer: the marks come first behind the bytes and end tokens."""
    texts = CHANNELS if format is FORMATS[0] else format.heads.marks if format.heads else (format.start, format.end)
    tokenizer = ByteTokenizer([text.encode() for text in texts])
    marks = {text: N_VOCAB + i for i, text in enumerate(texts)}
    close, rest = [], format.close
    while rest:
        mark = next((text for text in texts if rest.startswith(text)), None)
        close += [marks[mark]] if mark else list(rest[0].encode())
        rest = rest[len(mark or rest[0]) :]
    return tokenizer, Thinking(format, marks, tuple(close), tail=lambda ids: tokenizer.decode(list(ids)[-40:]))


class ThinkingTemplate(ToyTemplate):
    """A template that may open the thinking for the model, and knows `enable_thinking` where it is switched."""

    def __init__(self, tokenizer: ByteTokenizer, thinking: Thinking, opens: bool = False) -> None:
        super().__init__(tokenizer)
        self.thinking, self.opens = thinking, opens
        self.asked: list[dict[str, Any]] = []
        self.seen: list[list[dict[str, Any]]] = []

    def encode(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        self.asked.append(variables)
        self.seen.append([dict(message) for message in messages])
        opens = variables.get("enable_thinking", self.opens)
        ids = [*super().encode(messages), *self.tokenizer.encode("<think>\n" if opens else "")]
        self.n = len(ids)
        return ids
