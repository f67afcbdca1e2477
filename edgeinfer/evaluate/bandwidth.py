"""How fast memory can be read, and how many bytes a token must read: the two halves of MBU.

    MBU   bytes that a token must read x tokens per second / bytes per second of the read loop

The read loop reads the packed weights of the model themselves, each thread one contiguous share, as often as it takes to
make 30 ms: same bytes, same pages, same caches as a decode step finds. So what stays in a cache between tokens helps
both sides of the fraction, and a model that fits into the cache is not praised for it.

Bytes that a token must read are those of the file, once: every tensor but the token table (a row of it; all of it where
it is the output matrix too), of a mixture's experts those that a token uses, and the keys and values that attention
looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..model.gguf import GGUFFile
from ..runtime.library import KernelLibrary
from .native_loop import NativeLoop

__all__ = ["ReadLoop", "TokenBytes", "token_bytes"]

_CHUNK = 1024  # bytes of a round, kernels/meter.py
_LEAST_S = 0.03


class ReadLoop:
    """Reads n_bytes of memory at `start` over and over on n threads."""

    def __init__(self, library: KernelLibrary, start: int, n_bytes: int, n_threads: int) -> None:
        self.n_bytes = n_bytes // _CHUNK * _CHUNK
        self._loop = NativeLoop(library, "meter.read", n_threads, start)

    def measure(self) -> float:
        """Bytes per second: the best pass of those that 30 ms hold, at least two."""
        best, spent, passes = float("inf"), 0.0, 0
        while passes < 2 or spent < _LEAST_S:
            seconds = self._loop.seconds(self.n_bytes // _CHUNK)
            best, spent, passes = min(best, seconds), spent + seconds, passes + 1
        return self.n_bytes / best

    def checksum(self) -> int:
        """The sum of all 32-bit words that the last pass read, modulo 2**32."""
        return self._loop.result()

    def close(self) -> None:
        """Give the loop's barrier back."""
        self._loop.close()


@dataclass(frozen=True)
class TokenBytes:
    """What a token reads: weights, and keys and values of each layer group as (bytes a position, window or 0)."""

    weights: int
    kv: tuple[tuple[int, int], ...]

    def at(self, n_past: float) -> float:
        """Bytes of a token that sees n_past positions before it."""
        seen = (position * (min(n_past, window) if window else n_past) for position, window in self.kv)
        return self.weights + sum(seen)


def token_bytes(file: GGUFFile, config: Any, kv: Sequence[tuple[int, int]] = ()) -> TokenBytes:
    """The bytes that a token of this model must read; `kv` as in `TokenBytes`."""
    used, of = getattr(config, "n_expert_used", 0), getattr(config, "n_expert", 0)
    tied = not any(info.name == "output.weight" for info in file)
    total = 0
    for info in file:
        if info.name == "token_embd.weight" and not tied:
            total += info.n_bytes // max(1, info.shape[0])
        elif "_exps." in info.name and of:
            total += info.n_bytes * used // of
        else:
            total += info.n_bytes
    return TokenBytes(total, tuple(kv))
