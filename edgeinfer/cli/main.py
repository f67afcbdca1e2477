"""The entry point: finds the command, and turns every error into one line on stderr and an exit code.

Exit codes: 0 done, 2 a wrong option, 130 interrupted, 141 the reader of our output went away, the others in errors.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ..errors import EdgeInferError, MemoryLimitError, SettingError
from ..settings import settings
from . import COMMANDS
from .refusals import in_options
from .terminal import escaped, prepare_streams, say

__all__ = ["cli", "main"]

_INTERRUPTED = 130  # 128 + SIGINT
_CLOSED_PIPE = 141  # 128 + SIGPIPE


class _Leave(Exception):
    """Carries an exit code past click, which would turn these ends into its own."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Refusal(Exception):
    """An error that came out of a command, in the words of its options."""

    def __init__(self, error: EdgeInferError, text: str) -> None:
        super().__init__(text)
        self.error = error


class _Commands(click.Group):
    """The commands of COMMANDS, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return next((entry.load() for entry in COMMANDS if entry.name == cmd_name), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _Leave(_CLOSED_PIPE) from None
        except KeyboardInterrupt:
            raise _Leave(_INTERRUPTED) from None
        except EdgeInferError as error:
            name = ctx.invoked_subcommand
            raise _Refusal(error, in_options(error, self.get_command(ctx, name) if name else None)) from error


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from .. import __version__

        click.echo(f"edgeinfer {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Language models that answer on small machines, offline.

    `edgeinfer chat` starts the default model. MODEL is the path of a .gguf file or a name from `edgeinfer models`.
    """


def _debug() -> bool:
    try:
        return settings().debug
    except SettingError:
        return False


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split())) or "no reason given"


def _call(arguments: Sequence[str] | None) -> int:
    """Run the command line and return the exit code. Every end but success says why on stderr."""
    try:
        answer = cli.main(None if arguments is None else list(arguments), "edgeinfer", standalone_mode=False)
    except _Leave as end:
        if end.code == _INTERRUPTED:
            say("")
        return end.code
    except click.Abort:  # an interrupt while options were read or a question was asked
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit as end:  # click's own way out when its output is closed
        return _CLOSED_PIPE if isinstance(end.__context__, BrokenPipeError) else int(end.code or 0)
    except (EdgeInferError, _Refusal) as error:
        cause = error.error if isinstance(error, _Refusal) else error
        if _debug():
            traceback.print_exception(cause)
        say(f"edgeinfer: {_one_line(str(error))}")
        return cause.exit_code
    except MemoryError:
        say("edgeinfer: the memory is full; use a smaller model or a smaller --n-ctx")
        return MemoryLimitError.exit_code
    except OSError as error:
        if _debug():
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        say(f"edgeinfer: {where}{_one_line(error.strerror or str(error))}")
        _drop_output()
        return EdgeInferError.exit_code
    except Exception as error:
        if _debug():
            traceback.print_exc()
        say(
            f"edgeinfer: unexpected {type(error).__name__}: {_one_line(str(error))} "
            "(a bug; EDGEINFER_DEBUG=1 shows where it happened)"
        )
        return EdgeInferError.exit_code
    return answer if isinstance(answer, int) else 0


def _drop_output() -> None:
    """Throw away what stdout still holds: Python would write it at exit, fail again, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `edgeinfer` with the given arguments (default: the process's) and return its exit code."""
    prepare_streams()
    try:
        code = _call(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _CLOSED_PIPE
    except OSError as error:
        say(f"edgeinfer: the output could not be written: {error.strerror or error}")
        _drop_output()
        return EdgeInferError.exit_code
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _CLOSED_PIPE:
        _drop_output()
    return code
