"""Speed beside llama.cpp: same file, same threads, same run, taking turns; medians of wall-clock times.

tg128: tokens 2 to 128 after a 32-token prompt, greedy, end tokens ignored. pp512: a 512-token prompt up to its first
token. Ours goes through `llm.generate`. llama.cpp is driven by its decode call and NumPy's argmax, its fastest way
from Python: `Llama.generate` adds a sampler that builds a record of the whole vocabulary for each token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from fetch_models import SOURCES, fetch
from llama_reference import LlamaCpp, machine

import edgeinfer
from edgeinfer.metrics import spread

if TYPE_CHECKING:
    from edgeinfer.load import LLM

WANTED = {  # (model, what, threads) -> least ratio
    ("smollm2-135m", "tg128", 1): 1.4,
    ("smollm2-135m", "tg128", 2): 1.4,
    ("gemma3-270m", "tg128", 1): 1.2,
    ("gemma3-270m", "tg128", 2): 1.1,
    ("smollm2-135m", "pp512", 1): 1.5,
    ("smollm2-135m", "pp512", 2): 1.5,
    ("gemma3-270m", "pp512", 1): 1.5,
    ("gemma3-270m", "pp512", 2): 1.5,
}
STORY = "Alice opened the door and found that it led into a small passage, not much larger than a rat-hole. " * 40

Tokens = Callable[[list[int], int], Iterable[object]]  # prompt and count -> the tokens, as they come


def ours(llm: LLM) -> Tokens:
    """Our greedy tokens, through llm.generate."""
    return lambda ids, count: (
        chunk
        for chunk in llm.generate(ids, max_tokens=count, temperature=0, ignore_eos=True)
        if chunk.token is not None
    )


def theirs(llama: LlamaCpp) -> Tokens:
    """llama.cpp's greedy tokens."""
    return lambda ids, count: islice(llama.greedy(ids), count)


def tg(tokens: Tokens, ids: list[int], count: int) -> float:
    """Decode tok/s: (count - 1) / (time of the last token - time of the first)."""
    times = [time.perf_counter() for _ in tokens(ids, count)]
    if len(times) != count:
        raise SystemExit(f"an answer of {len(times)} tokens where {count} were wanted")
    return (count - 1) / (times[-1] - times[0])


def pp(tokens: Tokens, ids: list[int]) -> float:
    """Prefill tok/s: prompt tokens / time to the first token."""
    start = time.perf_counter()
    list(tokens(ids, 1))
    return len(ids) / (time.perf_counter() - start)


def measure(name: str, threads: int, args: argparse.Namespace) -> bool:
    """Print the rows of one model and thread count; return whether each ratio is as high as wanted."""
    path = fetch(name)
    llama = LlamaCpp(path, 1024, threads)
    good = True
    with edgeinfer.load(path, n_ctx=1024, n_threads=threads) as llm:
        story = llm.tokenizer.encode(STORY)
        sides = (ours(llm), theirs(llama))
        cases: dict[str, Callable[[Tokens, int], float]] = {
            # each repeat starts at another token, so that no prefix of an earlier prompt can be used again
            "tg128": lambda side, i: tg(side, story[1 + i : 33 + i], 128),
            "pp512": lambda side, i: pp(side, story[1 + i : 513 + i]),
        }
        for what, case in cases.items():
            found: tuple[list[float], list[float]] = ([], [])
            for i in range(args.repeats + 1):
                for side in (0, 1) if i % 2 else (1, 0):
                    time.sleep(0.1)  # the other's threads go to sleep first
                    rate = case(sides[side], i)
                    if i:  # the first is a warm-up
                        found[side].append(rate)
            a, b = spread(found[0]), spread(found[1])
            if a.median is None or b.median is None:
                raise SystemExit("no repeats, nothing to show")
            ratio, wanted = a.median / b.median, WANTED.get((name, what, threads), 0.0)
            good &= ratio >= wanted
            print(
                f"| {name} | {what} | {threads} | {a.median:.1f} ({a.low:.1f}-{a.high:.1f}) "
                f"| {b.median:.1f} ({b.low:.1f}-{b.high:.1f}) | {ratio:.2f} | {wanted or '-'} |",
                flush=True,
            )
    llama.close()
    return good


def main() -> None:
    """Measure every model and thread count; exit 1 if a ratio is lower than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(SOURCES), help="default: all of them")
    parser.add_argument("--threads", type=lambda text: [int(t) for t in text.split(",")], default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(machine())
    print(f"\nmedian tok/s of {args.repeats} (least-most)\n")
    print("| model | what | threads | edgeinfer | llama.cpp | ratio | wanted |\n|---|---|---|---|---|---|---|")
    good = [measure(name, threads, args) for name in args.model or SOURCES for threads in args.threads]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
