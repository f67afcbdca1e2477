"""Greedy answers beside llama.cpp's: the same tokens after each prompt, or a parting of ways at a near tie.

Eight-bit activations make near ties fall either way. Where the two part, the exact float forward must put the two
candidates within 0.5 nats of each other; after that the texts differ and are not compared.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from fetch_models import SOURCES, fetch
from llama_reference import LlamaCpp, machine

import edgeinfer
from edgeinfer.evaluate.exact import ExactModel

if TYPE_CHECKING:
    from edgeinfer.load import LLM

NEAR_TIE = 0.5  # nats

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "The three most important things to know about growing tomatoes are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: Why is the sky blue?\nA:",
    "import json\n\nwith open('settings.json') as file:\n",
    "从前有一座山，山里有一座庙，",
    "La tour Eiffel est",
    "1, 1, 2, 3, 5, 8, 13,",
)


@dataclass(frozen=True)
class Parting:
    """Where two answers part."""

    at: int  # tokens that are the same
    ours: int | None  # the next token of each, None for the end of the text
    theirs: int | None


def parting(ours: list[int], ended: bool, theirs: list[int], end_ids: frozenset[int]) -> Parting | None:
    """The first difference of two answers, None if they are the same; an end token in `theirs` ends it."""
    cut = next((i for i, token in enumerate(theirs) if token in end_ids), None)
    theirs_ended = cut is not None
    theirs = theirs[:cut]
    for i in range(min(len(ours), len(theirs))):
        if ours[i] != theirs[i]:
            return Parting(i, ours[i], theirs[i])
    if len(ours) < len(theirs):
        return Parting(len(ours), None, theirs[len(ours)])
    if len(theirs) < len(ours):
        return Parting(len(theirs), ours[len(theirs)], None)
    return None if ended == theirs_ended else Parting(len(ours), None if ended else -1, None if theirs_ended else -1)


def gap(exact: ExactModel, ids: list[int], part: Parting, end_ids: frozenset[int]) -> float:
    """How far apart in nats the exact forward puts the two candidates; the likeliest end token stands for an end."""
    row = exact.logits(ids, last=True)[0]
    ends = sorted(end_ids)

    def logit(token: int | None) -> float:
        return float(row[ends].max() if token is None else row[token])

    return abs(logit(part.ours) - logit(part.theirs))


def answer(llm: LLM, ids: list[int], count: int) -> tuple[list[int], bool]:
    """Our greedy tokens and whether an end token stopped them."""
    tokens, reason = [], None
    for chunk in llm.generate(ids, max_tokens=count, temperature=0):
        if chunk.token is not None:
            tokens.append(chunk.token)
        reason = chunk.finish_reason
    return tokens, reason == "stop"


def compare(name: str, args: argparse.Namespace) -> bool:
    """Compare one model over all prompts, print its table and return whether every parting is at a near tie."""
    path = fetch(name)
    theirs = LlamaCpp(path, 512, args.threads)
    good = True
    print(f"\n{path.name}, {args.tokens} tokens after each prompt\n\n| prompt | result |\n|---|---|")
    with edgeinfer.load(path, n_ctx=512, n_threads=args.threads) as ours, ExactModel.open(path) as exact:
        ends = ours.tokenizer.end_ids
        for prompt in PROMPTS:
            ids = ours.tokenizer.encode(prompt)
            if ids != theirs.encode(prompt):
                raise SystemExit(f"the two tokenizers disagree about {prompt!r}: {ids} and {theirs.encode(prompt)}")
            tokens, ended = answer(ours, ids, args.tokens)
            part = parting(tokens, ended, list(islice(theirs.greedy(ids), args.tokens)), ends)
            if part is None:
                result = f"identical ({len(tokens)} tokens)"
            else:
                nats = gap(exact, ids + tokens[: part.at], part, ends)
                good &= nats < NEAR_TIE
                result = f"part after {part.at}, {nats:.3f} nats{'' if nats < NEAR_TIE else ': NOT a near tie'}"
            shown = prompt.replace("\n", "\\n")
            print(f"| {shown} | {result} |", flush=True)
    theirs.close()
    return good


def main() -> None:
    """Compare each model; exit 1 if one parts where it should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(SOURCES), help="default: all of them")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(machine())
    good = [compare(name, args) for name in args.model or SOURCES]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
