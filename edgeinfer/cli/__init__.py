"""The command line: options and printing only. One file per command; click, rich and prompt_toolkit live here alone.

A command is one file and one line in COMMANDS. Its module is imported when the command is run, so that `--help` is
quick and light commands never import what heavy ones need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["COMMANDS", "Entry"]


@dataclass(frozen=True)
class Entry:
    """One command of the command line."""

    name: str
    help: str  # what `edgeinfer --help` says about it
    load: Callable[[], click.Command]


def _chat() -> click.Command:
    from .chat import chat

    return chat


def _run() -> click.Command:
    from .run import run

    return run


def _bench() -> click.Command:
    from .bench import bench

    return bench


def _inspect() -> click.Command:
    from .inspect import inspect

    return inspect


def _pull() -> click.Command:
    from .pull import pull

    return pull


def _models() -> click.Command:
    from .models import models

    return models


def _rm() -> click.Command:
    from .rm import rm

    return rm


def _completion() -> click.Command:
    from .completion import completion

    return completion


# In the order in which `edgeinfer --help` shows them.
COMMANDS: tuple[Entry, ...] = (
    Entry("chat", "Talk with a model in the terminal.", _chat),
    Entry("run", "Answer one prompt and exit.", _run),
    Entry("bench", "Measure how fast a model is here, for one stream or many.", _bench),
    Entry("inspect", "Show what is in a model file and whether it runs here.", _inspect),
    Entry("pull", "Download a model.", _pull),
    Entry("models", "List the models on this disk.", _models),
    Entry("rm", "Remove a pulled model.", _rm),
    Entry("completion", "Print the completion script of a shell.", _completion),
)
