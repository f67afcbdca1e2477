"""Every bar on speed in one go: scripts/bench fast [--quick] [--rows files,shapes,...] [--set repeats=3].

    files    decode after 32 tokens and prefill, SmolLM2 and Gemma in their formats, beside llama.cpp
    shapes   the same on random weights in the shapes of Qwen2.5-0.5B, 1.5B and Llama-3.2-3B
    depth    decode and prefill behind a long context
    verify   a step of 2, 4, 8 tokens beside a step of one
    avx2     AVX2 alone, beside a llama.cpp that was built without AVX-512 and VNNI (--build-avx2 builds it, once)
    arm      cycles of the ARM kernels' inner loops by llvm-mca, as tests/arm keeps them
    busy     beside one and two spinning processes a core
    quota    more threads asked than one CPU allows, by affinity and by a cgroup
    memory   peak resident memory with a warm kernel cache
    start    first-ever start, later start to the first token

Both sides of a comparison are processes of their own that take turns with each other, with a read loop over the packed
weights (MBU) and with a loop of the dot product (of peak); medians of the repeats. A decode row is met by its ratio or
by MBU of 0.92. Run it on a quiet machine at normal priority: the full run takes about an hour on two cores and makes 8 GB
of models in .cache/models. --quick is a smoke test whose figures mean little, `--set repeats=7 --set threads=1` changes
any number of the scale. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench_start import peak, run
from fast_child import Child
from fast_models import model
from fast_neighbours import busy, quota_of_one_cpu
from llama_reference import machine
from reach_concurrency import Row

from edgeinfer.cli.bench_targets import vocabulary
from edgeinfer.evaluate.single_stream import Case, Measured, cases_of, measure_single
from edgeinfer.evaluate.verify_curve import measure_curve
from edgeinfer.evaluate.workload import make_requests
from edgeinfer.metrics import spread
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.plan.packing import kv_page_bytes
from edgeinfer.profile.throttle import ThrottleWatch

ROWS = ("files", "shapes", "depth", "verify", "avx2", "arm", "busy", "quota", "memory", "start")
ROOT = Path(__file__).resolve().parent.parent
AVX2_PYTHON = ROOT / ".venv-avx2" / "bin" / "python"
ENOUGH_MBU = 0.92
MB = 1e6


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    repeats: int = 5
    threads: tuple[int, ...] = (1, 2)
    n_out: int = 128
    prompts: tuple[int, ...] = (32, 128, 512)
    depth: int = 4096
    files: tuple[str, ...] = (
        "smollm2-q4_0", "smollm2-135m", "smollm2-q5_0", "smollm2-q8_0", "smollm2-q4_k_m", "gemma3-270m",
    )  # fmt: skip
    shapes: tuple[str, ...] = ("qwen-0.5b", "qwen-1.5b", "llama-3b")
    deep: tuple[str, ...] = ("smollm2-q4_0", "gemma3-270m")
    steps: tuple[int, ...] = (2, 4, 8)
    verify: tuple[str, ...] = ("qwen-1.5b-q4_0",)
    avx2: tuple[str, ...] = ("smollm2-q4_0", "smollm2-q4_k_m", "qwen-1.5b-q4_0", "qwen-1.5b-q4_k_m")
    busy: tuple[str, ...] = ("smollm2-q4_0",)
    busy_repeats: int = 7
    memory: tuple[str, ...] = ("smollm2-135m", "gemma3-270m", "qwen-1.5b-q4_k_m")


QUICK = Scale(
    1, (1,), 8, (32,), 128, ("smollm2-135m",), (), ("smollm2-135m",), (2, 4), ("smollm2-135m",), ("smollm2-135m",),
    ("smollm2-135m",), 1, ("smollm2-135m",),
)  # fmt: skip

# Least ratios: decode by number of threads, prefill by recipe.
SMALL_DECODE, GEMMA_DECODE = {1: 1.8, 2: 1.8}, {1: 1.45, 2: 1.2}
SHAPE_DECODE = {"qwen-0.5b": {1: 1.4, 2: 1.25}, "qwen-1.5b": {1: 1.4, 2: 1.1}, "llama-3b": {1: 1.4, 2: 1.1}}


def decode_bar(name: str, n_threads: int) -> float:
    """The least ratio of a decode row; more threads than two count as two."""
    for shape, bars in SHAPE_DECODE.items():
        if name.startswith(shape):
            return bars[min(2, n_threads)]
    return (GEMMA_DECODE if name.startswith("gemma") else SMALL_DECODE)[min(2, n_threads)]


def prefill_bar(name: str) -> float:
    """The least ratio of a prefill row: llama.cpp has fast code of its own for Q4_0 and Q4_K alone."""
    repacked = name.endswith("-q4_0") or (name.endswith("-q4_k_m") and not name.startswith("smollm2"))
    return 2.3 if repacked else 3.5


class Reach:
    """One scale, and what was measured."""

    def __init__(self, scale: Scale, seed: int, build_avx2: bool = False) -> None:
        self.scale, self.seed, self.build_avx2 = scale, seed, build_avx2
        self.rows: list[Row] = []
        self.raw: dict[str, Any] = {}

    def row(self, what: str, bar: str, seen: str, ok: bool | None) -> None:
        """Add a line and say it at once: a long run may be broken off."""
        self.rows.append(Row(what, bar, seen, ok))
        verdict = {True: "yes", False: "NO", None: "-"}[ok]
        print(f"| {what} | {bar} | {seen} | {verdict} |", flush=True)

    # ---- beside llama.cpp -------------------------------------------------------------------------------------------

    def contest(
        self, name: str, n_threads: int, cases: Sequence[Case], *, environment: dict[str, str] | None = None,
        python: str = sys.executable, facts: dict[str, Any] | None = None,
    ) -> list[Measured]:  # fmt: skip
        """Both sides on one file, in turns."""
        path = model(name)
        n_ctx = max(case.depth + case.n_prompt + case.n_out for case in cases) + 64
        pool, bos = vocabulary(str(path))
        with (
            Child("edgeinfer", path, n_ctx, n_threads, environment=environment) as ours,
            Child("llamacpp", path, n_ctx, n_threads, python=python) as theirs,
        ):
            if facts is not None:
                facts.update(ours=ours.facts, theirs=theirs.facts)
            done = measure_single(
                ours, pool, cases, repeats=self.scale.repeats, rival=theirs, limits=ours, n_threads=n_threads,
                seed=self.seed, bos=bos, done=teller(f"{name}, {n_threads} threads"),
            )  # fmt: skip
        if done.interrupted:
            raise KeyboardInterrupt
        found = done.rates()
        self.raw.setdefault("contests", []).append({"model": name, "rows": [row.as_dict() for row in found]})
        return found

    def judge(self, name: str, case: Case, row: Measured, bar: float) -> None:
        """A line about a ratio; decode is also met by MBU."""
        ratio, part = row.ratio, row.fraction
        mine, theirs = row.spread, spread(row.rival)
        seen = f"{rate(mine)} against {rate(theirs)} tok/s: {number(ratio)}x; {row.limit or 'limit'} {number(part)}"
        wanted = f"at least {bar:g}x" + ("" if case.is_prefill else f" or MBU {ENOUGH_MBU:g}")
        ok = ratio is not None and ratio >= bar
        if not case.is_prefill:
            ok = ok or (part is not None and part >= ENOUGH_MBU)
        self.row(f"{name}, {row.n_threads} threads, {case.label}", wanted, seen, ok)

    def _both(self, names: Sequence[str]) -> None:
        cases = cases_of(self.scale.prompts, [self.scale.n_out])
        for name in names:
            for n_threads in self.scale.threads:
                for case, row in zip(cases, self.contest(name, n_threads, cases), strict=True):
                    self.judge(name, case, row, prefill_bar(name) if case.is_prefill else decode_bar(name, n_threads))
                    if name.startswith("qwen-1.5b") and case.is_prefill and case.n_prompt == 512:
                        self.row(
                            f"{name}, {n_threads} threads, {case.label}: int8 operations of the dot product's peak",
                            "at least 0.6",
                            f"{number(row.fraction)} of {spread(row.limits).median or 0:.3g} a second",
                            row.fraction is not None and row.fraction >= 0.6,
                        )

    def files(self) -> None:
        """Small models that exist."""
        self._both(self.scale.files)

    def shapes(self) -> None:
        """Random weights in the shapes of larger ones."""
        self._both([f"{shape}-{recipe}" for shape in self.scale.shapes for recipe in ("q4_0", "q4_k_m")])

    def depth(self) -> None:
        """Behind a long context."""
        scale = self.scale
        cases = cases_of([max(scale.prompts)], [scale.n_out], [scale.depth])
        for name in scale.deep:
            for n_threads in scale.threads:
                for case, row in zip(cases, self.contest(name, n_threads, cases), strict=True):
                    self.judge(name, case, row, 2.0 if case.is_prefill else 1.8)

    def verify(self) -> None:
        """Steps of several tokens."""
        scale, n_threads = self.scale, max(self.scale.threads)
        for name in scale.verify:
            path = model(name)
            pool, _ = vocabulary(str(path))
            ids = make_requests(1, pool, (160, 160), 1, seed=self.seed)[0].prompt
            with (
                Child("edgeinfer", path, 256, n_threads) as ours,
                Child("llamacpp", path, 256, n_threads) as theirs,
            ):
                for side in (ours, theirs):
                    side.context(ids[:128], ids[128:])
                curve = measure_curve(ours, scale.steps, repeats=scale.repeats, rival=theirs, n_threads=n_threads)
            if curve.interrupted:
                raise KeyboardInterrupt
            self.raw["verify"] = curve.as_dict()
            bars = {4: 1.25, 8: 1.6}
            for n in curve.counts:
                mine, theirs_s = curve.spread(n).median, curve.rival(n)
                seen = f"{ms(mine)} against {ms(theirs_s)} ms; t({n})/t(1) {number(curve.relative(n))}"
                good = mine is not None and theirs_s is not None and mine < theirs_s
                wanted = "below llama.cpp's time"
                if n in bars and name.startswith("qwen-1.5b"):
                    wanted += f", t({n})/t(1) at most {bars[n]}"
                    good = good and (curve.relative(n) or 9.0) <= bars[n]
                self.row(f"{name}, {n_threads} threads, a step of {n}", wanted, seen, good)

    def avx2(self) -> None:
        """AVX2 against AVX2."""
        if not AVX2_PYTHON.exists() and self.build_avx2:
            build_avx2()
        if not AVX2_PYTHON.exists():
            self.row(
                "AVX2 only", "decode at least 1.2x (1 thread), 1.05x (2), prefill 1.3x",
                "not measured: --build-avx2 builds llama.cpp without AVX-512 and VNNI (five minutes)", None,
            )  # fmt: skip
            return
        cases = cases_of([max(self.scale.prompts)], [self.scale.n_out])
        for name in self.scale.avx2:
            for n_threads in self.scale.threads:
                facts: dict[str, Any] = {}
                rows = self.contest(
                    name, n_threads, cases, environment={"EDGEINFER_ISA": "avx2"}, python=str(AVX2_PYTHON), facts=facts
                )  # fmt: skip
                if "AVX512" in facts["theirs"]["build"] or facts["ours"]["isa"] != "avx2":
                    raise SystemExit(f"one side is not AVX2 alone: {facts}")
                for case, row in zip(cases, rows, strict=True):
                    bar = 1.3 if case.is_prefill else {1: 1.2}.get(n_threads, 1.05)
                    self.judge(f"{name}, AVX2 only", case, row, bar)

    # ---- by other means ---------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """The budgets of the ARM kernels' inner loops."""
        from arm_cycles import BUDGETS, PEAK_PART, measure

        try:
            found = measure()
        except RuntimeError as error:
            self.row("ARM inner loops", "cycles as budgeted", f"not measured: {error}", None)
            return
        self.raw["arm"] = found
        for name, seen in found.items():
            if name in BUDGETS:
                self.row(
                    f"ARM dotprod, {name}, decode, llvm-mca neoverse-n1 dispatch 4",
                    f"at most {BUDGETS[name]:g} cycles per 32 weights", f"{seen:.2f}", seen <= BUDGETS[name],
                )  # fmt: skip
            else:
                self.row(
                    f"ARM dotprod, {name}", f"at least {PEAK_PART} of the sdot peak", f"{seen:.2f}", seen >= PEAK_PART
                )

    def busy(self) -> None:
        """Beside processes that spin."""
        scale, cores = self.scale, len(os.sched_getaffinity(0))
        cases = cases_of([], [scale.n_out])
        if os.nice(0):
            say(f"this runs at nice {os.nice(0)}: the neighbours do too, and figures count at normal priority only")
        for name in scale.busy:
            path = model(name)
            pool, bos = vocabulary(str(path))
            found: dict[int, Measured] = {}
            with Child("edgeinfer", path, 512, cores) as ours, Child("llamacpp", path, 512, cores) as theirs:
                for per_core in (0, 1, 2):
                    with busy(per_core * cores):
                        done = measure_single(
                            ours, pool, cases, repeats=scale.busy_repeats, rival=theirs, n_threads=cores, seed=self.seed,
                            bos=bos, done=teller(f"{name} beside {per_core} a core"),
                        )  # fmt: skip
                    if done.interrupted:
                        raise KeyboardInterrupt
                    found[per_core] = done.rates()[0]
            self.raw["busy"] = {n: row.as_dict() for n, row in found.items()}
            for per_core, bar in ((1, 0.45), (2, 0.28)):
                idle, loaded = found[0], found[per_core]
                ours_kept = part(loaded.spread.median, idle.spread.median)
                theirs_kept = part(spread(loaded.rival).median, spread(idle.rival).median)
                self.row(
                    f"{name}, {cores} threads, tg{scale.n_out} beside {per_core} busy process{'es' * (per_core > 1)} a core",
                    f"at least {bar} of its idle speed",
                    f"{number(ours_kept)} ({rate(loaded.spread)} of {rate(idle.spread)} tok/s); llama.cpp "
                    f"{number(theirs_kept)} ({rate(spread(loaded.rival))} of {rate(spread(idle.rival))})",
                    ours_kept is not None and ours_kept >= bar,
                )

    def quota(self) -> None:
        """More threads than may run."""
        cpu = min(os.sched_getaffinity(0))
        self._asked("affinity of 1 CPU", {"cpus": [cpu]})
        with quota_of_one_cpu() as tasks:
            if tasks is None:
                self.row(
                    "a cgroup quota of 1 CPU", "not slower than 1 thread by 10 %", "no cgroup can be made here", None
                )
            else:
                self._asked("a cgroup quota of 1 CPU", {"tasks": tasks})

    def _asked(self, what: str, limits: dict[str, Any]) -> None:
        """1, 2 and 4 threads asked under a limit, taking turns; llama.cpp too."""
        scale = self.scale
        name = scale.busy[0]
        path = model(name)
        pool, bos = vocabulary(str(path))
        rates: dict[tuple[str, int, str], list[float | None]] = {}
        cases = cases_of([128], [scale.n_out])
        prompts = make_requests(scale.repeats + 1, pool, (128, 128), 1, seed=self.seed, bos=bos)
        with ExitStack() as stack:
            children = {
                (engine, n): stack.enter_context(Child(engine, path, 512, n, **limits))
                for engine in ("edgeinfer", "llamacpp")
                for n in (1, 2, 4)
            }
            for number_, request in enumerate(prompts):
                for (engine, n), child in children.items():
                    for case in cases:
                        done = child.run((), request.prompt[: case.n_prompt], case.n_out)
                        seen = done.prefill_tok_s if case.is_prefill else done.decode_tok_s
                        if number_:
                            rates.setdefault((engine, n, case.label), []).append(seen)
            used = {n: child.facts["n_threads"] for (engine, n), child in children.items() if engine == "edgeinfer"}
        for case in cases:
            middles = {key: spread(values).median or 0.0 for key, values in rates.items() if key[2] == case.label}
            for n in (2, 4):
                kept = part(middles["edgeinfer", n, case.label], middles["edgeinfer", 1, case.label])
                rival = part(middles["llamacpp", n, case.label], middles["llamacpp", 1, case.label])
                self.row(
                    f"{name}, {what}, {n} threads asked, {case.label}",
                    "not slower than 1 thread by more than 10 %",
                    f"{number(kept)} of 1 thread's speed with {used[n]} used; llama.cpp {number(rival)}",
                    kept is not None and kept >= 0.9,
                )

    def memory(self) -> None:
        """Peak resident memory of a chat in 4,096 tokens of context."""
        for name in self.scale.memory:
            path = model(name)
            run(path, dict(os.environ))  # the kernels are compiled here
            most = peak(path, dict(os.environ))
            with GGUFFile.open(path) as file:
                config = ModelConfig.from_gguf(file)
            n_ctx = min(4096, config.n_ctx_train)
            kv = config.n_layer * kv_page_bytes("f16", config.n_head_kv, config.head_dim) * n_ctx // 64
            allowed = 1.1 * path.stat().st_size + kv + 150 * MB
            self.row(
                f"{name}, peak resident memory of a chat, n_ctx {n_ctx}",
                f"at most 1.1 x file + KV + 150 MB: {allowed / MB:.0f} MB",
                f"{most / MB:.0f} MB (file {path.stat().st_size / MB:.0f}, KV {kv / MB:.0f})",
                most <= allowed,
            )

    def start(self) -> None:
        """From nothing, and later."""
        path = model("smollm2-135m")
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "EDGEINFER_CACHE": folder}
            first, _ = run(path, environment)
            later = spread(run(path, environment)[0] for _ in range(self.scale.repeats)).median or 0.0
        cores = len(os.sched_getaffinity(0))
        self.row(
            f"first-ever start to the first token, SmolLM2, {cores} cores",
            "at most 60 s",
            f"{first:.1f} s",
            first <= 60,
        )
        self.row("later start to the first token, SmolLM2", "at most 1.2 s", f"{later:.2f} s", later <= 1.2)


