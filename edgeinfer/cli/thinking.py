"""How `chat` and `run` show what a model thinks aloud: dim on a terminal, nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from ..errors import SettingError
from ..generate.reasoning import choose_reasoning
from ..settings import settings
from .answer import Outcome, end_line, write_out
from .terminal import StatusLine, say, visible

if TYPE_CHECKING:
    from ..load import LLM

__all__ = ["ThinkingView", "check_thinking", "thinking_options"]

_F = TypeVar("_F", bound=Callable[..., Any])
_DIM, _NORMAL = "\x1b[2m", "\x1b[22m"


def thinking_options(command: _F) -> _F:
    """The options of a command whose model may think: thinking, think_budget, hide_thinking."""
    for option in (
        click.option("--hide-thinking", is_flag=True, help="Do not show what the model thinks before it answers."),
        click.option("--think-budget", type=int, help="End the thinking after so many tokens."),
        click.option("--no-think", is_flag=True, help="Switch thinking off."),
        click.option("--think", is_flag=True, help="Switch thinking on.  [default: as the model has it]"),
    ):
        command = option(command)

    @wraps(command)
    def switched(*args: Any, think: bool, no_think: bool, **options: Any) -> Any:
        if think and no_think:
            raise click.UsageError("--think and --no-think contradict each other; give one of them")
        return command(*args, thinking=think if think or no_think else None, **options)

    return cast(_F, switched)


def check_thinking(llm: LLM, thinking: bool | None, budget: int | None = None) -> None:
    """Raise SettingError for thinking that is asked of a model that has none, before anything is asked of it."""
    if llm.template is None and thinking:
        raise SettingError("thinking cannot be switched on: this model file has no chat template; leave it out")
    choose_reasoning(llm.template.thinking if llm.template is not None else None, thinking, budget)


class ThinkingView:
    """Writes the thinking and the answer of one model to stdout as they come.

    The thinking is shown where stdout is a terminal; what is piped on is the answer alone. While it is hidden from a
    person, a line on stderr says that the model thinks.
    """

    def __init__(self, hide: bool = False, quiet: bool = False) -> None:
        self._quiet = quiet
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
        if outcome.thinking and not outcome.text and outcome.finish_reason == "length" and not self._quiet:
            say("[it ended while thinking, without an answer; give it more tokens, --think-budget, or --no-think]")
