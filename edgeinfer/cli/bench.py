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

_ONE_STREAM: dict[str, Any] = {"pp": 512, "tg": 128, "repeats": 5}
_MANY_STREAMS: dict[str, Any] = {
    "requests": 100, "prompt_tokens": "32:2048", "max_tokens": 128, "arrivals": "closed", "runs": 1, "shared_prefix": 0,
}  # fmt: skip


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--pp", type=int, help="One stream: prompt tokens to read; 0 leaves it out.  [default: 512]")
@click.option("--tg", type=int, help="One stream: tokens to write; 0 leaves it out.  [default: 128]")
@click.option("--repeats", type=int, help="One stream: how often each is measured.  [default: 5]")
@click.option("--concurrency", type=int, help="Many streams: the most requests in flight.")
@click.option("--requests", type=int, help="Many streams: how many requests.  [default: 100]")
@click.option("--prompt-tokens", metavar="MIN:MAX", help="Lengths of their prompts.  [default: 32:2048]")
@click.option("--max-tokens", type=int, help="Tokens out of each; end tokens are ignored.  [default: 128]")
@click.option("--arrivals", metavar="RULE", help="closed, poisson:RATE (a second) or burst:N@S.  [default: closed]")
@click.option("--shared-prefix", type=int, help="The first tokens of all prompts are the same.  [default: 0]")
@click.option("--runs", type=int, help="How often the whole load is put on; targets take turns.  [default: 1]")
@click.option("--no-split", is_flag=True, help="Read every prompt whole before answers go on.")
@click.option("--vs", multiple=True, metavar="OTHER", help="Compare with: unsplit, llamacpp, or a server's http://...")
@click.option("--n-ctx", type=int, help="Context in tokens of each stream.  [default: what the requests need]")
@click.option("-t", "--threads", type=int, help="Threads to compute with.")
@click.option("--seed", type=int, default=0, help="Makes the prompts and arrivals.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with every figure and setting.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def bench(
    model: str,
    concurrency: int | None,
    no_split: bool,
    vs: tuple[str, ...],
    n_ctx: int | None,
    threads: int | None,
    seed: int,
    as_json: bool,
    offline: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Measure how fast MODEL is on this machine.

    Without --concurrency one stream is measured: a prompt read (pp) and an answer written (tg). With it, requests with
    random prompts arrive and are answered at once, all of them greedy and of full length. Times are wall-clock times;
    loading, compiling and a warm-up are figures of their own. Ctrl-C shows what was measured so far.

    \b
    edgeinfer bench smollm2-135m
    edgeinfer bench smollm2-135m --concurrency 16 --requests 500 --vs unsplit --vs llamacpp
    edgeinfer bench smollm2-135m --concurrency 16 --arrivals poisson:0.5 --json
    """
    one, other = (_ONE_STREAM, _MANY_STREAMS) if concurrency is None else (_MANY_STREAMS, _ONE_STREAM)
    stray = [name for name in other if options[name] is not None]
    if concurrency is None:
        stray += ["no_split"] * no_split + ["vs"] * bool(vs)
    if stray:
        flag = "--" + stray[0].replace("_", "-")
        raise click.UsageError(f"{flag} goes {'with' if concurrency is None else 'without'} --concurrency")
    chosen = {name: default if options[name] is None else options[name] for name, default in one.items()}
    if seed < 0:
        raise SettingError(f"--seed is {seed}; wanted a whole number, at least 0")
    opener = _Opener(model, n_ctx, threads, offline, quiet)
    if concurrency is None:
        document, code = _one_stream(opener, seed, as_json, **chosen)
    else:
        document, code = _many_streams(opener, seed, as_json, concurrency, no_split, vs, **chosen)
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    for note in document["notes"]:
        say(f"note: {note}")
    return code


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

    def open(self, n_ctx: int, **more: Any) -> LLM:
        """Load it."""
        return open_model(
            self.model, n_ctx=n_ctx, threads=self.threads, seed=None, offline=self.offline, quiet=self.quiet, **more
        )


def _facts(llm: LLM, **more: Any) -> dict[str, Any]:
    n_threads = llm.threads.n_threads if llm.threads else None
    return {"n_ctx": llm.n_ctx, "n_threads": n_threads, "load_s": llm.load_s, "compile_s": llm.compile_s, **more}


def _bos(llm: LLM) -> int | None:
    return llm.tokenizer.bos_id if llm.tokenizer.add_bos else None


def _one_stream(
    opener: _Opener, seed: int, as_json: bool, pp: int, tg: int, repeats: int
) -> tuple[dict[str, Any], int]:
    from ..evaluate.single_stream import SHORT_PROMPT, measure_single
    from ..evaluate.targets import word_ids
    from ..profile.throttle import ThrottleWatch
    from .bench_view import Counter, print_single

    n_ctx = opener.window(max(pp + 1 if pp > 0 else 0, SHORT_PROMPT + tg if tg > 0 else 0, 2))
    watch, counter = ThrottleWatch(), Counter(opener.quiet)
    with opener.open(n_ctx) as llm:
        facts = _facts(llm)
        counter.start(opener.model, repeats + 1)

        def done(what: str) -> None:
            counter.count()
            watch.sample()

        try:
            result = measure_single(
                llm.generate,
                word_ids(llm.tokenizer),
                n_prompt=pp,
                n_out=tg,
                repeats=repeats,
                seed=seed,
                bos=_bos(llm),
                done=done,
            )
        finally:
            counter.stop()
    document = {
        "model": opener.model,
        "mode": "single",
        "settings": {"seed": seed, "repeats": repeats, **facts},
        "warm_up_s": result.warm_up_s,
        "results": [row.as_dict() for row in result.rows()],
        "interrupted": result.interrupted,
        "notes": watch.notes(),
    }
    if not as_json:
        click.echo(_once(facts, result.warm_up_s))
        print_single(result.rows())
    return document, 130 if result.interrupted else 0


def _once(facts: dict[str, Any], warm_up_s: float | None) -> str:
    """What happened once, in words."""
    once = (("loaded in", facts["load_s"]), ("compiled in", facts["compile_s"]), ("warm-up", warm_up_s))
    parts = [f"{label} {seconds:.2f} s" for label, seconds in once if seconds is not None]
    return ", ".join([*parts, f"{facts['n_threads'] or '?'} threads", f"n_ctx {facts['n_ctx']}"])


def _many_streams(
    opener: _Opener,
    seed: int,
    as_json: bool,
    concurrency: int,
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
    get_model(opener.model, opener.offline)
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
