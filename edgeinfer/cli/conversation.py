"""The state of a chat: its messages, the system message, and the file they are saved in. Prints nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NotFoundError, SettingError

if TYPE_CHECKING:
    from ..load import LLM
    from ..schedule.generation import Generation

__all__ = ["Conversation"]

_FORMAT = "edgeinfer chat"
_MAX_FILE = 64 << 20
_PLAIN_LIMIT = 256  # tokens of a plain completion: a base model rarely ends by itself


class Conversation:
    """Messages that alternate between user and assistant, behind an optional system message."""

    def __init__(self, llm: LLM, model: str, system: str = "", thinking: Mapping[str, Any] | None = None) -> None:
        """`thinking` are the arguments of `LLM.chat` about it."""
        self.llm, self.model, self.system, self.thinking = llm, model, system, dict(thinking or {})
        self.messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget the messages; the system message stays."""
        self.messages.clear()
        self.llm.reset()

    def ask(self, text: str, sampling: Mapping[str, Any]) -> Generation:
        """Start the answer to a message. It becomes part of the history by `keep`, when its answer is known."""
        user = {"role": "user", "content": text}
        if self.llm.template is None:
            limit = {"max_tokens": _PLAIN_LIMIT, **sampling}
            return self.llm.generate(f"{self.system}\n\n{text}" if self.system else text, **limit)
        head = [{"role": "system", "content": self.system}] if self.system else []
        return self.llm.chat([*head, *self.messages, user], **self.thinking, **dict(sampling))

    def keep(self, text: str, answer: str, thinking: str = "") -> None:
        """Add a message and its answer to the history. A turn without an answer leaves no trace.

        The thinking stands beside the answer: the template decides what of it the model sees again, mostly nothing.
        """
        if answer:
            beside = {"reasoning_content": thinking} if thinking else {}
            self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer, **beside}]

    def save(self, path: Path) -> None:
        """Write the conversation to a file that only its owner can read, beside and renamed.

        Raises SettingError when the file is there already and is no saved chat, or cannot be written.
        """
        if path.exists():
            try:
                _read(path)
            except SettingError as error:
                raise SettingError(f"{path} exists and is not a saved chat; choose another name") from error
        table = {"format": _FORMAT, "version": 1, "model": self.model, "system": self.system, "messages": self.messages}
        beside = path.with_name(path.name + ".new")
        try:
            beside.unlink(missing_ok=True)
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(table, file, ensure_ascii=False, indent=2)
                file.write("\n")
            os.replace(beside, path)
        except OSError as error:
            raise SettingError(f"cannot write {path}: {error.strerror or error}") from error

    def load(self, path: Path) -> None:
        """Take the messages and the system message of a saved chat in place of these.

        Raises NotFoundError when there is no such file and SettingError when it is no saved chat.
        """
        table = _read(path)
        self.reset()
        self.system = table["system"]
        self.messages = table["messages"]


def _read(path: Path) -> dict[str, Any]:
    # outside the try: a SettingError is a ValueError too
    if path.exists() and not path.is_file():  # a device or pipe may never end
        raise SettingError(f"cannot read {path}: it is not a regular file")
    if path.exists() and path.stat().st_size > _MAX_FILE:
        raise SettingError(f"{path} is too large for a saved chat")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is not a saved chat: it is no JSON document") from error
    if not isinstance(table, dict) or table.get("format") != _FORMAT:
        raise SettingError(f"{path} is not a saved chat; wanted a file written by /save")
    if table.get("version") != 1:
        raise SettingError(f"{path} has version {table.get('version')!r}; this edgeinfer reads version 1")
    messages, system = table.get("messages"), table.get("system", "")
    roles = ("user", "assistant")
    sound = isinstance(messages, list) and all(
        isinstance(m, dict)
        and m.get("role") == roles[i % 2]
        and isinstance(m.get("content"), str)
        and isinstance(m.get("reasoning_content", ""), str)
        for i, m in enumerate(messages)
    )
    if not sound or not isinstance(system, str) or not isinstance(messages, list) or len(messages) % 2:
        raise SettingError(f"{path} is damaged: its messages do not alternate between user and assistant")
    names = ("role", "content", "reasoning_content")
    kept = [{name: m[name] for name in names if name in m} for m in messages]
    return {"system": system, "messages": kept}
