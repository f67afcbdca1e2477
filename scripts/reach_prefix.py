"""TTFT with a cached prefix, in a process of its own: `reach_prefix.py MODEL STEP ...` prints one line of JSON.

    seed   an empty disk cache: a prompt read cold, then the same beginning with new ends from RAM, and short prompts
    disk   after a restart: the beginning comes from disk

Every process first answers one short prompt that has nothing to do with it, so that code and weights are in memory.
See reach_concurrency.py, which starts them.
"""

from __future__ import annotations

import argparse
import json
import time

from reach_streams import GREEDY, prompt_of

import edgeinfer
from edgeinfer.evaluate.targets import word_ids


def ttft(llm: edgeinfer.LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens of the prompt were found in a cache."""
    started = time.perf_counter()
    answer = llm.generate(prompt, max_tokens=2, **GREEDY)
    next(answer)
    seconds = time.perf_counter() - started
    answer.text()
    return seconds, answer.timings.n_reused


def main() -> None:
    """Measure one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("step", choices=["seed", "disk"])
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    with edgeinfer.load(args.model, n_ctx=args.prefix + 256, n_threads=args.threads) as llm:
        pool = word_ids(llm.tokenizer)
        prefix = prompt_of(pool, args.prefix, 1)
        ttft(llm, prompt_of(pool, args.new, 2))
        result: dict[str, object] = {"load_s": llm.load_s}
        ends = [prompt_of(pool, args.new, 100 + i + 50 * (args.step == "disk")) for i in range(args.repeats + 1)]
        if args.step == "disk":
            result["disk"], result["disk_reused"] = ttft(llm, prefix + ends[0])
        else:
            result["cold"], result["cold_reused"] = ttft(llm, prefix + ends[0])
            warm = [ttft(llm, prefix + end) for end in ends[1:]]
            result["ram"], result["ram_reused"] = [t for t, _ in warm], min(n for _, n in warm)
            result["short"] = [ttft(llm, prompt_of(pool, args.new, 200 + i))[0] for i in range(args.repeats)]
            time.sleep(1.0)  # what is worth a file is written when the engine is at rest
    print(json.dumps(result))


if __name__ == "__main__":
    main()
