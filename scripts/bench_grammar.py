"""What a grammar costs per token: the time of a token with and without one, in turns, and what of it is the sampler's.

scripts/bench_grammar.py [MODEL] [ROUNDS]     default gemma3-270m, whose vocabulary is 262,144 tokens, and 5
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import edgeinfer
from edgeinfer.generate.sampler import Sampler

SCHEMA = {
    "type": "array",
    "minItems": 40,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 60},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 3},
            "note": {"type": "string", "maxLength": 200},
        },
        "required": ["name", "age", "tags", "note"],
        "additionalProperties": False,
    },
}
GBNF = r"""
root ::= "[" item (", " item){40,} "]"
item ::= "{" pair (", " pair)* "}" | "[" item (", " item)* "]" | string | number
pair ::= string ": " item
string ::= "\"" [^"\\\x00-\x1f]{0,60} "\""
number ::= "-"? [1-9] [0-9]{0,6}
"""
KINDS: dict[str, dict[str, Any]] = {
    "nothing": {"ignore_eos": True},
    "JSON schema": {"json_schema": SCHEMA},
    "regex: dates": {
        "regex": r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])(, (19|20)\d\d-(0[1-9]|1[0-2])-\d\d){40}"
    },
    "regex: a list": {"regex": r"(\d+\. [A-Z][A-Za-z .'-]{2,40}\n){60}"},
    "regex: capitals": {"regex": r"([A-Z][a-z]{1,12} ){200}"},
    "GBNF": {"grammar": GBNF},
}
N_TOKENS = 80


class Clock:
    """Adds up the processor time of the sampler's calls."""

    def __init__(self) -> None:
        self.spent = 0.0
        for name in ("sample", "accept"):
            setattr(Sampler, name, self._timed(getattr(Sampler, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.spent += time.thread_time() - started

        return timed


def main(model: str = "gemma3-270m", rounds: str = "5") -> None:
    """Measure and print a table."""
    clock = Clock()
    token: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sampler: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with edgeinfer.load(model, n_ctx=1024) as llm:
        for seed in range(-1, int(rounds)):
            for kind, shape in KINDS.items():
                clock.spent = 0.0
                prompt = "A list of famous scientists as JSON:\n"
                answer = llm.generate(prompt, max_tokens=N_TOKENS, seed=max(seed, 0), **shape)
                answer.text()
                timings = answer.timings
                if seed < 0 or timings.decode_s is None:
                    continue  # the first round warms up
                token[kind].append(1e3 * timings.decode_s / (timings.n_out - 1))
                sampler[kind].append(1e3 * clock.spent / timings.n_out)
        n_tokens = llm.tokenizer.n_vocab
    print(
        f"{model}, {n_tokens} tokens in the vocabulary, {N_TOKENS} tokens an answer, {rounds} rounds in turns; median"
    )
    base, base_sampler = statistics.median(token["nothing"]), statistics.median(sampler["nothing"])
    for kind in KINDS:
        here, share = statistics.median(token[kind]), statistics.median(sampler[kind])
        print(
            f"{kind:15} {here:7.2f} ms a token ({100 * (here / base - 1):+5.1f} %), the sampler's processor time "
            f"{share:6.3f} ms ({share - base_sampler:+.3f} ms: {100 * (share - base_sampler) / base:+.1f} % of a token)"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
