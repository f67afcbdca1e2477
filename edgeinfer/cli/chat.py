"""`edgeinfer chat`: talk with a model. A prompt with history on a terminal; one message and its answer in a pipe."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ContextOverflowError, EdgeInferError, EngineError, SettingError
from ..settings import settings
from .answer import (
    Outcome,
    end_line,
    figures,
    given,
    kv_option,
    open_model,
    overflow_option,
    pre_option,
    recommended,
    say_cut,
    say_no_template,
    stream,
)
from .cache import cache_report
from .completion import complete_model
from .conversation import Conversation
from .options import GroupedCommand, sampling_given, sampling_options
from .params import changed_params, params_line
from .refusals import in_options
from .terminal import check_text, read_input, say
from .thinking import ThinkingView, check_thinking, thinking_options

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

__all__ = ["chat"]

_HELP = """\
/help             show this
/reset            forget the conversation, keep the system message
/system [TEXT]    show the system message, or set it ("" removes it)
/think [on|off]   switch thinking on or off, where the model can
/stats            switch the figures after each answer on or off
/params [NAME=VALUE ...]  show how tokens are chosen, or change it ("NAME=" goes back to the default)
/cache            show what the prefix cache holds, and what made prompts slow
/save FILE        write the conversation to a file
/load FILE        go on with a saved conversation
/quit             leave; so does Ctrl-D
//TEXT            send a message that begins with a slash
Alt-Enter makes a new line, Ctrl-C stops an answer, the arrow keys walk through earlier messages."""


@click.command(cls=GroupedCommand)
@click.argument("model", default="", shell_complete=complete_model)
@click.option("--system", default="", help="System message: how the model is to behave.")
@click.option("-n", "--max-tokens", type=int, help="Most tokens of an answer.  [default: until it ends]")
@click.option("--n-ctx", type=int, help="Context in tokens.  [default: what it was trained for, at most 4096]")
@click.option("-t", "--threads", type=int, help="Threads to compute with.")
@click.option("--seed", type=int, help="Makes the answers repeatable.")
@overflow_option
@pre_option
@kv_option
@thinking_options
@click.option("--stats", is_flag=True, help="Show TTFT and tok/s after each answer.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@sampling_options
def chat(
    model: str,
    system: str,
    max_tokens: int | None,
    n_ctx: int | None,
    threads: int | None,
    seed: int | None,
    overflow: str | None,
    pre: str | None,
    kv_type: str | None,
    thinking: bool | None,
    think_budget: int | None,
    hide_thinking: bool,
    stats: bool,
    offline: bool,
    quiet: bool,
    **numbers: Any,
) -> int:
    """Talk with MODEL (default: smollm2-135m, pulled at the first start).

    On a terminal it prompts, and /help lists what else it understands. Text that is piped in is one message: it is
    answered and the program ends.
    """
    from .. import store

    interactive = sys.stdin is not None and sys.stdin.isatty()
    text = "" if interactive else read_input()
    if not interactive and not text.strip():
        return 0
    system = check_text(system, "--system")
    name = model or store.manifest().default
    taken = "the messages come from it"
    chosen = {**recommended(name), **sampling_given({"max_tokens": max_tokens, **numbers}, taken)}
    chosen_load = given(overflow=overflow, pre=pre, kv_type=kv_type)
    with open_model(name, n_ctx=n_ctx, threads=threads, seed=seed, offline=offline, quiet=quiet, **chosen_load) as llm:
        check_thinking(llm, thinking, think_budget)
        llm.check_sampling(**chosen)
        if llm.template is None and not quiet:
            say_no_template(llm)
        talk = Conversation(llm, name, system, given(thinking=thinking, think_budget=think_budget))
        if interactive:
            return _Prompt(talk, chosen, stats, quiet, hide_thinking).run()
        outcome = _answer(talk, text, chosen, ThinkingView(hide_thinking, quiet))
        if not quiet:
            say_cut(outcome, llm.n_ctx, chosen)
        if outcome.dropped and not quiet:
            say(f"[{outcome.dropped}]")
        if stats:
            say(figures(outcome.timings, outcome.finish_reason))
        return 130 if outcome.finish_reason == "cancelled" else 0


def _answer(talk: Conversation, text: str, chosen: dict[str, Any], view: ThinkingView) -> Outcome:
    try:
        outcome = stream(talk.ask(text, chosen), view.write, view.think)
    except EdgeInferError:
        if view.shown:
            end_line(view.shown)
        raise
    finally:
        view.close()
    end_line(outcome.text)
    talk.keep(text, outcome.text, outcome.thinking)
    view.note(outcome)
    return outcome


def _history(quiet: bool = False) -> History:
    """The history of prompts: a file that only its owner can read, or memory where none can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = settings().home / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        if not quiet:
            say(f"the prompt history is not kept: {path}: {error.strerror or error}")
        return InMemoryHistory()
    return FileHistory(str(path))


