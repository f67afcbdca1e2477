"""What a load consists of: seeded requests, and the rule by which they arrive. The same seed makes the same load.

    closed          a request is made as soon as a place in flight is free
    poisson:RATE    RATE requests a second on average, independent of each other
    burst:N@S       N requests at once, every S seconds

Times are seconds from the start of a run. Knows no target and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SettingError

__all__ = ["Arrivals", "Request", "make_requests", "parse_arrivals"]


@dataclass(frozen=True)
class Arrivals:
    """How requests arrive. For `poisson` rate is requests a second; for `burst` size requests come every period_s."""

    kind: str = "closed"  # closed, poisson or burst
    rate: float = 0.0
    size: int = 0
    period_s: float = 0.0

    def times(self, n: int, seed: int) -> list[float | None]:
        """When each of n requests is due, from the start of the run; None: as soon as a place in flight is free."""
        if self.kind == "closed":
            return [None] * n
        if self.kind == "burst":
            return [i // self.size * self.period_s for i in range(n)]
        gaps = np.random.default_rng([seed, 1]).exponential(1.0 / self.rate, n)
        return [float(at) for at in np.cumsum(gaps)]

    def __str__(self) -> str:
        if self.kind == "poisson":
            return f"poisson:{self.rate:g}"
        return f"burst:{self.size}@{self.period_s:g}" if self.kind == "burst" else "closed"


def parse_arrivals(text: str) -> Arrivals:
    """Read "closed", "poisson:RATE" or "burst:N@S". Raises SettingError."""
    kind, _, rest = text.strip().lower().partition(":")
    try:
        if kind == "closed" and not rest:
            return Arrivals()
        if kind == "poisson" and 0.0 < (rate := float(rest)) < math.inf:
            return Arrivals("poisson", rate=rate)
        size, _, period = rest.partition("@")
        if kind == "burst" and int(size) > 0 and 0.0 <= float(period) < math.inf:
            return Arrivals("burst", size=int(size), period_s=float(period))
    except ValueError:
        pass
    raise SettingError(
        f"arrivals {text!r} cannot be used; wanted closed, poisson:RATE (requests a second, such as poisson:2.5) or "
        "burst:N@S (N requests every S seconds, such as burst:8@5)"
    )


@dataclass(frozen=True)
class Request:
    """One request: token ids in, exactly max_tokens out (end tokens are ignored, the most likely token is taken)."""

    index: int
    prompt: tuple[int, ...]
    max_tokens: int
    due: float | None = None  # None: as soon as a place in flight is free


def make_requests(
    n: int,
    pool: Sequence[int],
    lengths: tuple[int, int],
    max_tokens: int,
    *,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    n_shared: int = 0,
    bos: int | None = None,
) -> list[Request]:
    """n requests with prompts of random ids of `pool`, their lengths uniform in `lengths` (both ends included).

    The same arguments give the same requests. Prompts differ from their first tokens on, so that no prefix cache
    helps, unless the first n_shared tokens are asked to be the same. `bos`, if given, is the first token of each.
    Raises SettingError.
    """
    low, high = lengths
    if n < 1 or not 1 <= low <= high or max_tokens < 1 or not pool:
        raise SettingError(
            f"{n} requests with {low} to {high} prompt tokens and {max_tokens} tokens out cannot be made; wanted at "
            "least 1 of each, the shorter length first"
        )
    rng = np.random.default_rng([seed, 0])
    ids = np.asarray(pool, np.int64)
    shared = [int(token) for token in rng.choice(ids, n_shared)]
    requests = []
    for index, due in enumerate((arrivals or Arrivals()).times(n, seed)):
        length = int(rng.integers(low, high + 1))
        own = [int(token) for token in rng.choice(ids, length)]
        prompt = [*([] if bos is None else [bos]), *shared, *own][:length]
        requests.append(Request(index, tuple(prompt), max_tokens, due))
    return requests
