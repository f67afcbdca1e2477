"""`edgeinfer bench` for one stream: lengths, depths, thread counts, a rival, the verify curve, where the time goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from ..errors import SettingError
from ..evaluate.single_stream import Case, Measured, SingleStream, cases_of, measure_single
from ..evaluate.targets import word_ids
from .bench_view import Counter, print_curves, print_profile, print_rates
from .terminal import say

if TYPE_CHECKING:
    from ..evaluate.step_times import StepTimes
    from ..evaluate.verify_curve import Curve
    from ..load import LLM

__all__ = ["SingleOptions", "bench_single"]

_CURVE_DEPTH = 128  # tokens before the steps of the verify curve


@dataclass(frozen=True)
class SingleOptions:
    """What is measured."""

    pp: tuple[int, ...]
    tg: tuple[int, ...]
    depth: tuple[int, ...]
    threads: tuple[int, ...]  # empty: as load decides
    batch: tuple[int, ...]
    repeats: int
    vs: tuple[str, ...]
    profile: bool
    plot: str | None
    seed: int

    def cases(self) -> tuple[Case, ...]:
        """The rows. Raises SettingError."""
        if not any((*self.pp, *self.tg)) and (self.batch or self.profile) and not any(self.depth):
            return ()
        return cases_of(self.pp, self.tg, self.depth)

    def longest(self) -> int:
        """Positions that the longest case needs."""
        needs = [case.depth + case.n_prompt + case.n_out for case in self.cases()]
        needs += [_CURVE_DEPTH + n for n in self.batch]
        return max(needs, default=2)


@dataclass
class _Found:
    """What was measured, over all thread counts."""

    facts: list[dict[str, Any]] = field(default_factory=list)
    streams: list[SingleStream] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    profiles: list[tuple[int | None, float | None, list[_Phase]]] = field(default_factory=list)
    interrupted: bool = False


@dataclass(frozen=True)
class _Phase:
    """A profiled phase: times by operation, and how long it took by the caller's clock."""

    label: str
    n_tokens: int
    wall_s: float
    times: StepTimes
    sampling_s: float


def bench_single(opener: Any, options: SingleOptions, as_json: bool) -> tuple[dict[str, Any], int]:
    """Measure and show; returns the document and the exit code."""
    from ..profile.throttle import ThrottleWatch

    cases = options.cases()
    if options.repeats < 1:
        raise SettingError(f"--repeats is {options.repeats} and leaves nothing to measure; wanted at least 1")
    for other in options.vs:
        if other != "llamacpp":
            raise SettingError(f"--vs is {other!r}; wanted llamacpp, or --concurrency N with it")
    if options.plot is not None:
        from .bench_plot import check_plot

        check_plot(options.plot)
    if options.vs:
        from ..evaluate.llama_reference import build

        build()  # says what is missing before anything is loaded
    n_ctx = opener.window(options.longest())
    watch, counter, found = ThrottleWatch(), Counter(opener.quiet), _Found()
    steps = (options.repeats + 1) * (len(cases) + len({1, *options.batch} if options.batch else ()))

    def done(what: str) -> None:
        counter.count()
        watch.sample()

    try:
        for number, n_threads in enumerate(options.threads or (None,)):
            with opener.open(n_ctx, threads=n_threads, prefix_cache=False) as llm:
                if number == 0:
                    counter.start(opener.model, steps * max(1, len(options.threads)))
                _measure(llm, opener, options, cases, n_ctx, found, done)
            if found.interrupted:
                break
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        counter.stop()
    document = _document(opener.model, options, found, watch.notes())
    if not as_json:
        _show(options, found)
    if options.plot is not None and any(stream.rates() for stream in found.streams):
        from .bench_plot import plot

        plot(options.plot, opener.model, [row for stream in found.streams for row in stream.rates()], found.curves)
        say(f"the plot is in {options.plot}")
    return document, 130 if found.interrupted else 0


def _measure(
    llm: LLM,
    opener: Any,
    options: SingleOptions,
    cases: tuple[Case, ...],
    n_ctx: int,
    found: _Found,
    done: Callable[[str], None],
) -> None:
    """Everything for one thread count."""
    from ..evaluate.limits import Limits
    from ..evaluate.sides import Llama, Ours

    n_threads = llm.threads.n_threads if llm.threads else None
    reason = llm.threads.reason if llm.threads else None
    found.facts.append(
        {"n_ctx": llm.n_ctx, "n_threads": n_threads, "threads_reason": reason, "load_s": llm.load_s, "compile_s": llm.compile_s}
    )  # fmt: skip
    pool, bos = word_ids(llm.tokenizer), llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
    ours = Ours(llm.generate)
    with ExitStack() as stack:
        limits = Limits.of(llm.engine, n_threads or 1)
        if limits is not None:
            stack.callback(limits.close)
        rival = None
        if options.vs:
            rival = _llama(opener.model, n_ctx, n_threads or 1)
            stack.callback(rival.close)
        if cases:
            stream = measure_single(
                ours, pool, cases, repeats=options.repeats, rival=None if rival is None else Llama(rival), limits=limits,
                n_threads=n_threads, seed=options.seed, bos=bos, done=done,
            )  # fmt: skip
            found.streams.append(stream)
            found.interrupted |= stream.interrupted
        if options.batch and not found.interrupted:
            curve = _curve(llm.engine, rival, pool, options, n_threads, done)
            found.curves.append(curve)
            found.interrupted |= curve.interrupted
        if options.profile and not found.interrupted:
            if limits is None:
                raise SettingError("--profile needs the native engine, whose steps it times")
            bandwidth = limits.bandwidth()
            found.profiles.append((n_threads, bandwidth, _profile(llm.engine, ours, pool, options, bos)))


