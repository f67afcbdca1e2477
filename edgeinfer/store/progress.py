"""How a pull tells what it is doing. The command line draws it; nothing here prints."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """What a pull reports to. All calls come from the thread that pulls."""

    def status(self, text: str) -> None:
        """Say one line: what happens now, or what went wrong and is tried again."""

    def start(self, label: str, total: int | None, done: int) -> None:
        """Begin a transfer of `total` bytes (None: unknown) of which `done` are there already."""

    def advance(self, done: int) -> None:
        """The transfer now has `done` bytes altogether; the number may shrink when a transfer starts over."""

    def finish(self) -> None:
        """The transfer begun last is over, well or badly."""


class Silent:
    """A Progress that says nothing."""

    def status(self, text: str) -> None:
        """Do nothing."""

    def start(self, label: str, total: int | None, done: int) -> None:
        """Do nothing."""

    def advance(self, done: int) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""