class _Prompt:
    """The loop of an interactive chat."""

    def __init__(
        self, talk: Conversation, chosen: dict[str, Any], stats: bool, quiet: bool, hide_thinking: bool = False
    ) -> None:
        self.talk, self.chosen, self.stats, self.quiet = talk, chosen, stats, quiet
        self.hide_thinking = hide_thinking
        self.last: Outcome | None = None
        self.commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: say(_HELP),
            "reset": self._reset,
            "system": self._system,
            "think": self._think,
            "stats": self._stats,
            "params": self._params,
            "cache": self._cache,
            "save": self._save,
            "load": self._load,
        }

    def _session(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.output import create_output

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        words = [f"/{name}" for name in (*self.commands, "quit")]
        return PromptSession(
            history=_history(self.quiet),
            completer=WordCompleter(words, sentence=True),
            complete_while_typing=False,
            key_bindings=keys,
            prompt_continuation="  ",
            output=create_output(always_prefer_tty=True),  # the answer may go to a file while we prompt on the terminal
        )

    def run(self) -> int:
        """Prompt and answer until the user leaves; return the exit code."""
        session = self._session()
        if not self.quiet:
            say(f"{self.talk.model}, {self.talk.llm.n_ctx} tokens of context; /help lists the commands, Ctrl-D leaves")
            say(params_line(self.chosen, self.talk.model))
        warned = False
        while True:
            try:
                text = session.prompt("> ")
            except KeyboardInterrupt:
                if warned:
                    return 130
                warned = True
                say("Ctrl-C once more leaves; so do Ctrl-D and /quit")
                continue
            except EOFError:
                return 0
            warned = False
            try:
                if not self._line(text):
                    return 0
            except EngineError:
                raise  # nothing more can be asked of this engine
            except ContextOverflowError as error:
                say(f"{in_options(error, chat)}; /reset forgets the conversation")
            except EdgeInferError as error:
                # a command of the chat names parameters, as its user did
                say(str(error) if text.startswith("/") and not text.startswith("//") else in_options(error, chat))

    def _line(self, text: str) -> bool:
        """Act on a line; False ends the chat."""
        text = text.strip()
        if text.startswith("//"):
            text = text[1:]
        elif text.startswith("/"):
            name, _, rest = text[1:].partition(" ")
            if name in ("quit", "exit", "bye"):
                return False
            if name not in self.commands:
                raise SettingError(f"there is no command /{name}; /help lists them, //{name} sends it as text")
            self.commands[name](rest.strip())
            return True
        if not text:
            return True
        view = ThinkingView(self.hide_thinking, self.quiet)
        self.last = _answer(self.talk, check_text(text, "the message"), self.chosen, view)
        if self.last.finish_reason == "cancelled":
            say("[stopped]")
        elif self.last.limited_by == "context" and self.talk.llm.template:
            say("[the context is full; /reset forgets the conversation]")
        if self.last.dropped and not self.quiet:
            say(f"[{self.last.dropped}]")
        if self.stats:
            say(figures(self.last.timings, self.last.finish_reason))
        return True

    def _reset(self, rest: str) -> None:
        self.talk.reset()
        say("the conversation is forgotten")

    def _system(self, rest: str) -> None:
        if rest:
            self.talk.system = "" if rest in ('""', "''") else rest
        say(f"system message: {self.talk.system}" if self.talk.system else "no system message")

    def _think(self, rest: str) -> None:
        if rest not in ("on", "off"):
            raise SettingError("/think wants on or off")
        check_thinking(self.talk.llm, rest == "on")
        self.talk.thinking["thinking"] = rest == "on"
        say(f"thinking: {rest}")

    def _stats(self, rest: str) -> None:
        self.stats = not self.stats
        say(f"figures after each answer: {'on' if self.stats else 'off'}")
        if self.stats and self.last:
            say(figures(self.last.timings, self.last.finish_reason))

    def _params(self, rest: str) -> None:
        if rest:
            chosen = changed_params(self.chosen, rest)
            self.talk.llm.check_sampling(**chosen)
            self.chosen = chosen
        say(params_line(self.chosen, self.talk.model))

    def _cache(self, rest: str) -> None:
        for line in cache_report(self.talk.llm):
            say(line)

    def _save(self, rest: str) -> None:
        path = _file_argument(rest, "save")
        self.talk.save(path)
        say(f"saved {len(self.talk.messages)} messages to {path}")

    def _load(self, rest: str) -> None:
        path = _file_argument(rest, "load")
        self.talk.load(path)
        say(f"loaded {len(self.talk.messages)} messages from {path}")


def _file_argument(rest: str, command: str) -> Path:
    try:
        parts = shlex.split(rest)
    except ValueError:
        parts = []
    if len(parts) != 1:
        raise SettingError(f"/{command} wants one file name: /{command} FILE")
    return Path(parts[0]).expanduser()