def _llama(model: str, n_ctx: int, n_threads: int) -> Any:
    from .. import store
    from ..evaluate.llama_reference import LlamaCpp
    from ..settings import settings

    return LlamaCpp(store.resolve(model, settings()), n_ctx, n_threads)


def _curve(
    engine: Any, rival: Any, pool: list[int], options: SingleOptions, n_threads: int | None, done: Callable[[str], None]
) -> Curve:
    from ..evaluate.verify_curve import LlamaStepper, OurStepper, measure_curve
    from ..evaluate.workload import make_requests

    n_most = max(options.batch)
    most = getattr(engine, "n_out", n_most)
    if n_most > most:
        raise SettingError(f"--batch asks for a step of {n_most} tokens; wanted at most {most}")
    ids = make_requests(1, pool, (_CURVE_DEPTH + n_most,) * 2, 1, seed=options.seed + 5)[0].prompt
    context, more = ids[:_CURVE_DEPTH], ids[_CURVE_DEPTH:]
    stepper = OurStepper(engine, context, more)
    try:
        other = None if rival is None else LlamaStepper(rival, context, more)
        return measure_curve(
            stepper, options.batch, repeats=options.repeats, rival=other, n_threads=n_threads, done=done
        )
    finally:
        stepper.close()


def _profile(engine: Any, ours: Any, pool: list[int], options: SingleOptions, bos: int | None) -> list[_Phase]:
    """Run a prefill and an answer with a clock between the steps."""
    from ..evaluate.single_stream import SHORT_PROMPT
    from ..evaluate.step_times import timed
    from ..evaluate.workload import make_requests

    phases = []
    plans = [("prefill", n, 1, "batch") for n in options.pp[:1] if n]
    plans += [("decode", SHORT_PROMPT, n, "decode") for n in options.tg[:1] if n > 1]
    for place, (label, n_prompt, n_out, phase) in enumerate(plans):
        prompts = make_requests(2, pool, (n_prompt,) * 2, 1, seed=options.seed + 100 + place, bos=bos)
        ours.run((), prompts[0].prompt, n_out)  # warm-up
        with timed(engine) as times:
            run = ours.run((), prompts[1].prompt, n_out)
        wall, n = (run.first_s, n_prompt) if n_out == 1 else (run.rest_s, run.n_out - 1)
        sampling = times["tokens"].operations["sampling"].seconds
        phases.append(_Phase(f"{label} of {n} tokens", n, wall, times[phase], sampling))
    return phases


def _document(model: str, options: SingleOptions, found: _Found, notes: list[str]) -> dict[str, Any]:
    first = found.facts[0] if found.facts else {}
    return {
        "model": model,
        "mode": "single",
        "settings": {"seed": options.seed, "repeats": options.repeats, **first, "runs": found.facts},
        "warm_up_s": found.streams[0].warm_up_s if found.streams else None,
        "results": [row.as_dict() for stream in found.streams for row in stream.rows()],
        "verify": [point for curve in found.curves for point in curve.as_dict()],
        "profile": [
            {
                "n_threads": n_threads,
                "read_bytes_s": bandwidth,
                "phases": [
                    {"label": p.label, "n_tokens": p.n_tokens, "wall_s": p.wall_s, "sampling_s": p.sampling_s,
                     **p.times.as_dict()} for p in phases
                ],
            }
            for n_threads, bandwidth, phases in found.profiles
        ],
        "interrupted": found.interrupted,
        "notes": notes,
    }  # fmt: skip


def _show(options: SingleOptions, found: _Found) -> None:
    for number, facts in enumerate(found.facts):
        warm_up = found.streams[number].warm_up_s if number < len(found.streams) else None
        click.echo(once(facts, warm_up))
    several = len(found.facts) > 1
    detailed = not several and not options.vs
    rows: list[Measured] = []
    for stream in found.streams:
        rows += stream.rows() if detailed else stream.rates()
    if rows:
        print_rates(rows, several)
    if found.curves:
        print_curves(found.curves)
    for n_threads, bandwidth, phases in found.profiles:
        for phase in phases:
            print_profile(phase, n_threads, bandwidth)


def once(facts: dict[str, Any], warm_up_s: float | None) -> str:
    """What happened once, in words."""
    times = (("loaded in", facts["load_s"]), ("compiled in", facts["compile_s"]), ("warm-up", warm_up_s))
    parts = [f"{label} {seconds:.2f} s" for label, seconds in times if seconds is not None]
    reason = f" ({facts['threads_reason']})" if facts.get("threads_reason") else ""
    return ", ".join([*parts, f"{facts['n_threads'] or '?'} threads{reason}", f"n_ctx {facts['n_ctx']}"])
