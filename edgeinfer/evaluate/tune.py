"""A measured sweep over thread counts: which number reads prompts fastest, and which writes fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..metrics import spread
from .sides import Side
from .single_stream import SHORT_PROMPT
from .workload import make_requests

__all__ = ["Sweep", "counts_up_to", "sweep"]

_GAIN = 1.03  # a larger count must bring so much: a thread that brings nothing takes power and a core from others


def counts_up_to(most: int) -> tuple[int, ...]:
    """The thread counts to try: all up to 8, then steps of about a third."""
    counts = list(range(1, min(most, 8) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 4 // 3 + 1))
    return tuple(counts)


@dataclass
class Sweep:
    """Tokens per second by thread count, over the repeats."""

    counts: tuple[int, ...]
    prefill: dict[int, list[float]] = field(default_factory=dict)
    decode: dict[int, list[float]] = field(default_factory=dict)
    interrupted: bool = False

    @staticmethod
    def medians(found: dict[int, list[float]]) -> dict[int, float]:
        """The median rate of each count that was measured."""
        middles = {n: spread(rates).median for n, rates in found.items()}
        return {n: middle for n, middle in middles.items() if middle is not None}

    @classmethod
    def best(cls, found: dict[int, list[float]]) -> int | None:
        """The count that is fastest; a larger one only where it brings 3 %."""
        best: int | None = None
        medians = cls.medians(found)
        for n in sorted(medians):
            if best is None or medians[n] > medians[best] * _GAIN:
                best = n
        return best


def sweep(
    engine: Any,
    side: Side,
    pool: Sequence[int],
    counts: Sequence[int],
    *,
    n_prompt: int,
    n_out: int,
    repeats: int,
    seed: int = 0,
    bos: int | None = None,
    done: Callable[[str], None] | None = None,
) -> Sweep:
    """Measure every count `repeats` times, in rounds. The engine must have been loaded with the largest count.

    An interrupt keeps the whole rounds that were measured.
    """
    result = Sweep(tuple(counts))
    before = dict(engine.phase_threads)
    prompts = make_requests((repeats + 1) * len(counts), pool, (n_prompt,) * 2, 1, seed=seed, bos=bos)
    shorts = make_requests((repeats + 1) * len(counts), pool, (SHORT_PROMPT,) * 2, 1, seed=seed + 1, bos=bos)
    place = 0
    try:
        for number in range(repeats + 1):
            found = []
            for n in counts:
                engine.phase_threads = dict.fromkeys(before, n)
                read = side.run((), prompts[place].prompt, 1).prefill_tok_s
                wrote = side.run((), shorts[place].prompt, n_out).decode_tok_s
                place += 1
                found.append((n, read, wrote))
                if done:
                    done(f"{n} threads")
            for n, read, wrote in found if number else ():  # the first round is a warm-up
                if read is not None and wrote is not None:
                    result.prefill.setdefault(n, []).append(read)
                    result.decode.setdefault(n, []).append(wrote)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        engine.phase_threads = before
    return result
