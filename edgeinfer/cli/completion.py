"""`edgeinfer completion SHELL`: the script that makes a shell complete commands, options and model names."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from ..errors import EdgeInferError
from ..settings import settings

__all__ = ["complete_model", "completion"]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a MODEL argument: names of pulled and known models, then files."""
    from .. import store

    try:
        names = [model.name for model in store.local_models(settings())]
        names += [model.name for model in store.manifest().models]
    except EdgeInferError:
        names = []
    # a name that could drive the terminal is left for the hand to write
    fitting = (n for n in dict.fromkeys(names) if n.lower().startswith(incomplete.lower()) and n.isprintable())
    found = [CompletionItem(name) for name in fitting]
    return found or [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL (bash, zsh or fish).

    \b
    bash: edgeinfer completion bash > ~/.local/share/bash-completion/completions/edgeinfer
    zsh:  edgeinfer completion zsh > a folder of $fpath, as _edgeinfer
    fish: edgeinfer completion fish > ~/.config/fish/completions/edgeinfer.fish
    """
    from .main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(cli, {}, "edgeinfer", "_EDGEINFER_COMPLETE")
    click.echo(script.source_template % script.source_vars())
