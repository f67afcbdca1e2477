"""`edgeinfer inspect FILE`: what is in a GGUF file, what it needs, and what runs here. Options and printing only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ..errors import SettingError
from ..model.gguf import GGUFFile
from ..settings import settings
from .inspect_view import LABEL, Section, sections
from .terminal import json_text, visible

__all__ = ["inspect"]


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, with keys that stay.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--template", is_flag=True, help="Show the chat template and what is wrong with it.")
@click.option("--hex", "tensor", metavar="TENSOR", help="Show the first blocks of a tensor, as bytes and as weights.")
@click.option("--blocks", type=int, default=2, show_default=True, help="How many blocks --hex shows.")
@click.option("--diff", "other", metavar="FILE", help="Show what differs between FILE... and this one.")
@click.option("--draft", metavar="FILE", help="Say whether this model can draft for FILE... in speculative decoding.")
@click.option("--n-ctx", type=int, help="Plan memory for this context (default: as chat would, at most 4096).")
def inspect(
    files: tuple[str, ...],
    as_json: bool,
    tensors: bool,
    template: bool,
    tensor: str | None,
    blocks: int,
    other: str | None,
    draft: str | None,
    n_ctx: int | None,
) -> None:
    """Show what is in FILE (a .gguf file, or the name of a model on this disk) and whether it runs here.

    Of a model in several files name any one, or all.
    """
    if sum(map(bool, (other, draft, tensor))) > 1:
        raise SettingError("--diff, --draft and --hex show different things; ask for one at a time")
    with ExitStack() as opened:
        paths = [_path_of(name) for name in files]
        file = opened.enter_context(GGUFFile.open(paths[0] if len(paths) == 1 else paths))
        second = other or draft
        if second:
            beside = opened.enter_context(GGUFFile.open(_path_of(second)))
            found, shown = _compared(file, beside) if other else _paired(file, beside)
        elif tensor:
            found, shown = _hex(file, tensor, blocks)
        else:
            found, shown = _summary(file, n_ctx, tensors, template)
    if as_json:
        click.echo(json_text(found))
    else:
        _print(shown)


def _summary(file: GGUFFile, n_ctx: int | None, tensors: bool, template: bool) -> tuple[Any, Iterable[Section]]:
    from ..profile.summary import summarize

    found = summarize(file, n_ctx, tensors, lint=True if template else None)
    found["threads"] = _threads(file.path)
    if template:
        found["template"]["source"] = file.metadata.get("tokenizer.chat_template")
    return found, sections(found)


def _threads(path: Path) -> dict[str, Any]:
    """The threads that would compute here, and why."""
    from ..profile.tuned import threads_for

    choice = threads_for(path, settings())
    phases = choice.phases()
    text = str(choice.n_threads)
    if phases["batch"] != phases["decode"]:
        text = f"{phases['batch']} for prefill, {phases['decode']} for decode"
    return {"prefill": phases["batch"], "decode": phases["decode"], "text": f"{text}: {choice.note or choice.reason}"}


def _compared(a: GGUFFile, b: GGUFFile) -> tuple[Any, Iterable[Section]]:
    from ..profile.pairs import compare_files
    from .inspect_pairs import diff_sections

    found = compare_files(a, b)
    return found, diff_sections(found)


def _paired(target: GGUFFile, draft: GGUFFile) -> tuple[Any, Iterable[Section]]:
    from ..profile.pairs import draft_pair
    from .inspect_pairs import draft_sections

    found = draft_pair(target, draft)
    return found, draft_sections(found)


def _hex(file: GGUFFile, tensor: str, blocks: int) -> tuple[Any, Iterable[Section]]:
    from ..profile.tensor_bytes import tensor_blocks
    from .inspect_pairs import hex_sections

    found = tensor_blocks(file, tensor, blocks)
    return found, hex_sections(found)


def _path_of(name: str) -> str | os.PathLike[str]:
    """FILE as a path, as every command finds it."""
    from ..store import resolve

    return resolve(name, settings())


def _print(shown: Iterable[Section]) -> None:
    if sys.stdout.isatty() and not settings().no_color:
        _print_rich(shown)
        return
    for title, rows in shown:
        click.echo(title)
        for label, text in rows:
            click.echo(visible(f"  {label:<{LABEL}}{text}" if label else f"  {text}"))


def _print_rich(shown: Iterable[Section]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for title, rows in shown:
        console.print(Text(title, style="bold"))
        for label, text in rows:
            style = (
                "red"
                if label in ("cannot run", "cannot chat", "problem")
                else "green"
                if label in ("runs", "generates", "same")
                else ""
            )
            line = Text.assemble("  ", (f"{label:<{LABEL}}" if label else "", "cyan"), (visible(text), style))
            console.print(line)
