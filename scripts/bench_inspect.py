"""Time `edgeinfer inspect` against the `gguf` package's reader on the same file: scripts/bench_inspect.py [FILE] [N].

Three rows, alternating in one run, the best and the median of N (default 5): the whole command from the start of
Python to its last line; the `gguf` package's reader alone, its import not counted; our reader alone. The file
defaults to Gemma 3 270M, whose vocabulary has 262,144 tokens.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from fetch_models import fetch

ROOT = Path(__file__).resolve().parent.parent
READER = """
import sys, time
{imports}
start = time.perf_counter()
{call}
print(time.perf_counter() - start)
"""
THEIRS = READER.format(imports="from gguf import GGUFReader", call="GGUFReader(sys.argv[1])")
OURS = READER.format(imports="from edgeinfer.model.gguf import GGUFFile", call="GGUFFile.open(sys.argv[1])")


def command(path: Path) -> float:
    """Seconds that the whole command takes."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "edgeinfer", "inspect", str(path)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def reader(source: str, path: Path) -> float:
    """Seconds that a reader takes in a fresh process."""
    run = subprocess.run([sys.executable, "-c", source, str(path)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return float(run.stdout)


def main() -> None:
    """Print the table."""
    path = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(fetch("gemma3-270m"))
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    times: dict[str, list[float]] = {
        "edgeinfer inspect, whole": [],
        "gguf reader alone": [],
        "edgeinfer reader alone": [],
    }
    for _ in range(repeats):
        for row, seconds in zip(times.values(), (command(path), reader(THEIRS, path), reader(OURS, path)), strict=True):
            row.append(seconds)
    print(f"{path.name}, {repeats} runs, alternating")
    for name, row in times.items():
        print(f"{name:<26} best {min(row):7.3f} s   median {statistics.median(row):7.3f} s")
    whole, theirs, ours = (statistics.median(row) for row in times.values())
    print(f"the whole command takes {whole / theirs:.3f} of the gguf reader's time, our reader {ours / theirs:.4f}")


if __name__ == "__main__":
    main()
