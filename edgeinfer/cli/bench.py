"""`edgeinfer bench`: how fast a model is here, for one stream or for many, beside llama.cpp's server if asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..errors import EdgeInferError, SettingError
from .answer import get_model, open_model
from .completion import complete_model
from .terminal import say

if TYPE_CHECKING:
    from ..evaluate.contest import Contestant
    from ..evaluate.load_generator import Record
    from ..load import LLM

__all__ = ["bench"]

_ONE_STREAM: dict[str, Any] = {
    "pp": (512,), "tg": (128,), "depth": (0,), "batch": (), "repeats": 5, "profile": False, "plot": None,
    "tune_threads": False,
}  # fmt: skip
_MANY_STREAMS: dict[str, Any] = {
    "requests": 100, "prompt_tokens": "32:2048", "max_tokens": 128, "arrivals": "closed", "runs": 1, "shared_prefix": 0,
    "no_split": False,
}  # fmt: skip
_TUNE = {"pp": (256,), "tg": (64,)}


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """Whole numbers with commas between them."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers, at least 0 each, none twice."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            found = (-1,)
        if any(number < 0 for number in found):
            self.fail(f"{value!r} is not a list of whole numbers such as 128 or 32,128,512", param, ctx)
        return found


_NUMBERS = Numbers()


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--pp", type=_NUMBERS, help="One stream: prompt tokens to read; 0 leaves it out.  [default: 512]")
@click.option("--tg", type=_NUMBERS, help="One stream: tokens to write; 0 leaves it out.  [default: 128]")
@click.option("--depth", type=_NUMBERS, help="One stream: tokens in the context before that.  [default: 0]")
@click.option(
    "--batch", type=_NUMBERS, help="One stream: also steps of so many tokens, such as 1,2,4,8 (the verify curve)."
)
@click.option("--repeats", type=int, help="One stream: how often each is measured.  [default: 5]")
@click.option("--profile", is_flag=True, default=None, help="One stream: also where the time goes, by operation.")
@click.option("--plot", metavar="FILE.png", help="One stream: also a picture (needs edgeinfer[plot]).")
@click.option(
    "--tune-threads", is_flag=True, default=None, help="Find the fastest thread counts and use them from now on."
)
@click.option("--concurrency", type=int, help="Many streams: the most requests in flight.")
@click.option("--requests", type=int, help="Many streams: how many requests.  [default: 100]")
@click.option("--prompt-tokens", metavar="MIN:MAX", help="Lengths of their prompts.  [default: 32:2048]")
@click.option("--max-tokens", type=int, help="Tokens out of each; end tokens are ignored.  [default: 128]")
@click.option("--arrivals", metavar="RULE", help="closed, poisson:RATE (a second) or burst:N@S.  [default: closed]")
@click.option("--shared-prefix", type=int, help="The first tokens of all prompts are the same.  [default: 0]")
@click.option("--runs", type=int, help="How often the whole load is put on; targets take turns.  [default: 1]")
@click.option("--no-split", is_flag=True, default=None, help="Read every prompt whole before answers go on.")
@click.option(
    "--vs", multiple=True, metavar="OTHER", help="Compare with llamacpp; many streams: also unsplit, http://..."
)
@click.option("--n-ctx", type=int, help="Context in tokens of each stream.  [default: what the requests need]")
@click.option("-t", "--threads", type=_NUMBERS, help="Threads to compute with; one stream: each of N,N,... in turn.")
@click.option("--seed", type=int, default=0, help="Makes the prompts and arrivals.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with every figure and setting.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def bench(
    model: str,
    concurrency: int | None,
    vs: tuple[str, ...],
    n_ctx: int | None,
    threads: tuple[int, ...] | None,
    seed: int,
    as_json: bool,
    offline: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Measure how fast MODEL is on this machine.

    Without --concurrency one stream is measured: a prompt read (pp) and an answer written (tg), with how much of the
    machine's read bandwidth (MBU) or of its dot-product peak that is. With it, requests with random prompts arrive and
    are answered at once, all of them greedy and of full length. Times are wall-clock times; loading, compiling and a
    warm-up are figures of their own. Ctrl-C shows what was measured so far.

    \b
    edgeinfer bench smollm2-135m
    edgeinfer bench smollm2-135m --pp 32,128,512 --threads 1,2 --vs llamacpp
    edgeinfer bench smollm2-135m --pp 0 --tg 64 --depth 0,4096 --profile
    edgeinfer bench smollm2-135m --batch 1,2,4,8
    edgeinfer bench smollm2-135m --tune-threads
    edgeinfer bench smollm2-135m --concurrency 16 --requests 500 --vs unsplit --vs llamacpp
    """
    one, other = (_ONE_STREAM, _MANY_STREAMS) if concurrency is None else (_MANY_STREAMS, _ONE_STREAM)
    stray = [name for name in other if options[name] is not None]
    if stray:
        flag = "--" + stray[0].replace("_", "-")
        raise click.UsageError(f"{flag} goes {'with' if concurrency is None else 'without'} --concurrency")
    if seed < 0:
        raise SettingError(f"--seed is {seed}; wanted a whole number, at least 0")
    if threads is not None and 0 in threads:
        raise SettingError("--threads is 0; wanted at least 1")
    if options["tune_threads"]:
        one = {**one, **_TUNE}
        _refuse_with_tuning(options, vs, threads)
    chosen = {name: default if options[name] is None else options[name] for name, default in one.items()}
    if concurrency is None:
        document, code = _one_stream(_Opener(model, n_ctx, None, offline, quiet), seed, as_json, vs, threads, chosen)
    else:
        if threads is not None and len(threads) > 1:
            raise click.UsageError("--threads takes one number with --concurrency")
        opener = _Opener(model, n_ctx, threads[0] if threads else None, offline, quiet)
        document, code = _many_streams(opener, seed, as_json, concurrency, vs=vs, **chosen)
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    for note in document["notes"]:
        say(f"note: {note}")
    return code


def _refuse_with_tuning(options: dict[str, Any], vs: tuple[str, ...], threads: tuple[int, ...] | None) -> None:
    stray = [name for name in ("depth", "batch", "profile", "plot") if options[name] is not None]
    stray += ["vs"] * bool(vs) + ["threads"] * (threads is not None)
    if stray:
        raise click.UsageError(f"--{stray[0]} goes without --tune-threads")
    for name in ("pp", "tg"):
        if options[name] is not None and len(options[name]) != 1:
            raise click.UsageError(f"--{name} takes one number with --tune-threads")


def _one_stream(
    opener: _Opener,
    seed: int,
    as_json: bool,
    vs: tuple[str, ...],
    threads: tuple[int, ...] | None,
    chosen: dict[str, Any],
) -> tuple[dict[str, Any], int]:
    from .bench_single import SingleOptions, bench_single
    from .bench_tune import tune_threads

    if chosen.pop("tune_threads"):
        return tune_threads(opener, chosen["pp"][0], chosen["tg"][0], chosen["repeats"], seed, as_json)
    return bench_single(opener, SingleOptions(threads=threads or (), vs=vs, seed=seed, **chosen), as_json)


@dataclass(frozen=True)
class _Opener:
    """How the model is loaded."""

    model: str
    n_ctx: int | None
    threads: int | None
    offline: bool
    quiet: bool

    def window(self, needed: int) -> int:
        """The context: as asked, else what the requests need, in whole pages. Raises SettingError when it is too small."""
        if self.n_ctx is None:
            return (needed + 63) // 64 * 64
        if self.n_ctx < needed:
            raise SettingError(
                f"--n-ctx is {self.n_ctx} and the longest request is {needed} tokens; wanted at least that"
            )
        return self.n_ctx

    def open(self, n_ctx: int, threads: int | None = None, **more: Any) -> LLM:
        """Load it."""
        return open_model(
            self.model, n_ctx=n_ctx, threads=threads or self.threads, seed=None, offline=self.offline, quiet=self.quiet,
            **more,
        )  # fmt: skip


def _many_streams(
    opener: _Opener,
    seed: int,
    as_json: bool,
    concurrency: int,
    *,
    no_split: bool,
    vs: tuple[str, ...],
    requests: int,
    prompt_tokens: str,
    max_tokens: int,
    arrivals: str,
    runs: int,
    shared_prefix: int,
) -> tuple[dict[str, Any], int]:
    from ..evaluate.contest import contest
    from ..evaluate.workload import make_requests, parse_arrivals
    from ..profile.throttle import ThrottleWatch
    from .bench_targets import contestants, vocabulary
    from .bench_view import Counter, print_contest

    rule, lengths = parse_arrivals(arrivals), _lengths(prompt_tokens)
    for name, value, least in (("concurrency", concurrency, 1), ("runs", runs, 1), ("shared-prefix", shared_prefix, 0)):
        if value < least:
            raise SettingError(f"--{name} is {value}; wanted at least {least}")
    n_ctx = opener.window(lengths[1] + max_tokens)
    get_model(opener.model, opener.offline, opener.quiet)
    pool, bos = vocabulary(opener.model)
    load = make_requests(requests, pool, lengths, max_tokens, arrivals=rule, seed=seed, n_shared=shared_prefix, bos=bos)
    entered = contestants(opener.open, opener.model, concurrency, n_ctx, not no_split, vs)
    watch, counter = ThrottleWatch(), Counter(opener.quiet)

    def begin(contestant: Contestant, number: int) -> None:
        counter.start(contestant.name + (f", run {number + 1} of {runs}" if runs > 1 else ""), requests)

    def done(record: Record) -> None:
        counter.count()
        watch.sample()

    try:
        finished = contest(entered, load, concurrency, runs=runs, begin=begin, done=done)
    finally:
        counter.stop()
    document = {
        "model": opener.model,
        "mode": "concurrency",
        "settings": {
            "concurrency": concurrency,
            "requests": requests,
            "prompt_tokens": list(lengths),
            "max_tokens": max_tokens,
            "arrivals": str(rule),
            "shared_prefix": shared_prefix,
            "n_ctx": n_ctx,
            "seed": seed,
            "runs": runs,
        },
        "targets": [contestant.as_dict() for contestant in entered],
        "interrupted": not finished,
        "notes": watch.notes(),
    }
    if not as_json:
        print_contest(entered)
    errors = [error for contestant in entered for run in contestant.runs for error in run.errors]
    for error in dict.fromkeys(errors):
        say(f"a request ended with: {error}")
    failed = any(run.n_failed for contestant in entered for run in contestant.runs)
    return document, 130 if not finished else EdgeInferError.exit_code if failed else 0


def _lengths(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise SettingError(f"--prompt-tokens is {text!r}; wanted MIN:MAX, such as 32:2048, or one number") from None
