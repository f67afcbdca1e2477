"""One side of a comparison in a process of its own: loads a model, then does what lines of JSON on stdin ask.

Its own process can be held to a CPU, to a cgroup, to an instruction set, to another Python with another llama.cpp; and
one side's threads and memory are not the other's. Run by `fast_child.py`; answers are lines of JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["edgeinfer", "llamacpp"])
    parser.add_argument("model")
    parser.add_argument("--n-ctx", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cpus", help="the only CPUs it may run on, 0,1,...")
    parser.add_argument("--tasks", help="a cgroup's file to write its process number to")
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else writes to stdout must not be taken for an answer
    if args.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})
    if args.tasks:
        Path(args.tasks).write_text(str(os.getpid()))
    serve = ours if args.engine == "edgeinfer" else theirs
    from edgeinfer.errors import EdgeInferError

    try:
        serve(args, lambda answer: print(json.dumps(answer), file=out, flush=True))
    except EdgeInferError as error:
        raise SystemExit(f"{args.engine}: {error}") from error


def loop(deeds: dict[str, Callable[..., Any]], say: Callable[[Any], None]) -> None:
    """Do what each line asks."""
    for line in sys.stdin:
        asked = json.loads(line)
        say(deeds[asked.pop("do")](**asked))


def run_of(side: Any) -> Callable[..., dict[str, Any]]:
    """A run of a side as plain data."""

    def run(prefix: list[int], prompt: list[int], n_out: int) -> dict[str, Any]:
        done = side.run(prefix, prompt, n_out)
        return {"n_read": done.n_read, "n_out": done.n_out, "first_s": done.first_s, "rest_s": done.rest_s}

    return run


def steps_of(make: Callable[[list[int], list[int]], Any]) -> dict[str, Callable[..., Any]]:
    """Deeds that step: `context` first, then `step`."""
    held: list[Any] = []

    def context(context: list[int], more: list[int]) -> bool:
        held[:] = [make(context, more)]
        return True

    return {"context": context, "step": lambda n: held[0].step(n)}


def ours(args: argparse.Namespace, say: Callable[[Any], None]) -> None:
    """Serve with edgeinfer."""
    import edgeinfer
    from edgeinfer.evaluate.limits import Limits
    from edgeinfer.evaluate.sides import Ours
    from edgeinfer.evaluate.verify_curve import OurStepper

    with edgeinfer.load(args.model, n_ctx=args.n_ctx, n_threads=args.threads, prefix_cache=False) as llm:
        threads = llm.threads
        limits = Limits.of(llm.engine, threads.n_threads if threads else 1)
        facts = {
            "n_threads": threads.n_threads if threads else None, "note": threads.note if threads else "",
            "isa": llm.engine.library.isa.name, "weights": limits.traffic.weights if limits else 0,
            "kv": limits.traffic.kv if limits else [], "macs": limits.macs if limits else 0,
        }  # fmt: skip
        say(facts)
        deeds: dict[str, Callable[..., Any]] = {
            "run": run_of(Ours(llm.generate)),
            "bandwidth": lambda: limits.bandwidth() if limits else None,
            "peak": lambda: limits.peak() if limits else None,
            **steps_of(lambda context, more: OurStepper(llm.engine, context, more)),
        }
        loop(deeds, say)


def theirs(args: argparse.Namespace, say: Callable[[Any], None]) -> None:
    """Serve with llama.cpp."""
    from edgeinfer.evaluate.llama_reference import LlamaCpp, build
    from edgeinfer.evaluate.sides import Llama
    from edgeinfer.evaluate.verify_curve import LlamaStepper

    llama = LlamaCpp(Path(args.model), args.n_ctx, args.threads)
    say({"n_threads": args.threads, "build": build()})
    loop(
        {"run": run_of(Llama(llama)), **steps_of(lambda context, more: LlamaStepper(llama, context, more))}, say
    )  # fmt: skip


if __name__ == "__main__":
    main()
