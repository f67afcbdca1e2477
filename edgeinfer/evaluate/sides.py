"""The two sides of a comparison of one stream, driven alike: our engine through `llm.generate`, llama.cpp by its decode call.

A run gives a prefix that may be held from the run before (the depth), a prompt that is new, and the number of tokens to
write, greedy, end tokens ignored. Both are timed by the caller's clock. llama.cpp is driven by its decode call and
NumPy's argmax, its fastest way from Python: `Llama.generate` adds a sampler that builds a record of the whole
vocabulary for each token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ..errors import EngineError
from ..metrics import Timings
from .llama_reference import LlamaCpp
from .targets import Answer

__all__ = ["Llama", "Ours", "Side", "SideRun"]


@dataclass(frozen=True)
class SideRun:
    """One run by the caller's clock."""

    n_read: int  # prompt tokens really evaluated
    n_out: int
    first_s: float  # from asking to the first token
    rest_s: float  # from the first token to the last
    timings: Timings | None = None

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens evaluated / time to the first token; None where no prompt was read."""
        return self.n_read / self.first_s if self.n_read and self.first_s > 0 else None

    @property
    def decode_tok_s(self) -> float | None:
        """(n_out - 1) / time from the first token to the last; None below two tokens."""
        return (self.n_out - 1) / self.rest_s if self.n_out > 1 and self.rest_s > 0 else None


class Side(Protocol):
    """What can be asked to read and write."""

    name: str

    def run(self, prefix: Sequence[int], prompt: Sequence[int], n_out: int) -> SideRun:
        """Read prefix (as far as it is not held) and prompt, write n_out tokens."""


class Ours:
    """`generate` of a loaded model. A held prefix is found by its prefix cache."""

    name = "edgeinfer"

    def __init__(self, generate: Callable[..., Answer]) -> None:
        self._generate = generate

    def run(self, prefix: Sequence[int], prompt: Sequence[int], n_out: int) -> SideRun:
        """As Side says."""
        started = time.perf_counter()
        answer = self._generate([*prefix, *prompt], max_tokens=n_out, temperature=0.0, ignore_eos=True)
        try:
            times = [time.perf_counter() for chunk in answer if chunk.token is not None]
        except BaseException:
            answer.cancel()
            raise
        if not times:
            raise EngineError("an answer ended without a token")
        timings = answer.timings
        return SideRun(timings.n_prefill, len(times), times[0] - started, times[-1] - times[0], timings)


class Llama:
    """A model in llama.cpp. A prefix that the run before had too is kept."""

    name = "llama.cpp"

    def __init__(self, llama: LlamaCpp) -> None:
        self._llama = llama
        self._held: tuple[int, ...] = ()

    def run(self, prefix: Sequence[int], prompt: Sequence[int], n_out: int) -> SideRun:
        """As Side says; reading the prefix is not timed."""
        held = tuple(prefix)
        if not held or held != self._held or not self._llama.rewind(len(held)):
            self._llama.reset()
            if held:
                self._llama.read(held, 0)
        self._held = held
        started = time.perf_counter()
        times = [time.perf_counter() for _ in islice(self._llama.greedy(prompt, len(held)), n_out)]
        return SideRun(len(prompt), len(times), times[0] - started, times[-1] - times[0])
