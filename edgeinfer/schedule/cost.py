"""What a forward costs, learnt while forwards run: seconds by how many rows it has and how far back they look.

    seconds = ratio(rows) * (FIXED + rows + gamma * looks)

`looks` is the sum of the rows' positions: how many keys attention reads. `ratio` is a curve through knots at a few row
counts, each an exponentially weighted mean of what was measured near it, so it follows a machine that slows down.
Knows no engine and no stream.
"""

from __future__ import annotations

import math
from bisect import bisect_left

__all__ = ["GRAIN", "CostModel", "looks_of"]

GRAIN = 8  # rows of a tile: a forward of 9 rows costs what one of 16 does
FIXED = 24.0  # rows' worth of time that a forward takes before its first row (reading the weights); corrected by knots
GAMMA = 1.0 / 4000.0  # rows' worth of time that one looked-at position costs, until it is measured
START_ROWS = 32  # of a first chunk, before anything is known
_WORSE, _BETTER = 0.15, 0.3  # weight of the newest measurement, by whether it was slower or faster than expected
_STALE = 30  # forwards after which a knot that was not measured again is doubted
_FORGET = 0.05  # how fast it then comes down to what is measured elsewhere, a forward
_CLIP = (-0.95, 1.0)  # a measurement far off, relative to what was expected, counts as this far off
_EDGES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)


def looks_of(first: int, rows: int) -> int:
    """The sum of the positions of `rows` rows that begin at position `first`."""
    return rows * first + rows * (rows - 1) // 2


class CostModel:
    """The cost of forwards on one number of threads."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # knots, ascending
        self._ratios: list[float] = []  # seconds for a row's worth of work, at each knot
        self._counts: list[int] = []  # how often each was measured
        self._seen: list[int] = []  # when it was last
        self._n_noted = 0
        self._gamma = GAMMA
        self.most_rows = 0  # the largest forward that was measured

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._rows)

    def seconds(self, rows: int, looks: int) -> float:
        """What a forward is expected to take; 0 when nothing is known."""
        return self._ratio(rows) * (FIXED + rows + self._gamma * looks)

    def _ratio(self, rows: int) -> float:
        """The curve at `rows`: linear between knots over the logarithm of rows, flat beyond them."""
        knots, ratios = self._rows, self._ratios
        if not knots:
            return 0.0
        at = bisect_left(knots, rows)
        if at == len(knots):
            return ratios[-1]
        if at == 0 or knots[at] == rows:
            return ratios[at]
        low, high = math.log(knots[at - 1]), math.log(knots[at])
        part = (math.log(rows) - low) / (high - low)
        return ratios[at - 1] + part * (ratios[at] - ratios[at - 1])

    def note(self, rows: int, looks: int, seconds: float) -> None:
        """Learn from a forward that was measured.

        A neighbour on the machine makes a forward slower, nothing makes it faster: good news is believed sooner than
        bad. What was bad news once and was not tried again since is forgotten by and by, or it never would be.
        """
        self.most_rows = max(self.most_rows, rows)
        work = FIXED + rows + self._gamma * looks
        measured = seconds / work
        edge = min(_EDGES, key=lambda e: abs(math.log(e / rows)))
        expected = self._ratio(rows)
        off = min(max(measured / expected - 1.0, _CLIP[0]), _CLIP[1]) if expected > 0 else 0.0
        at = bisect_left(self._rows, edge)
        if at == len(self._rows) or self._rows[at] != edge:
            self._rows.insert(at, edge)
            self._ratios.insert(at, expected * (1.0 + off) if expected > 0 else measured)
            self._counts.insert(at, 1)
        else:
            self._counts[at] += 1
            alpha = max(_BETTER if off < 0 else _WORSE, 1.0 / self._counts[at])
            share = self._gamma * looks / work  # looking back is as much of the error as of the work
            self._ratios[at] *= 1.0 + alpha * (1.0 - share) * off
            self._gamma *= 1.0 + _WORSE * share * off
        self._n_noted += 1
        if len(self._seen) < len(self._rows):
            self._seen.insert(at, 0)
        self._seen[at] = self._n_noted
        now = self._ratios[at]
        for i, ratio in enumerate(self._ratios):
            if ratio > now and self._n_noted - self._seen[i] > _STALE:
                self._ratios[i] += _FORGET * (now - ratio)

    def fit(self, budget_s: float, first: int, most: int, *, rows: int = 0, looks: int = 0) -> int:
        """How many rows from position `first` on fit into a forward of budget_s that has `rows` others (with `looks`).

        The whole is a multiple of GRAIN where that is within the budget; at least GRAIN rows come out even where they are
        over it, and never more than `most`. A size twice any that was measured is not tried, so that a first guess
        cannot be far off.
        """
        most = min(most, max(GRAIN, max(START_ROWS, 2 * self.most_rows) - rows))
        if not self.known:
            return max(1, min(most, START_ROWS - rows % GRAIN))
        chosen = GRAIN
        for n in range(GRAIN + -rows % GRAIN, most + 1, GRAIN):
            if self.seconds(rows + n, looks + looks_of(first, n)) > budget_s:
                break
            chosen = n
        return max(1, min(chosen, most))

    def figures(self) -> dict[str, float]:
        """Expected milliseconds of forwards near the knots, at position 0, under their row counts."""
        return {str(rows): round(1e3 * self.seconds(rows, looks_of(0, rows)), 3) for rows in self._rows}
