"""What `chat` and `run` share: load a model, stream an answer, stop it on Ctrl-C, and say what it cost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..errors import DownloadError
from ..generate.params import GRAMMARS
from ..schedule.overflow import POLICIES
from ..settings import settings
from .pull import pull_with_progress
from .terminal import StatusLine, say, visible

if TYPE_CHECKING:
    from ..load import LLM
    from ..metrics import Timings
    from ..schedule.generation import Generation

__all__ = [
    "Outcome",
    "figures",
    "get_model",
    "given",
    "kv_option",
    "open_model",
    "overflow_option",
    "pre_option",
    "recommended",
    "stream",
]


def open_model(
    name: str,
    *,
    n_ctx: int | None,
    threads: int | None,
    seed: int | None,
    offline: bool,
    quiet: bool = False,
    **options: Any,
) -> LLM:
    """Load a model; pull it first when it is a name of the manifest that is not on this disk.

    `options` are more settings of `load`. Raises what load and pull raise, and DownloadError when it would have to be
    pulled but may not.
    """
    from ..load import load

    get_model(name, offline, quiet)
    with StatusLine(quiet) as status:
        llm = load(name, n_ctx=n_ctx, n_threads=threads, seed=seed, progress=status, **options)
    if llm.threads is not None and llm.threads.note and not quiet:
        say(f"note: {llm.threads.note}")
    return llm


def get_model(name: str, offline: bool, quiet: bool = False) -> None:
    """Pull a model if it is a name of the manifest that is not on this disk; DownloadError when it may not be."""
    from .. import store
    from ..store.cache import find_pulled

    chosen = settings()
    listed = store.manifest().find(name)
    have = find_pulled(chosen, name)
    if listed and (have is None or have.problem) and not _is_file(name):
        if offline or chosen.offline:
            raise DownloadError(
                f"model {listed.name} is not on this disk and downloads are off (--offline, EDGEINFER_OFFLINE or "
                f"HF_HUB_OFFLINE); once there is a network, run `edgeinfer pull {listed.name}`"
            )
        pull_with_progress(listed.name, quiet=quiet)


def _is_file(name: str) -> bool:
    from pathlib import Path

    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


@dataclass
class Outcome:
    """An answer that was streamed to its end."""

    text: str = ""
    thinking: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "cancelled"
    timings: Timings | None = None
    limited_by: str | None = None  # "max_tokens" or "context" where that ended it
    dropped: str | None = None  # what was left out to make it fit the context, in a sentence


@contextmanager
def _stop_on_interrupt(answer: Generation) -> Iterator[None]:
    """While inside, the first Ctrl-C asks the answer to end at its next token; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        answer.cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


def stream(
    answer: Generation, write: Callable[[str], None], think: Callable[[str], None] = lambda text: None
) -> Outcome:
    """Read an answer to its end, giving each piece of it to `write` as it comes, and of the thinking to `think`."""
    outcome = Outcome()
    pieces: list[str] = []
    thoughts: list[str] = []
    with _stop_on_interrupt(answer), answer:
        for chunk in answer:
            if chunk.token is not None:
                outcome.tokens.append(chunk.token)
            if chunk.reasoning:
                thoughts.append(chunk.text)
                think(chunk.text)
            elif chunk.text:
                pieces.append(chunk.text)
                write(chunk.text)
            if chunk.finish_reason:
                outcome.finish_reason = chunk.finish_reason
    outcome.text, outcome.thinking = "".join(pieces), "".join(thoughts)
    outcome.timings = answer.timings
    outcome.limited_by = getattr(answer, "limited_by", None)
    dropped = getattr(answer, "dropped", None)
    outcome.dropped = dropped.sentence() if dropped is not None else None
    return outcome


def say_cut(outcome: Outcome, n_ctx: int, chosen: Mapping[str, Any]) -> None:
    """Say that an answer was cut where nobody asked for that: by the context, or inside what a grammar wants."""
    if outcome.limited_by == "context":
        say(
            f"note: the answer was cut: the context of {n_ctx} tokens is full (--n-ctx makes it larger, --overflow goes on)"
        )
    elif outcome.limited_by == "max_tokens" and any(name in chosen for name in GRAMMARS):
        say("note: the answer was cut by the limit on its tokens (-n) before it was whole")


def write_out(text: str) -> None:
    """Write a piece of an answer to stdout at once; on a terminal, without what could drive it."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def end_line(text: str) -> None:
    """End the line of an answer unless it ended it itself."""
    if not text.endswith("\n"):
        write_out("\n")


def figures(timings: Timings | None, finish_reason: str) -> str:
    """One line about the speed of an answer; a figure that is not defined is a dash."""
    if timings is None:
        return "no figures"

    def show(value: float | None, unit: str) -> str:
        return "-" if value is None else f"{value:.{2 if value < 10 else 1}f} {unit}"

    reused = f" ({timings.n_reused} reused)" if timings.n_reused else ""
    return (
        f"TTFT {show(timings.ttft_s, 's')} | prefill {timings.n_prefill} tokens{reused} "
        f"{show(timings.prefill_tok_s, 'tok/s')} | decode {timings.n_out} tokens "
        f"{show(timings.decode_tok_s, 'tok/s')} | {finish_reason}"
    )


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave, under the API's names; the others keep the API's defaults."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def recommended(name: str) -> dict[str, Any]:
    """The sampling parameters that the manifest recommends for a model, by its name or as the file that it pulls."""
    from .. import store

    known = store.manifest()
    listed = known.find(name) or known.of_file(name)
    return {} if listed is None else dict(listed.sampling)


overflow_option = click.option(
    "--overflow",
    type=click.Choice(POLICIES),
    help="When prompt and answer do not fit in the context: refuse, leave the oldest turns out, go on shifting, or "
    "summarise the oldest turns.  [default: error]",
)

kv_option = click.option(
    "--kv-type",
    type=click.Choice(("f16", "q8_0", "q4_0")),
    help="How the KV cache is stored; q8_0 takes half the memory.  [default: f16]",
)

pre_option = click.option(
    "--pre", metavar="NAME", help="The pre-tokenizer, for a file that names none or an unknown one, such as qwen2."
)


def say_no_template(llm: LLM) -> None:
    """Tell why a conversation becomes plain completion."""
    say("this model file has no usable chat template: it continues the text as it is, without roles or memory of turns")
