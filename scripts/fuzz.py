"""Feed the loader bad files for a while: scripts/fuzz [--seconds 60] [--seed N] [--plain] [--keep FOLDER].

Every file is opened, its settings, weights, tokenizer and template are used, and it is inspected (tests/fuzz/target.py).
With atheris installed (pip install atheris), coverage guides which files are changed further; --plain, or no atheris, changes
the seeds at random. Ends with code 1 at the first finding, whose file is kept in FOLDER (default .cache/fuzz) and whose path
is printed; an hour by hand is the custom before a release.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def keep(folder: Path, raw: bytes, reason: object) -> str:
    """Save the file of a finding; the line that reports it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"finding-{hashlib.sha256(raw).hexdigest()[:12]}.gguf"
    path.write_bytes(raw)
    return f"FINDING {path}: {reason}"


def plain(seconds: float, seed: int, folder: Path) -> int:
    """Change seeds at random, and files whose outcome was new again."""
    from tests.fuzz.mutate import mutated
    from tests.fuzz.seeds import FILE, seeds, sound_first_shard
    from tests.fuzz.target import Finding, Judge

    rng, end = random.Random(seed), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pool = seeds(work)
        sound_first_shard(work)
        judge, seen = Judge(work / FILE), set()
        for raw in pool:
            judge(raw)
        while time.monotonic() < end:
            raw = mutated(rng.choice(pool), rng)
            try:
                outcome = tuple(judge(raw))
            except Finding as finding:
                print(keep(folder, raw, finding))
                return 1
            if outcome not in seen and len(raw) < 1 << 16:  # reached something else: worth going on from
                seen.add(outcome)
                pool.append(raw)
        print(f"random changes: {judge.report()}; {len(seen)} outcomes, no finding")
    return 0


def guided(seconds: float, seed: int, folder: Path) -> int:
    """The same under atheris, in a process of its own: libFuzzer ends its process itself, past all that Python does."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--child", work, "--keep", str(folder), str(corpus)]
        options = [f"-max_total_time={max(int(seconds), 1)}", f"-seed={seed}", "-max_len=65536", "-timeout=600"]
        options += ["-rss_limit_mb=0", "-detect_leaks=0", "-print_final_stats=1", "-len_control=0"]
        options.append(f"-artifact_prefix={folder}/")
        done = subprocess.run([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        report = Path(work) / "report"
        figures = report.read_text() if report.exists() else "nothing was run"
    if done.returncode:
        findings = [line for line in done.stdout.splitlines() if line.startswith("FINDING")]
        print("\n".join(findings) or done.stdout[-4000:])
        return 1
    coverage = re.findall(r"cov: (\d+)", done.stdout)
    print(f"guided by coverage: {figures}; {coverage[-1] if coverage else 0} branches reached, no finding")
    return 0


def child(work: Path, folder: Path, arguments: list[str]) -> None:
    """Run libFuzzer; never comes back."""
    import atheris

    with atheris.instrument_imports(include=["edgeinfer"]):
        from tests.fuzz.target import Finding, Judge
    from tests.fuzz.mutate import mutated
    from tests.fuzz.seeds import FILE, seeds, sound_first_shard

    for i, raw in enumerate(seeds(work)):
        (folder / "corpus" / f"seed{i}").write_bytes(raw)
    first = sound_first_shard(work)
    judge = Judge(work / FILE)
    judge(first.read_bytes())

    def one(raw: bytes) -> None:
        try:
            judge(raw)
        except Finding as finding:
            print(keep(folder, raw, finding), flush=True)
            raise
        if judge.n_runs % 200 == 0:
            (work / "report").write_text(judge.report())

    def change(raw: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = atheris.Mutate(raw, max_size) if rng.random() < 0.2 else mutated(raw, rng)
        return bytes(changed[:max_size])

    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=change)
    atheris.Fuzz()


def main() -> int:
    """Read the options and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="0 takes another one each time")
    parser.add_argument("--plain", action="store_true", help="change at random even where atheris is installed")
    parser.add_argument("--keep", type=Path, default=ROOT / ".cache" / "fuzz", help="folder of findings and corpus")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.child:
        child(options.child, options.keep, rest)
    if rest:
        parser.error(f"unknown option {rest[0]}")
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 31)
    try:
        import atheris  # noqa: F401
    except ImportError:
        options.plain = True
    print(f"seed {seed}", flush=True)
    return plain(options.seconds, seed, options.keep) if options.plain else guided(options.seconds, seed, options.keep)


if __name__ == "__main__":
    sys.exit(main())
