"""Starting a model: the first compile, a later start to the first token, and the most memory that a chat held.

    scripts/bench start [--repeats 5]

Every figure is of a fresh `edgeinfer run` process. The first compile starts from an empty kernel cache. Memory is the
child's own peak resident set (VmHWM), read while it waits to be closed, with the kernel cache warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fetch_models import fetch
from llama_reference import machine

from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.plan.packing import kv_page_bytes

MODELS = {"SmolLM2-135M": "smollm2-135m", "Gemma 3 270M": "gemma3-270m"}
MB = 1e6

# Answers 200 tokens in a 4,096-token context as `edgeinfer chat` does, then prints its peak memory.
CHAT = """
import sys
import edgeinfer
with edgeinfer.load(sys.argv[1]) as llm:
    ids = llm.tokenizer.encode("Once upon a time " * 100)
    for chunk in llm.generate(ids, max_tokens=200, temperature=0.8, ignore_eos=True):
        pass
    print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def run(path: Path, environment: dict[str, str]) -> tuple[float, dict[str, object]]:
    """Seconds from starting the process to its end after one token, and what it reported."""
    command = [sys.executable, "-m", "edgeinfer", "run", str(path), "-p", "Hello", "-n", "1", "--temp", "0", "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return time.perf_counter() - started, json.loads(done.stdout)


def peak(path: Path, environment: dict[str, str]) -> int:
    """The most bytes that were resident in a chat."""
    done = subprocess.run(
        [sys.executable, "-c", CHAT, str(path)], capture_output=True, text=True, env=environment, check=True
    )
    return int(done.stdout) * 1024


def limit(path: Path) -> tuple[int, int]:
    """(1.25 x file + KV cache at n_ctx 4096 + 160 MB, the KV cache) in bytes."""
    with GGUFFile.open(path) as file:
        config = ModelConfig.from_gguf(file)
    n_ctx = min(4096, config.n_ctx_train)
    kv = config.n_layer * kv_page_bytes("f16", config.n_head_kv, config.head_dim) * n_ctx // 64
    return int(path.stat().st_size * 1.25 + kv + 160 * MB), kv


def main() -> int:
    """Print the table; exit 1 when a row misses what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(machine())
    print("\n| what | wanted | seen |\n|---|---|---|")
    good = True
    for title, name in MODELS.items():
        path = fetch(name)
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "EDGEINFER_CACHE": folder}
            _, first = run(path, environment)
            compile_s = float(first["timings"]["compile_s"])  # type: ignore[index]
            later = statistics.median(run(path, environment)[0] for _ in range(repeats))
            most = peak(path, environment)
        allowed, kv = limit(path)
        rows = [
            (f"first run's compile, {title}, {len(os.sched_getaffinity(0))} cores", "< 90 s", f"{compile_s:.1f} s"),
            (f"later start to the first token, {title}", "< 2 s" if name == "smollm2-135m" else "-", f"{later:.2f} s"),
            (f"peak memory of a chat, {title}", f"< {allowed / MB:.0f} MB (KV {kv / MB:.0f})", f"{most / MB:.0f} MB"),
        ]
        good = good and compile_s < 90 and (name != "smollm2-135m" or later < 2) and most < allowed
        for row in rows:
            print("| " + " | ".join(row) + " |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
