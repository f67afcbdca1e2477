"""How `chat` and `run` show what a model thinks aloud: dim on a terminal, nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..settings import settings
from .answer import Outcome, end_line, write_out
from .terminal import StatusLine, say, visible

__all__ = ["ThinkingView", "thinking_options"]

_F = TypeVar("_F", bound=Callable[..., Any])
_DIM, _NORMAL = "\x1b[2m", "\x1b[22m"


def thinking_options(command: _F) -> _F:
    """The options of a command whose model may think: thinking, think_budget, hide_thinking."""
    for option in (
        click.option("--hide-thinking", is_flag=True, help="Do not show what the model thinks before it answers."),
        click.option("--think-budget", type=int, help="End the thinking after so many tokens."),
        click.option(
            "--think/--no-think",
            "thinking",
            default=None,
            help="Switch thinking on or off.  [default: as the model has it]",
        ),
    ):
        command = option(command)
    return command


class ThinkingView:
    """Writes the thinking and the answer of one model to stdout as they come.

    The thinking is shown where stdout is a terminal; what is piped on is the answer alone. While it is hidden from a
    person, a line on stderr says that the model thinks.
    """

    def __init__(self, hide: bool = False, quiet: bool = False) -> None:
        self._shows = sys.stdout.isatty() and not hide
        self._waits = not self._shows and not quiet and sys.stderr.isatty()
        self._color = not settings().no_color
        self._status: StatusLine | None = None
        self._last = ""  # of the thinking that was shown
        self.shown = ""  # the last piece of the answer that was written

    def think(self, text: str) -> None:
        """A piece of the thinking."""
        if self._shows and text:
            if not self._last and not self._color:
                write_out("[thinking]\n")
            sys.stdout.write(f"{_DIM}{visible(text)}{_NORMAL}" if self._color else visible(text))
            sys.stdout.flush()
            self._last = text
        elif self._waits and self._status is None:
            self._status = StatusLine()
            self._status("thinking")

    def write(self, text: str) -> None:
        """A piece of the answer."""
        self.close()
        write_out(text)
        self.shown = text

    def close(self) -> None:
        """The thinking is over."""
        if self._status is not None:
            self._status.__exit__(None, None, None)
            self._status = None
        if self._last:
            end_line(self._last)
            write_out("\n" if self._color else "[answer]\n")
            self._last = ""

    def note(self, outcome: Outcome) -> None:
        """Say why there is no answer, where the thinking took all the tokens there were."""
        if outcome.thinking and not outcome.text and outcome.finish_reason == "length":
            say("[it ended while thinking, without an answer; give it more tokens, --think-budget, or --no-think]")