def build_avx2() -> None:
    """llama-cpp-python without AVX-512 and VNNI, in an environment of its own."""
    say("building llama-cpp-python without AVX-512 and VNNI (once)")
    subprocess.run([sys.executable, "-m", "venv", str(AVX2_PYTHON.parent.parent)], check=True)
    flags = " ".join(
        f"-DGGML_{name}" for name in ("NATIVE=OFF", "AVX2=ON", "FMA=ON", "F16C=ON", "BMI2=ON", "AVX512=OFF")
    )
    pip = [str(AVX2_PYTHON), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--editable", str(ROOT)], check=True, stdout=sys.stderr)
    subprocess.run(
        # Without the cache: it may hold a build for this very CPU.
        [*pip, "--no-cache-dir", "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"],
        check=True, stdout=sys.stderr, env={**os.environ, "CMAKE_ARGS": flags},
    )  # fmt: skip


def rescaled(scale: Scale, given: Sequence[str]) -> Scale:
    """The scale with "repeats=7", "threads=1,2", "files=smollm2-q4_0" and the like put in. Raises ValueError."""
    known = {field.name: getattr(scale, field.name) for field in fields(scale)}
    changes: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise ValueError(f"there is no {name!r} in the scale; wanted one of {', '.join(known)}")
        parts = [int(v) if v.isdigit() else v for v in value.split(",") if v]
        changes[name] = tuple(parts) if isinstance(known[name], tuple) else int(value)
    return replace(scale, **changes)


def part(value: float | None, of: float | None) -> float | None:
    """value / of, None where that is not defined."""
    return value / of if value is not None and of else None


def number(value: float | None) -> str:
    """A ratio in short."""
    return "-" if value is None else f"{value:.2f}"


def rate(found: Any) -> str:
    """A median with its edges."""
    if found.median is None:
        return "-"
    return f"{found.median:.4g} ({found.low:.4g}-{found.high:.4g})"


def ms(seconds: float | None) -> str:
    """Milliseconds."""
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def say(text: str) -> None:
    """A line about progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def teller(where: str) -> Callable[[str], None]:
    """Says what ended, and where."""
    return lambda what: say(f"{where}: {what}")


def main() -> None:
    """Measure the chosen rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test of two minutes or so")
    parser.add_argument("--rows", default=",".join(ROWS), help="which of " + ",".join(ROWS))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a number of the scale")
    parser.add_argument("--build-avx2", action="store_true", help="build the rival of the avx2 row if it is not there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    args = parser.parse_args()
    chosen = args.rows.split(",")
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"no row {unknown.pop()!r}; there are {', '.join(ROWS)}")
    try:
        scale = rescaled(QUICK if args.quick else Scale(), args.set)
    except ValueError as error:
        parser.error(str(error))
    watch, interrupted = ThrottleWatch(), False
    print(f"{machine()}; seed {args.seed}; {scale}\n\n| what | bar | seen | ok |\n|---|---|---|---|", flush=True)
    reach = Reach(scale, args.seed, args.build_avx2)
    try:
        for name in chosen:
            getattr(reach, name)()
            watch.sample()
    except KeyboardInterrupt:
        interrupted = True
    notes = [*watch.notes(), *(["interrupted: the rows above are what was measured"] if interrupted else [])]
    for note in notes:
        print(f"\nnote: {note}")
    if args.json:
        facts = {"scale": asdict(scale), "rows": [asdict(row) for row in reach.rows], "raw": reach.raw, "notes": notes}
        Path(args.json).write_text(json.dumps(facts, indent=1))
    raise SystemExit(130 if interrupted else 0 if all(row.ok is not False for row in reach.rows) else 1)


if __name__ == "__main__":
    main()
