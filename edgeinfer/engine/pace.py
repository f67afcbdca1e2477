"""How many threads a forward gets while other programs want the cores too.

A forward has a barrier after almost each of its parts, and a thread whose core another program has makes all others wait.
Beside one busy program a core, two threads that wait for each other do less than one thread, which waits for nobody. So
where threads were late for a good part of the time, fewer are tried, and kept where they are faster. More are tried again
later: soon where the caller's thread kept its core all the time, else more and more seldom. Logits do not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]

LATE = 0.15  # of the threads' time spent waiting for late ones, from which fewer are tried; 0.03 on idle cores
FULL_STEPS = 24  # forwards after which a number is judged,
FULL_S, LEAST_STEPS = 0.25, 4  # or so long, with so many at least
BETTER = 0.95  # of the time a forward takes now: what another number must stay below
ALONE = 0.05  # of the time in which the caller's thread had no core, below which the neighbours seem to have gone
# Before a number is tried again, doubled each time it is in vain. Of fewer threads: seconds spent in forwards, since a trial
# takes some forwards, however seldom they are.
FEWER_WAIT_S, MORE_WAIT_S = 0.5, 1.0
MOST_WAIT_S = 10.0
ALONE_WAIT_S = 1.0  # the same where the neighbours seem to have gone, not doubled: they may sit on the other cores
ROW = 0.2  # what a row more costs, in forwards of one row


class _Window:
    """The forwards since the last decision."""

    def __init__(self) -> None:
        self.steps, self.units, self.seconds, self.late, self.away = 0, 0.0, 0.0, 0.0, 0.0

    def add(self, rows: int, seconds: float, late: float, away: float) -> None:
        self.steps += 1
        self.units += 1 + ROW * (rows - 1)
        self.seconds += seconds
        self.late += late
        self.away += away

    @property
    def full(self) -> bool:
        return self.steps >= FULL_STEPS or (self.steps >= LEAST_STEPS and self.seconds >= FULL_S)

    @property
    def rate(self) -> float:
        """Seconds of a forward of one row."""
        return self.seconds / self.units


class _Choice:
    """The number of threads where at most `most` may be used."""

    def __init__(self, most: int, now: float) -> None:
        self.most = self.n = most
        self.before = 0  # the number that a trial is measured against; 0 when none runs
        self.rate = 0.0  # what a forward takes with it
        self.window = _Window()
        self.wait = {-1: FEWER_WAIT_S, 1: MORE_WAIT_S}
        self.spent = 0.0  # seconds in forwards
        self.next = {-1: 0.0, 1: now}
        self.next_alone = now

    def note(self, rows: int, seconds: float, waited_s: float, away_s: float, now: float) -> None:
        window = self.window
        window.add(rows, seconds, waited_s / self.n, away_s)
        self.spent += seconds
        if self.before:
            hopeless = window.seconds > self.rate * window.units / window.steps * FULL_STEPS
            if window.full or hopeless:
                self._judge(window.rate, now)
            return
        if not window.full:
            return
        if self.n > 1 and window.late > LATE * window.seconds and self.spent >= self.next[-1]:
            self._try(-1, window.rate)
        elif self.n < self.most:
            alone = window.away < ALONE * window.seconds and now >= self.next_alone
            if alone or now >= self.next[1]:
                self._try(1, window.rate)
        self.window = _Window()

    def _try(self, step: int, rate: float) -> None:
        self.before, self.rate = self.n, rate
        self.n += step

    def _judge(self, rate: float, now: float) -> None:
        step = self.n - self.before
        if rate < BETTER * self.rate:
            self.wait = {-1: FEWER_WAIT_S, 1: MORE_WAIT_S}
            self._put_off(-step, now)
        else:
            self.n = self.before
            self._put_off(step, now)
            self.wait[step] = min(2 * self.wait[step], MOST_WAIT_S)
        self.next_alone = now + ALONE_WAIT_S
        self.before, self.window = 0, _Window()

    def _put_off(self, step: int, now: float) -> None:
        self.next[step] = (self.spent if step < 0 else now) + self.wait[step]


class Pace:
    """The choice of a lane; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._choices: dict[int, _Choice] = {}

    def threads(self, most: int) -> int:
        """Threads for the next forward, of at most `most`."""
        choice = self._choices.get(most)
        if choice is None:
            choice = self._choices[most] = _Choice(most, self._clock())
        return choice.n

    def note(self, most: int, rows: int, seconds: float, waited_s: float, away_s: float) -> None:
        """A forward of `rows` tokens on the threads given for `most` took so long.

        waited_s: for late ones, of all threads together; away_s: the part of the time in which the caller's had no core.
        """
        if most > 1:
            self._choices[most].note(rows, seconds, waited_s, away_s, self._clock())
