"""The messages of a conversation, checked once, before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SettingError

__all__ = ["check_messages"]


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as a list of dicts. Raises SettingError naming the message and the field that cannot be used."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise SettingError(f"messages is {type(messages).__name__}; wanted a list of {{'role': ..., 'content': ...}}")
    if not messages:
        raise SettingError("messages is empty; wanted at least one {'role': ..., 'content': ...}")
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise SettingError(f"messages[{i}] is {type(message).__name__}; wanted {{'role': ..., 'content': ...}}")
        clean = dict(message)
        if clean.get("content") is None and clean.get("tool_calls"):
            clean["content"] = ""  # calls stand for the text; not every template looks whether there is one
        elif isinstance(clean.get("content"), (list, tuple)):
            clean["content"] = _joined(clean["content"], i)
        for name in ("role", "content"):
            if name not in clean:
                raise SettingError(f"messages[{i}] has no {name!r}; wanted {{'role': ..., 'content': ...}}")
            if not isinstance(clean[name], str):
                raise SettingError(f"messages[{i}][{name!r}] is {type(clean[name]).__name__}; wanted a string")
        if not clean["role"]:
            raise SettingError(f"messages[{i}]['role'] is empty; wanted a role such as 'user'")
        checked.append(clean)
    return checked


def _joined(parts: Sequence[Any], i: int) -> str:
    """The text of a content that comes in parts, as clients of the OpenAI API send it."""
    texts = []
    for j, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = repr(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
            raise SettingError(
                f"messages[{i}]['content'][{j}] is {kind}; wanted {{'type': 'text', 'text': ...}}: only text is read"
            )
        texts.append(part["text"])
    return "".join(texts)
