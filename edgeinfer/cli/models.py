"""`edgeinfer models`: what is on this disk, and what can be pulled by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ..errors import EdgeInferError
from ..settings import settings
from .terminal import escaped

if TYPE_CHECKING:
    from ..store import LocalModel

__all__ = ["models"]

_OWNERS = {
    "edgeinfer": "pulled",
    "folder": "own file",
    "huggingface": "Hugging Face",
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
}


def _look_inside(model: LocalModel) -> LocalModel:
    """Add what only the file itself tells: whether it can be read, is a language model, and its quant where not known."""
    from ..model.gguf import GGUFFile
    from ..model.purpose import architecture
    from ..profile.summary import FILE_TYPES

    if model.problem:
        return model
    try:
        with GGUFFile.open(model.path) as file:
            declared = file.metadata.get("general.file_type")
            quant = FILE_TYPES.get(declared, "") if isinstance(declared, int) else ""
            model = replace(model, quant=model.quant or quant)
            architecture(file)
            return model
    except EdgeInferError as error:
        return replace(model, problem=str(error).removeprefix(f"{model.path}").lstrip(": "))
    except Exception as error:  # one bad file never breaks the list
        return replace(model, problem=f"cannot be read: {type(error).__name__}: {error}")


def _table(found: list[LocalModel]) -> str:
    rows = [("NAME", "QUANT", "SIZE", "FROM", "PATH")]
    for model in found:
        size = f"{model.size / 1e6:.1f} MB" if model.size else "-"
        path = str(model.path) + (f"  ({model.problem})" if model.problem else "")
        rows.append((model.name, model.quant or "-", size, _OWNERS[model.owner], path))
    safe = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in safe) for i in range(4)]
    lines = []
    for name, quant, size, owner, path in safe:
        cells = (name.ljust(widths[0]), quant.ljust(widths[1]), size.rjust(widths[2]), owner.ljust(widths[3]), path)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with name, path, size, quant and more.")
def models(as_json: bool) -> None:
    """List the models on this disk: pulled ones, and those of Hugging Face, Ollama and LM Studio."""
    from .. import store

    found = [_look_inside(model) for model in store.local_models(settings())]
    if as_json:
        rows = [
            {
                "name": model.name,
                "path": str(model.path),
                "size": model.size,
                "quant": model.quant or None,
                "owner": model.owner,
                "source": model.source or None,
                "problem": model.problem or None,
            }
            for model in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    if found:
        click.echo(_table(found))
    here = {model.name for model in found if model.owner == "edgeinfer" and not model.problem}
    for model in store.manifest().models:
        if model.name not in here:
            size = f"{model.size / 1e6:.0f} MB, {model.quant}, needs {model.ram} MB of memory"
            click.echo(f"to pull: edgeinfer pull {model.name}  ({model.title}; {size}; {model.licence})")
