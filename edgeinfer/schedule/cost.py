"""What a forward costs, learnt while forwards run: seconds by how many rows it has and how far back they look.

    seconds = base + row * tiles(rows) + look * looks + span * spans

`looks` is the sum of the rows' positions: how many keys attention multiplies. `spans` is the sum of the positions at which
the pieces of the forward begin: how many keys it reads from memory, once for all rows of a piece. The four numbers are
the state of a Kalman filter whose measurements are forwards and which lets the numbers drift, so that it follows a machine
that slows down (R. E. Kalman, 1960). Knows no engine and no stream.
"""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["GRAIN", "CostModel", "looks_of"]

GRAIN = 8  # rows of a tile
PART = 4  # what is left of a forward beyond its whole tiles costs what this many rows cost, or twice as many
START_ROWS = 32  # of a first chunk, before anything is known
_GUESS = (5.0, 1.0, 1e-3, 1e-3)  # base, row, look and span, in rows' worth of time, until they are measured
_DOUBT = 1.0  # how far off, relative to the guess, each may be
_NOISE = 0.08  # of a measurement, relative
_DRIFT = 0.03  # of each number from one forward to the next, relative
_CLIP = (-0.6, 1.0)  # a measurement further off than this, relative to what was expected, counts as this far off
_LEAST = 1e-4  # of its guess that a number never falls below
_COLD = 4  # forwards at first of which one may have been slow for reasons of its own: memory touched for the first time
_OVER = 1.5  # of its budget that a whole tile may take: part of one reads a prompt more slowly
_EDGES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)

Numbers = tuple[float, float, float, float]


def looks_of(first: int, rows: int) -> int:
    """The sum of the positions of `rows` rows that begin at position `first`."""
    return rows * first + rows * (rows - 1) // 2


def _tiles(rows: int) -> int:
    """Rows as the products see them."""
    return rows if rows <= GRAIN else -(-rows // PART) * PART


class CostModel:
    """The cost of forwards on one number of threads."""

    def __init__(self, like: CostModel | None = None, factor: float = 1.0) -> None:
        """`like` is a model of another number of threads, of which this one's first guess is `factor` times."""
        self._numbers: list[float] = []
        self._spread: list[list[float]] = []  # the covariance of their errors
        self._scale: Numbers = (0.0, 0.0, 0.0, 0.0)
        self._seen: set[int] = set()  # row counts near which something was measured
        self._n_noted = 0
        self.most_rows = 0  # the largest forward that was measured
        if like is not None and like.known:
            a, b, c, d = (factor * number for number in like._numbers)
            self._begin((a, b, c, d))

    @property
    def known(self) -> bool:
        """Whether anything was measured, or borrowed from another model."""
        return bool(self._numbers)

    def _begin(self, guess: Numbers) -> None:
        self._numbers, self._scale = list(guess), guess
        self._spread = [[(_DOUBT * guess[i]) ** 2 if i == j else 0.0 for j in range(4)] for i in range(4)]

    def seconds(self, rows: int, looks: int, spans: int = 0) -> float:
        """What a forward is expected to take; 0 when nothing is known."""
        if not self._numbers:
            return 0.0
        base, row, look, span = self._numbers
        return base + row * _tiles(rows) + look * looks + span * spans

    def note(self, rows: int, looks: int, seconds: float, spans: int = 0) -> None:
        """Learn from a forward that was measured."""
        x = (1.0, float(_tiles(rows)), float(looks), float(spans))
        cold = self._n_noted < _COLD and seconds < 0.5 * self.seconds(rows, looks, spans)
        self._n_noted += 1
        if not self._numbers or cold:
            unit = seconds / sum(g * v for g, v in zip(_GUESS, x, strict=True))
            a, b, c, d = (unit * g for g in _GUESS)
            self._begin((a, b, c, d))
        self.most_rows = max(self.most_rows, rows)
        self._seen.add(min(_EDGES, key=lambda edge: abs(edge - rows)))
        expected = self.seconds(rows, looks, spans)
        off = expected * min(max(seconds / expected - 1.0, _CLIP[0]), _CLIP[1])
        spread, numbers = self._spread, self._numbers
        for i in range(4):  # the numbers have drifted since, but are never doubted more than at first
            most = (_DOUBT * max(self._scale[i], numbers[i])) ** 2
            spread[i][i] = min(most, spread[i][i] + (_DRIFT * numbers[i]) ** 2)
        sx = [sum(row[j] * x[j] for j in range(4)) for row in spread]
        total = sum(x[i] * sx[i] for i in range(4)) + (_NOISE * expected) ** 2
        for i in range(4):
            numbers[i] = max(numbers[i] + sx[i] * off / total, _LEAST * self._scale[i])
        self._spread = [[spread[i][j] - sx[i] * sx[j] / total for j in range(4)] for i in range(4)]

    def fit(self, budget_s: float, first: int, most: int, *, rows: int = 0, looks: int = 0, spans: int = 0) -> int:
        """How many rows from position `first` on fit into a forward of budget_s that has others already.

        The whole is a multiple of GRAIN where that is near the budget, else what fits of one tile; half a tile at least
        comes out even where that is over it, and never more than `most`. A size twice any that was measured is not tried,
        so that a first guess cannot be far off.
        """
        most = min(most, max(GRAIN, max(START_ROWS, 2 * self.most_rows) - rows))
        if not self.known:
            return max(1, min(most, START_ROWS - rows % GRAIN))

        def over(n: int, budget_s: float) -> bool:
            return self.seconds(rows + n, looks + looks_of(first, n), spans + first) > budget_s

        fill = -rows % GRAIN  # rows that make the others a whole tile
        whole = least = fill + GRAIN * (fill < GRAIN // 2)
        if rows + least <= GRAIN:  # within one tile fewer rows cost less
            fewest = GRAIN // 2 - bool(rows)
            while least > fewest and over(least, _OVER * budget_s):
                least -= 1
        sizes = range(least, most + 1, GRAIN) if least == whole else [least]
        fits = bisect_left(sizes, True, key=lambda n: over(n, budget_s))
        return max(1, min(sizes[fits - 1] if fits else least, most))

    def figures(self) -> dict[str, float]:
        """Expected milliseconds of forwards of row counts that were measured, at position 0."""
        return {str(rows): round(1e3 * self.seconds(rows, looks_of(0, rows)), 3) for rows in sorted(self._seen)}
