"""Errors in the command line's words: the API's parameters that a message names become the options that stand for them."""

from __future__ import annotations

import re

import click

from ..errors import ContextOverflowError, EdgeInferError, MemoryLimitError, MissingExtraError, SettingError
from ..generate.params import SAMPLERS

__all__ = ["in_options"]

# errors about what was asked for; the others speak of files, whose words are left as they are
_ABOUT_PARAMETERS = (SettingError, ContextOverflowError, MemoryLimitError, MissingExtraError)
_OTHER_NAMES = {"threads": "n_threads"}  # options whose name here is not that of the parameter


def in_options(error: EdgeInferError, command: click.Command | None) -> str:
    """The message of an error that came out of a command, with the command's options in it.

    A message begins with the names of the parameters that it is about; those become options whatever they are called.
    Further on, only a name with an underscore that stands by itself does: others are words, and what is in quotes is
    what somebody gave.
    """
    text = str(error)
    if command is None or not isinstance(error, _ABOUT_PARAMETERS):
        return text
    flags = _flags(command)
    if not flags:
        return text
    any_of = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))
    head = re.match(rf"(?:{any_of})(?:(?:, | and )(?:{any_of}))*(?=[ \[])", text)
    n = head.end() if head else 0
    leading = re.sub(any_of, lambda found: flags[found[0]], text[:n])
    plain = re.compile(rf"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?<![\w./\\-])(?:{any_of})(?![\w/\\=-]|\.\w)""")
    return leading + plain.sub(lambda found: _option(found[0], flags), text[n:])


def _option(found: str, flags: dict[str, str]) -> str:
    return flags[found] if found in flags and "_" in found and found not in SAMPLERS else found


def _flags(command: click.Command) -> dict[str, str]:
    """The options of a command by the names of the API's parameters."""
    flags = {}
    for option in command.params:
        long = [flag for flag in option.opts if flag.startswith("--")]
        if isinstance(option, click.Option) and option.name and long:
            flags[_OTHER_NAMES.get(option.name, option.name)] = long[0]
    if "think" in flags:
        flags["thinking"] = flags["think"]
    return flags
