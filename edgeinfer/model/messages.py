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
        for name in ("role", "content"):
            if name not in message:
                raise SettingError(f"messages[{i}] has no {name!r}; wanted {{'role': ..., 'content': ...}}")
            if not isinstance(message[name], str):
                raise SettingError(f"messages[{i}][{name!r}] is {type(message[name]).__name__}; wanted a string")
        if not message["role"]:
            raise SettingError(f"messages[{i}]['role'] is empty; wanted a role such as 'user'")
        checked.append(dict(message))
    return checked
