"""Every bar on streams, caches and cancels in one go: scripts/bench concurrency [--quick] [--rows load,gap,...].

    load     requests in flight: split beside unsplit, and beside llama.cpp's own server (`pip install xllamacpp`)
    gap      the longest gap of a running stream while a long prompt is read
    batch    streams that write together, beside one
    prefix   TTFT with a cached beginning, from RAM and, in a new process, from disk
    cancel   from cancel() to an engine at rest
    soak     scripts/soak.py

The full run takes hours on two cores: 2 x 10 loads of 500 requests and an hour of soak; --quick is a smoke test of a
minute or two whose figures mean little, and `--set requests=100 --set runs=2` changes any number of the scale. Exit code
1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fetch_models import SOURCES, fetch
from reach_streams import cancel_times, longest_gap, tokens_together

import edgeinfer
from edgeinfer.cli.bench_targets import contestants, vocabulary
from edgeinfer.evaluate.contest import FIGURES, Contestant, contest
from edgeinfer.evaluate.load_report import Percentiles
from edgeinfer.evaluate.targets import word_ids
from edgeinfer.evaluate.workload import make_requests
from edgeinfer.metrics import percentile
from edgeinfer.profile.throttle import ThrottleWatch
from edgeinfer.settings import child_environment, settings

ROWS = ("load", "gap", "batch", "prefix", "cancel", "soak")
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    requests: int = 500
    concurrency: int = 16
    lengths: tuple[int, int] = (32, 2048)
    max_tokens: int = 128
    runs: int = 10  # of split and of unsplit, taking turns
    rival_runs: int = 1  # of llama.cpp's server, beside the first of these
    n_long: int = 4096  # prompt that is read beside a running stream
    n_ctx_long: int = 8192
    gap_repeats: int = 5
    n_out: int = 128  # of streams that write together
    batch_repeats: int = 5
    prefix: int = 1024
    prefix_repeats: int = 10
    cancels: int = 200  # in prefill, and as many in decode
    n_cancel_prompt: int = 2048
    soak_minutes: float = 60.0


QUICK = Scale(12, 6, (32, 256), 24, 1, 1, 512, 2048, 1, 32, 1, 256, 3, 8, 512, 0.25)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    bar: str
    seen: str
    ok: bool | None  # None: nothing that can be judged


class Reach:
    """One model, one scale, and what was measured."""

    def __init__(self, path: Path, scale: Scale, threads: int, rival: bool, seed: int) -> None:
        self.path, self.scale, self.threads, self.rival, self.seed = path, scale, threads, rival, seed
        self.rows: list[Row] = []
        self.raw: dict[str, Any] = {}

    def row(self, what: str, bar: str, seen: str, ok: bool | None) -> None:
        """Add a line and say it at once: a long run may be broken off."""
        self.rows.append(Row(what, bar, seen, ok))
        verdict = {True: "yes", False: "NO", None: "-"}[ok]
        print(f"| {what} | {bar} | {seen} | {verdict} |", flush=True)

    def _open(self, n_ctx: int, **options: Any) -> edgeinfer.LLM:
        return edgeinfer.load(self.path, n_ctx=n_ctx, n_threads=self.threads, **options)

    # ---- load -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Many requests, split, unsplit and on llama.cpp's server."""
        scale = self.scale
        n_ctx = (scale.lengths[1] + scale.max_tokens + 63) // 64 * 64
        pool, bos = vocabulary(str(self.path))
        requests = make_requests(scale.requests, pool, scale.lengths, scale.max_tokens, seed=self.seed, bos=bos)
        others = ["unsplit", *(["llamacpp"] if self.rival else [])]
        entered = contestants(self._open, str(self.path), scale.concurrency, n_ctx, True, others)
        begin = lambda c, n: print(f"  load: {c.name}, run {n + 1}", file=sys.stderr, flush=True)  # noqa: E731
        first = min(scale.rival_runs, scale.runs) if self.rival else scale.runs
        contest(entered, requests, scale.concurrency, runs=first, begin=begin)
        contest(entered[:2], requests, scale.concurrency, runs=scale.runs - first, begin=begin)
        self.raw["load"] = [contestant.as_dict() for contestant in entered]
        ours, unsplit, *rest = entered
        what = (
            f"{scale.requests} requests, {scale.concurrency} in flight, closed, {scale.lengths[0]} to "
            f"{scale.lengths[1]} prompt tokens, {scale.max_tokens} out, n_ctx {n_ctx}"
        )
        self._compare(f"{what}: against unsplit", ours, unsplit, (3.1, 1 / 1.5, 0.95))
        for rival in rest:
            self._compare(f"same load: against {rival.name} {rival.facts['command']}", ours, rival, (3.0, 1.0, 1.0))
        mine, theirs = ours.spread(FIGURES[0]), unsplit.spread(FIGURES[0])
        if scale.runs > 1 and mine.high and mine.low and theirs.high and theirs.low:
            a, b = mine.high - mine.low, theirs.high - theirs.low
            self.row(
                f"spread of the p99 gap over {scale.runs} runs",
                "at most 0.25x unsplit's",
                f"{ms(a)} ms against {ms(b)} ms: {a / b:.3f}x" if b else f"{ms(a)} ms against 0",
                a <= 0.25 * b,
            )

    def _compare(self, what: str, ours: Contestant, other: Contestant, least: tuple[float, ...]) -> None:
        """One line each for the p99 gap, the p99 TTFT and total tokens a second; `least` are ratios, more is better."""
        for figure, bar in zip(FIGURES, least, strict=True):
            ratio = ours.ratio(other, figure)
            mine, theirs = ours.spread(figure).median, other.spread(figure).median
            unit = (ms, "ms") if figure.less_is_better else (lambda v: f"{v:.0f}", "tok/s")
            seen = "not measured"
            if mine is not None and theirs is not None and ratio is not None:
                seen = f"{unit[0](mine)} against {unit[0](theirs)} {unit[1]}: {ratio:.2f}x better"
            failed = sum(run.n_failed + run.n_refused for c in (ours, other) for run in c.runs)
            if failed:
                seen += f" ({failed} requests failed)"
            enough = ratio is not None and ratio >= bar and not failed
            self.row(f"{what}, {figure.name}", f"at least {bar:.2f}x better", seen, enough)

    # ---- a few streams ----------------------------------------------------------------------------------------------

    def gap(self) -> None:
        """A running stream while a long prompt is read."""
        scale, found = self.scale, {}
        for split in (True, False):
            with self._open(scale.n_ctx_long, split=split) as llm:
                pool = word_ids(llm.tokenizer)
                longest_gap(llm, pool, scale.n_long // 4, self.seed + 900)  # warm-up
                repeats = scale.gap_repeats if split else 1
                found[split] = [longest_gap(llm, pool, scale.n_long, self.seed + 10 * i) for i in range(repeats)]
        self.raw["gap"] = {str(split): [asdict(gaps) for gaps in all_] for split, all_ in found.items()}
        usual = percentile([gaps.usual for gaps in found[True]], 50.0) or 0.0
        longest = [gaps.longest for gaps in found[True]]
        bar, middle = max(4 * usual, 0.020), percentile(longest, 50.0) or 0.0
        self.row(
            f"longest gap of a running stream while {scale.n_long} tokens are read, n_ctx {scale.n_ctx_long}",
            f"at most 4x its usual gap or 20 ms: {ms(bar)} ms",
            f"{ms(middle)} ms, median of {len(longest)} prompts (usual {ms(usual)}; each: {', '.join(map(ms, longest))}; "
            f"unsplit {ms(found[False][0].longest)}; read in {ms(found[True][0].read_s)}, unsplit "
            f"{ms(found[False][0].read_s)})",
            middle <= bar,
        )

    def batch(self) -> None:
        """Eight streams beside one."""
        scale, one, eight = self.scale, [], []
        with self._open(512, n_kv=8 * 512) as llm:
            pool = word_ids(llm.tokenizer)
            tokens_together(llm, pool, 8, 32, self.seed + 900)
            for i in range(scale.batch_repeats):
                one.append(tokens_together(llm, pool, 1, scale.n_out, self.seed + 20 * i))
                eight.append(tokens_together(llm, pool, 8, scale.n_out, self.seed + 20 * i + 1))
        self.raw["batch"] = {"one_tok_s": one, "eight_tok_s": eight}
        a, b = percentile(one, 50.0) or 0.0, percentile(eight, 50.0) or 0.0
        seen = f"{b:.0f} against {a:.0f} tok/s: {b / a:.2f}x"
        self.row("8 streams decoding together", "at least 3x the tok/s of one", seen, b >= 3 * a)

    def cancel(self) -> None:
        """Cancels at random moments."""
        scale = self.scale
        with self._open(scale.n_cancel_prompt + 256) as llm:
            pool = word_ids(llm.tokenizer)
            for name, in_prefill in (("prefill", True), ("decode", False)):
                times = cancel_times(llm, pool, scale.cancels, scale.n_cancel_prompt, in_prefill, self.seed)
                self.raw[f"cancel_{name}"] = times
                found = Percentiles.of(times)
                p99 = found.p99 or 0.0
                self.row(
                    f"cancel in {name}, {found.n} times, to an engine at rest",
                    "p99 below 30 ms",
                    f"p50 {ms(found.p50)}, p95 {ms(found.p95)}, p99 {ms(p99)}, most {ms(found.max)} ms",
                    p99 < 0.030,
                )

    # ---- in processes of their own ----------------------------------------------------------------------------------

    def prefix(self) -> None:
        """A cached beginning, in RAM and on disk."""
        scale = self.scale
        with tempfile.TemporaryDirectory() as folder:
            kernels = settings().cache / "kernels"
            if kernels.is_dir():  # compiled code is not what is measured
                shutil.copytree(kernels, Path(folder) / "kernels", symlinks=True)
            seed = self._child(folder, "seed")
            disk = self._child(folder, "disk")
        self.raw["prefix"] = {"seed": seed, "disk": disk}
        ram, short = percentile(seed["ram"], 50.0) or 0.0, percentile(seed["short"], 50.0) or 0.0
        self.row(
            f"TTFT, {scale.prefix} cached tokens and 16 new ones, from RAM",
            f"TTFT of 16 tokens + 3 ms: {ms(short + 0.003)} ms",
            f"{ms(ram)} ms ({seed['ram_reused']} tokens reused; medians of {len(seed['ram'])})",
            ram <= short + 0.003 and seed["ram_reused"] >= scale.prefix,
        )
        cold, warm = seed["cold"], disk["disk"]
        self.row(
            "the same from disk after a restart",
            f"at most 10 % of cold: {ms(0.1 * cold)} ms",
            f"{ms(warm)} ms, {100 * warm / cold:.1f} % of {ms(cold)} ({disk['disk_reused']} tokens reused)",
            warm <= 0.1 * cold and disk["disk_reused"] >= scale.prefix,
        )

    def _child(self, cache: str, step: str) -> dict[str, Any]:
        command = [sys.executable, str(FOLDER / "reach_prefix.py"), str(self.path), step]
        command += ["--prefix", str(self.scale.prefix), "--repeats", str(self.scale.prefix_repeats)]
        command += ["--threads", str(self.threads)]
        environment = child_environment(EDGEINFER_CACHE=cache)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def soak(self) -> None:
        """Random arrivals, cancels and disconnects for a long time."""
        minutes = self.scale.soak_minutes
        command = [sys.executable, str(FOLDER / "soak.py"), "--minutes", str(minutes), "--threads", str(self.threads)]
        done = subprocess.run([*command, "--json", str(self.path)], stdout=subprocess.PIPE, text=True)
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
        self.raw["soak"] = said
        self.row(
            f"soak of {minutes:g} minutes",
            "RSS flat within 2 %, no lost or mixed token, pages all returned",
            said.get("sentence", f"it ended with exit code {done.returncode}"),
            done.returncode == 0,
        )


def ms(seconds: float | None) -> str:
    """Milliseconds in short."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.{1 if seconds < 1 else 0}f}"


def rescaled(scale: Scale, given: Sequence[str]) -> Scale:
    """The scale with "requests=100", "lengths=32:512" and the like put in. Raises ValueError."""
    known = {field.name: type(getattr(scale, field.name)) for field in fields(scale)}
    changes: dict[str, Any] = {}
    for text in given:
        name, _, value = text.replace("-", "_").partition("=")
        if name not in known:
            raise ValueError(f"there is no {name!r} in the scale; wanted one of {', '.join(known)}")
        changes[name] = tuple(map(int, value.split(":"))) if known[name] is tuple else known[name](value)
    return replace(scale, **changes)


def main() -> None:
    """Measure the chosen rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers: does everything work?")
    parser.add_argument("--rows", default=",".join(ROWS), help="which, with commas between them")
    parser.add_argument("--model", default="smollm2-135m", help="a name of fetch_models.py, or a file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-llamacpp", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any number of the scale")
    args = parser.parse_args()
    chosen = [name.strip() for name in args.rows.split(",")]
    if unknown := [name for name in chosen if name not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}; wanted some of {', '.join(ROWS)}")
    try:
        scale = rescaled(QUICK if args.quick else Scale(), args.set)
    except ValueError as error:
        parser.error(str(error))
    path = fetch(args.model) if args.model in SOURCES else Path(args.model)
    watch = ThrottleWatch()
    print(f"{path.name}, {args.threads} threads, seed {args.seed}, edgeinfer {edgeinfer.__version__}; {scale}\n")
    print("| what | bar | seen | ok |\n|---|---|---|---|", flush=True)
    reach = Reach(path, scale, args.threads, not args.no_llamacpp, args.seed)
    for name in chosen:
        getattr(reach, name)()
        watch.sample()
    notes = watch.notes()
    for note in notes:
        print(f"\nnote: {note}")
    if args.json:
        facts = {"scale": asdict(scale), "rows": [asdict(row) for row in reach.rows], "raw": reach.raw, "notes": notes}
        Path(args.json).write_text(json.dumps(facts, indent=1))
    raise SystemExit(0 if all(row.ok is not False for row in reach.rows) else 1)


if __name__ == "__main__":
    main()
