"""Random requests, cancels and disconnects for a long time: nothing may leak, get lost or get mixed.

    scripts/bench soak [--minutes 60] [MODEL]

A bank of requests (random lengths, greedy and sampled with a seed) is answered one by one first; then several clients ask
for them at random moments. A quarter of them cancels, a quarter drops its answer. What comes must be what came alone,
token for token. RSS is sampled after a warm-up; its trend over the whole run must be within 2 %. At the end every page
of the KV cache must be free again. Exit code 1 when not.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from fetch_models import SOURCES, fetch

import edgeinfer
from edgeinfer.errors import BusyError
from edgeinfer.evaluate.targets import word_ids
from edgeinfer.evaluate.workload import make_requests

N_CTX = 512
FLAT = 0.02  # of RSS, over the whole run
WARM_UP = 0.2  # share of the run before RSS is looked at


@dataclass(frozen=True)
class Case:
    """A request of the bank and its answer alone."""

    prompt: list[int]
    sampling: dict[str, Any]
    tokens: list[int]


def bank(llm: Any, pool: Sequence[int], n: int, seed: int) -> list[Case]:
    """n requests with their answers, made one after the other."""
    numbers = random.Random(seed)
    cases: list[Case] = []
    for request in make_requests(n, pool, (4, N_CTX - 100), 1, seed=seed):
        sampling: dict[str, Any] = {"max_tokens": numbers.randint(1, 64), "ignore_eos": True}
        if numbers.random() < 0.5:
            sampling |= {"temperature": 0.8, "seed": numbers.randint(0, 1 << 30)}
        else:
            sampling["temperature"] = 0.0
        prompt = list(request.prompt)
        if cases and numbers.random() < 0.3:  # some begin alike, so that pages are shared
            prompt = (cases[-1].prompt[:128] + prompt)[: N_CTX - 100]
        tokens = [c.token for c in llm.generate(prompt, **sampling) if c.token is not None]
        cases.append(Case(prompt, sampling, tokens))
        llm.reset()
    return cases


class Crowd:
    """Clients that ask until time is up, and what they saw."""

    def __init__(self, llm: Any, cases: list[Case], seconds: float, seed: int) -> None:
        self._llm, self._cases, self._seed = llm, cases, seed
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def client(self, number: int) -> None:
        """Ask, wait, ask again."""
        numbers = random.Random(f"{self._seed}-{number}")
        try:
            while time.monotonic() < self.end and not self.wrong:
                self._ask(numbers)
                time.sleep(min(numbers.expovariate(4.0), 2.0))
        except BaseException as error:
            with self._lock:
                self.wrong.append(f"client {number}: {type(error).__name__}: {error}")

    def _ask(self, numbers: random.Random) -> None:
        case, fate = numbers.choice(self._cases), numbers.choice(["read", "read", "cancel", "drop"])
        stop_at = numbers.randint(0, len(case.tokens))
        priority = numbers.choice(["voice", "interactive", "background"])
        try:
            answer = self._llm.generate(case.prompt, priority=priority, **case.sampling)
        except BusyError:
            with self._lock:
                self.counts["refused"] += 1
            return
        tokens: list[int] = []
        timer = None
        if fate == "cancel" and stop_at == 0:  # while its prompt is read, or in line
            timer = threading.Timer(numbers.uniform(0.0, 0.2), answer.cancel)
            timer.start()
        if not (fate == "drop" and stop_at == 0):
            for chunk in answer:
                if chunk.token is not None:
                    tokens.append(chunk.token)
                if fate != "read" and timer is None and len(tokens) >= stop_at:
                    if fate == "drop":
                        break
                    answer.cancel()
        if timer is not None:
            timer.join()
        reason = answer.finish_reason
        del answer  # a reader that goes away says nothing
        whole = reason == "length"
        right = tokens == case.tokens if whole else tokens == case.tokens[: len(tokens)]
        with self._lock:
            self.counts["finished" if whole else "cancelled" if fate == "cancel" else "dropped"] += 1
            self.counts["tokens"] += len(tokens)
            if not right:
                self.wrong.append(f"{fate} after {len(tokens)} tokens: {tokens[:8]} where {case.tokens[:8]} came alone")
            elif fate == "read" and not whole:
                self.wrong.append(f"an answer that nobody stopped ended with {reason} after {len(tokens)} tokens")


def trend(samples: list[tuple[float, float]]) -> float:
    """How much RSS grows from the first to the last sample by the line through them all, as a share of its mean."""
    times, values = np.array(samples).T
    slope = np.polyfit(times - times[0], values, 1)[0]
    return float(slope * (times[-1] - times[0]) / values.mean())


def rest(llm: Any, wait_s: float = 5.0) -> int:
    """Forget every prompt and wait until all pages are free; how many are not, at the end. Needs no answer in the making."""
    kv: Any = llm._engine.kv
    deadline = time.monotonic() + wait_s
    llm.reset()
    while kv.free_pages < kv.n_pages and time.monotonic() < deadline:
        time.sleep(0.05)  # dropped answers end at the next step
        gc.collect()
        llm.reset()
    return int(kv.n_pages - kv.free_pages)


def soak(llm: Any, cases: list[Case], minutes: float, clients: int, seed: int, flat: float = FLAT) -> dict[str, Any]:
    """Soak a loaded model and return what was seen; `wrong` is empty when all was well."""
    process = psutil.Process()
    crowd = Crowd(llm, cases, minutes * 60, seed)
    started = time.monotonic()
    workers = [threading.Thread(target=crowd.client, args=(i,), daemon=True) for i in range(clients)]
    for worker in workers:
        worker.start()
    samples: list[tuple[float, float]] = []
    n_files: int | None = None
    while any(worker.is_alive() for worker in workers):
        time.sleep(min(5.0, minutes * 60 / 200))
        now = time.monotonic()
        if started + WARM_UP * minutes * 60 <= now < crowd.end:
            samples.append((now, process.memory_info().rss))
            n_files = process.num_fds() if n_files is None else n_files
    wrong = list(crowd.wrong)
    if held := rest(llm):
        wrong.append(f"{held} of {llm._engine.kv.n_pages} pages were not returned")
    growth = trend(samples) if len(samples) >= 10 else None
    if growth is not None and growth > flat:
        wrong.append(f"RSS grew by {100 * growth:.1f} %")
    if n_files is not None and process.num_fds() > n_files:
        wrong.append(f"{process.num_fds()} files are open where there were {n_files}")
    rss = samples[-1][1] / 1e6 if samples else None
    counts = dict(crowd.counts)
    shown = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    trended = "RSS not sampled" if growth is None else f"RSS trend {100 * growth:+.2f} % at {rss:.0f} MB"
    sentence = f"{shown}; {trended}; " + ("; ".join(wrong[:3]) or "all answers as alone, all pages returned")
    return {"minutes": minutes, "counts": counts, "growth": growth, "rss_mb": rss, "wrong": wrong, "sentence": sentence}


def run(
    path: Path, minutes: float, clients: int, threads: int | None, seed: int, n_cases: int, flat: float = FLAT
) -> dict[str, Any]:
    """Load a model, make its bank of requests, and soak it with two clients more than it has streams."""
    with edgeinfer.load(path, n_ctx=N_CTX, n_threads=threads, n_kv=6 * N_CTX, max_streams=clients) as llm:
        return soak(llm, bank(llm, word_ids(llm.tokenizer), n_cases, seed), minutes, clients + 2, seed, flat)


def main() -> None:
    """Soak and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a name of fetch_models.py, or a file")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8, help="streams at once; two more clients wait")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    args = parser.parse_args()
    path = fetch(args.model) if args.model in SOURCES else Path(args.model)
    result = run(path, args.minutes, args.clients, args.threads, args.seed, args.cases)
    print(json.dumps(result) if args.json else result["sentence"], flush=True)
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
