"""Options that several commands share, in groups, and the command that shows them so in its help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import SettingError
from .terminal import check_text

__all__ = ["GroupedCommand", "grouped_option", "sampling_given", "sampling_options"]

_F = TypeVar("_F", bound=Callable[..., Any])
_MOST_BYTES = 4 << 20  # of a schema or grammar file
_STDIN = ("-", "/dev/stdin", "/dev/fd/0")


class GroupedOption(click.Option):
    """An option that belongs to a group of the help."""

    def __init__(self, *names: Any, group: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows grouped options under their group's name, after the others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def grouped_option(*names: str, group: str, **settings: Any) -> Callable[[_F], _F]:
    """`click.option` with a group."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


_CHOICE = "Which token comes next"
_REPEATS = "Against repetition"
_SHAPE = "What the answer may be"
_BREAKS = "once for each; an empty one leaves none"

# name, type or flag, group, help: the defaults are those of SamplingParams, or the model's own
_SAMPLING: tuple[tuple[str, str, Any, str, str], ...] = (
    ("--temp", "temperature", float, _CHOICE, "Temperature; 0 always takes the likeliest token."),
    ("--dynatemp-range", "dynatemp_range", float, _CHOICE, "Temperature goes so far up and down with the entropy."),
    ("--dynatemp-exp", "dynatemp_exponent", float, _CHOICE, "Exponent of that entropy (as a share of the highest)."),
    ("--top-k", "top_k", int, _CHOICE, "Only the k likeliest tokens; 0 is off."),
    ("--top-p", "top_p", float, _CHOICE, "Only the likeliest tokens that make up this share; 1 is off."),
    ("--min-p", "min_p", float, _CHOICE, "Only tokens this likely relative to the best; 0 is off."),
    ("--typical", "typical_p", float, _CHOICE, "Only tokens near the expected surprise, up to this share; 1 is off."),
    ("--top-nsigma", "top_n_sigma", float, _CHOICE, "Only logits so many deviations below the best; -1 is off."),
    ("--xtc-probability", "xtc_probability", float, _CHOICE, "How often XTC drops the likeliest tokens; 0 is off."),
    ("--xtc-threshold", "xtc_threshold", float, _CHOICE, "How likely those are: it drops all but the last of them."),
    ("--min-keep", "min_keep", int, _CHOICE, "Top-p, min-p, typical and XTC leave at least so many."),
    ("--mirostat", "mirostat", int, _CHOICE, "2 keeps the surprise near --mirostat-ent; 0 is off."),
    ("--mirostat-ent", "mirostat_tau", float, _CHOICE, "Surprise in bits that mirostat aims at."),
    ("--mirostat-lr", "mirostat_eta", float, _CHOICE, "How fast mirostat corrects."),
    ("--samplers", "samplers", str, _CHOICE, 'Which samplers in which order, as in "top_k;typ_p;temperature".'),
    ("--repeat-penalty", "repeat_penalty", float, _REPEATS, "Penalty for tokens seen lately; 1 is off."),
    ("--repeat-last-n", "repeat_last_n", int, _REPEATS, "How many tokens count as lately; -1 is all, 0 none."),
    ("--presence-penalty", "presence_penalty", float, _REPEATS, "Taken from tokens seen lately."),
    ("--frequency-penalty", "frequency_penalty", float, _REPEATS, "Taken for each time they were seen."),
    ("--dry-multiplier", "dry_multiplier", float, _REPEATS, "Strength of DRY, against repeated phrases; 0 is off."),
    ("--dry-base", "dry_base", float, _REPEATS, "How DRY grows with the phrase's length."),
    ("--dry-allowed-length", "dry_allowed_length", int, _REPEATS, "Longest phrase that DRY lets pass."),
    ("--dry-penalty-last-n", "dry_penalty_last_n", int, _REPEATS, "How far back DRY looks; -1 is everything."),
)


def sampling_options(command: _F) -> _F:
    """Add the options that say how tokens are chosen; `sampling_given` takes what they give."""
    add = [
        *(grouped_option(flag, name, type=kind, group=group, help=text) for flag, name, kind, group, text in _SAMPLING),
        grouped_option(
            "--dry-sequence-breaker", "dry_sequence_breakers", multiple=True, group=_REPEATS,
            help=f"Text that phrases do not reach over ({_BREAKS}).",
        ),
        grouped_option("--stop", multiple=True, group=_SHAPE, help="End before this text; may be given several times."),
        grouped_option(
            "--json-schema", "json_schema", metavar="FILE", group=_SHAPE,
            help="JSON that fits the schema in this file (- is standard input) or in the option itself: '{...}'.",
        ),
        grouped_option("--regex", group=_SHAPE, help="Text that matches this regular expression as a whole."),
        grouped_option(
            "--grammar", metavar="FILE", group=_SHAPE,
            help="Text of the grammar in this file (- is standard input): GBNF or Lark.",
        ),
    ]  # fmt: skip
    for option in reversed(add):
        command = option(command)
    return command


def sampling_given(numbers: dict[str, Any], stdin_taken: str = "") -> dict[str, Any]:
    """The sampling parameters that the user gave; `stdin_taken` says why standard input is no place for a grammar.

    Raises SettingError for a file that cannot be read.
    """
    chosen = {name: value for name, value in numbers.items() if value is not None and value != ()}
    for name, flag in (("stop", "--stop"), ("dry_sequence_breakers", "--dry-sequence-breaker")):
        if name in chosen:
            chosen[name] = tuple(check_text(text, flag) for text in chosen[name])
    for name, flag in (("json_schema", "--json-schema"), ("grammar", "--grammar")):
        if name in chosen and not (name == "json_schema" and _is_json(chosen[name])):
            if chosen[name] in _STDIN and stdin_taken:
                raise SettingError(f"{flag} {chosen[name]} cannot read standard input: {stdin_taken}")
            chosen[name] = _file(chosen[name], flag)
    return chosen


def _is_json(text: str) -> bool:
    """Whether an option holds JSON and no file's name; what begins like JSON is to be told what is wrong with it."""
    if text.lstrip().startswith(("{", "[", '"')):
        return True
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _file(name: str, flag: str) -> str:
    try:
        if name in _STDIN:
            if sys.stdin is None:
                raise SettingError(f"{flag}: standard input is closed")
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            path = Path(name).expanduser()
            if path.exists() and not (path.is_file() or path.is_fifo()):  # a device may never end
                raise SettingError(f"{flag}: {name} is neither a file nor a pipe")
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise SettingError(f"{flag}: {name} is larger than {_MOST_BYTES >> 20} MB")
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise SettingError(f"{flag}: {name} is not UTF-8 text: byte {error.start}") from None
    except SettingError:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(f"{flag}: cannot read {name}: {reason}") from None
