"""`edgeinfer rm`: remove a pulled model."""

from __future__ import annotations

import sys

import click

from ..errors import NotFoundError, SettingError
from ..settings import settings
from .completion import complete_model
from .terminal import PullProgress, escaped, say

__all__ = ["rm"]

_REMOVERS = {
    "huggingface": "the Hugging Face cache; `hf cache rm` removes it",
    "ollama": "Ollama; `ollama rm` removes it",
    "lmstudio": "LM Studio; remove it there",
}


@click.command()
@click.argument("name", shell_complete=complete_model)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Remove the model NAME that edgeinfer pulled. Files of other programs are never touched."""
    from .. import store
    from ..store.cache import find_pulled, remove

    chosen = settings()
    model = find_pulled(chosen, name)
    if model is None:
        other = next((m for m in store.local_models(chosen) if m.name.lower() == name.lower()), None)
        if other and other.owner in _REMOVERS:
            raise SettingError(f"{other.name} belongs to {_REMOVERS[other.owner]}")
        raise NotFoundError(f"there is no pulled model named {name!r}; `edgeinfer models` lists what is there")
    if not yes and model.owner == "edgeinfer":
        if sys.stdin is None or not sys.stdin.isatty():
            raise SettingError(f"removing {model.name} needs a yes: add --yes where no one can be asked")
        if not click.confirm(
            f"Remove {escaped(model.name)} ({model.size / 1e6:.1f} MB, {escaped(model.path)})?", err=True
        ):
            say("nothing was removed")
            return
    with PullProgress() as progress:
        freed = remove(chosen, model.name, progress)
    say(f"removed {model.name}: {freed / 1e6:.1f} MB freed")
