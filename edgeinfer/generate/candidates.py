"""The tokens that may still be chosen, and the filters that narrow them down. Knows no parameter record and no engine.

A filter that needs the whole distribution runs vectorised over it and sorts only the few tokens that can remain: it takes
those within a window of the best (or, for typical, of the expected surprise) and widens the window until it is enough.
Formulas and edge cases are llama.cpp's, summed in double precision.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Candidates"]

_MANY = 1 << 14  # so many logits stay float32, as the row has them: it is twice as fast
_BLOCK = 1024  # weights that are added up before a draw looks at single ones


class Candidates:
    """Tokens and their logits; at least one. A whole row of logits has no list of ids (they are its places)."""

    def __init__(self, ids: NDArray[np.int64] | None, values: NDArray[np.floating], in_order: bool = False) -> None:
        self._ids = ids  # (n,), ascending unless in order; None: 0 to n - 1
        self.values = values  # (n,)
        self.in_order = in_order  # largest value first, equal ones by ascending id

    def __len__(self) -> int:
        return len(self.values)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The tokens (n,)."""
        if self._ids is None:
            self._ids = np.arange(len(self.values))
        return self._ids

    @property
    def best(self) -> float:
        """The largest logit."""
        return float(self.values[0] if self.in_order else self.values.max())

    def likely(self) -> NDArray[np.floating]:
        """How likely each is relative to the best (n,)."""
        likely: NDArray[np.floating] = np.exp(self.values - self.values.dtype.type(self.best))
        return likely

    def places_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where those of the tokens stand that are candidates."""
        return tokens[tokens < len(self)] if self._ids is None else np.flatnonzero(np.isin(self._ids, tokens))

    def change(self, places: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set the logits at some places."""
        self.values = self.values.copy()
        self.values[places] = values
        self.in_order = False

    def keep(self, places: NDArray[np.int64], in_order: bool = False) -> None:
        """Leave only the candidates at these places, in this order."""
        self._ids = places.astype(np.int64) if self._ids is None else self._ids[places]
        values = self.values[places]
        self.values = values if len(values) > _MANY else values.astype(np.float64)
        self.in_order = in_order

    def _largest_first(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        tokens = places if self._ids is None else self._ids[places]
        order: NDArray[np.int64] = places[np.lexsort((tokens, -self.values[places]))]
        return order

    def sort(self) -> None:
        """Bring the largest value to the front."""
        if not self.in_order:
            self.keep(self._largest_first(np.arange(len(self))), in_order=True)

    # -- filters ------------------------------------------------------------------------------------------------------

    def top_k(self, k: int) -> None:
        """Keep the k largest."""
        k = max(k, 1)
        if k >= len(self):
            return
        if self.in_order:
            self.keep(np.arange(k), in_order=True)
            return
        edge = np.partition(self.values, len(self) - k)[len(self) - k]
        places = np.flatnonzero(self.values >= edge)  # all that tie with the k-th: the lowest id must win
        self.keep(self._largest_first(places)[:k], in_order=True)

    def top_p(self, p: float, min_keep: int = 0) -> None:
        """Keep the fewest most likely ones whose probabilities reach p, at least one."""
        likely = self.likely()
        target = p * likely.sum(dtype=np.float64)
        places, width = np.arange(len(self)), 4.0
        if not self.in_order:
            while True:
                places = np.flatnonzero(likely >= math.exp(-width))
                whole = len(places) == len(self) or width > 1000.0
                if whole or (len(places) >= min_keep and likely[places].sum(dtype=np.float64) >= target):
                    break
                width *= 2
            places = self._largest_first(places)
        reached = np.cumsum(likely[places], dtype=np.float64)
        n = int(np.searchsorted(reached, target, side="left")) + 1
        self.keep(places[: max(n, min_keep)], in_order=True)

    def min_p(self, p: float, min_keep: int = 0) -> None:
        """Keep those at least p times as likely as the best."""
        places = np.flatnonzero(self.values >= self.best + math.log(p))
        if len(places) < max(min_keep, 1):
            self.top_k(min_keep)
        else:
            self.keep(places, in_order=self.in_order)

    def typical_p(self, p: float, min_keep: int = 0) -> None:
        """Keep those whose surprise is nearest to the entropy, until their probabilities add up to more than p.

        Meister et al., "Locally Typical Sampling" (2022).
        """
        surprise, likely, entropy = self._surprise()
        off = np.abs(surprise - surprise.dtype.type(entropy))
        target, width = p * likely.sum(dtype=np.float64), 0.25
        while True:
            places = np.flatnonzero(off <= width)
            whole = len(places) == len(self) or width > 1000.0
            if whole or (len(places) >= min_keep and likely[places].sum(dtype=np.float64) > target):
                break
            width *= 2
        tokens = places if self._ids is None else self._ids[places]
        places = places[np.lexsort((tokens, -self.values[places], off[places]))]
        reached = np.cumsum(likely[places], dtype=np.float64)
        n = int(np.searchsorted(reached, target, side="right")) + 1
        self.keep(places[: max(n, min_keep)])

    def top_n_sigma(self, n: float) -> None:
        """Keep those at most n standard deviations of the logits below the largest (Tang et al., "Top-n-sigma", 2024)."""
        off = self.values - self.values.dtype.type(self.values.mean(dtype=np.float64))
        sigma = math.sqrt(float(np.dot(off, off)) / len(off))
        self.keep(np.flatnonzero(self.values >= self.best - n * sigma), in_order=self.in_order)

    def xtc(self, threshold: float, min_keep: int = 0) -> None:
        """Drop all that are at least as likely as threshold but the least likely of them ("exclude top choices")."""
        likely = self.likely()
        above = np.flatnonzero(likely >= threshold * likely.sum(dtype=np.float64))
        if len(above) < 2 or len(self) - len(above) + 1 < min_keep:
            return
        keep = np.ones(len(self), np.bool_)
        keep[self._largest_first(above)[:-1]] = False
        self.keep(np.flatnonzero(keep), in_order=self.in_order)

    def temper(self, temperature: float, spread: float = 0.0, exponent: float = 1.0) -> None:
        """Divide by the temperature; with a spread, by one between temperature -+ spread that grows with the entropy."""
        if spread > 0.0 and len(self) > 1:
            _, _, entropy = self._surprise()
            low = max(0.0, temperature - spread)
            share = min(max(entropy, 0.0) / math.log(len(self)), 1.0)
            temperature = low + (temperature + spread - low) * share**exponent
        if temperature < 1e-6:
            self.top_k(1)
        else:
            best = self.best  # stays where it is, so that nothing overflows
            self.values = (self.values - self.values.dtype.type(best)) / self.values.dtype.type(temperature)

    def surprise_below(self, bits: float) -> None:
        """Keep those of at most so many bits of surprise, at least the best."""
        likely = self.likely()
        floor = 2.0**-bits * likely.sum(dtype=np.float64)
        places = np.flatnonzero(likely >= floor)
        if len(places):
            self.keep(places, in_order=self.in_order)
        else:
            self.top_k(1)

    def _surprise(self) -> tuple[NDArray[np.floating], NDArray[np.floating], float]:
        """-ln p of each (n,), how likely each is relative to the best (n,), and the entropy in nats."""
        likely = self.likely()
        total = float(likely.sum(dtype=np.float64))
        surprise = self.values.dtype.type(self.best + math.log(total)) - self.values
        return surprise, likely, float(np.dot(likely, surprise)) / total

    # -- the end ------------------------------------------------------------------------------------------------------

    def draw(self, point: float) -> tuple[int, float]:
        """The token at `point` (0 to 1) of the distribution, and its probability."""
        weights = self.likely()
        n_blocks = len(weights) // _BLOCK
        sums = weights[: n_blocks * _BLOCK].reshape(n_blocks, _BLOCK).sum(axis=1, dtype=np.float64)
        ends = np.cumsum(np.append(sums, weights[n_blocks * _BLOCK :].sum(dtype=np.float64)))
        total = float(ends[-1])
        goal = point * total
        block = min(int(np.searchsorted(ends, goal, side="right")), n_blocks)
        first = block * _BLOCK
        inside = np.cumsum(weights[first : first + _BLOCK], dtype=np.float64)
        before = float(ends[block - 1]) if block else 0.0
        place = first + int(np.searchsorted(inside, goal - before, side="right"))
        place = min(place, first + len(inside) - 1, len(weights) - 1)
        while weights[place] == 0.0 and place > 0:  # rounding must not choose what cannot be
            place -= 1
        return int(place if self._ids is None else self._ids[place]), float(weights[place]) / total
