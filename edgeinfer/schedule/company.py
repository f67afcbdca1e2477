"""Answers that begin together, while prompts wait in line and the cores are split.

A step that answers one stream reads all weights, as one that answers two does: two tokens for 1.3 times the time of one
(SmolLM2 on one core). But prompts are read one after the other, and where reading one takes as long as answering one, each
answer is over before the next begins. So a prompt that has waited long waits a little longer: its last rows are held until
the next prompt has been read as well. Time that steps do not take is left for prompts, and all of them wait less for it.

A prompt is held for at most HOLD_PART of its wait so far, never where the next one cannot be read by then, never for one of
another priority, and not when nobody waits behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from .cost import GRAIN
from .stream import Stream

__all__ = ["Company"]

COMPANY = 2  # answers that begin together; with three, gaps get a third longer
HOLD_PART = 0.25  # of the time since it came in that a prompt may be held
GAP_PART = 0.7  # of the target gap that a step of them may be expected to take; the rest is for what no forecast knows
LEAST_ANSWER = 16  # tokens; shorter ones would gain little


class Company:
    """Which prompts are held; by way of three forecasts of the planner, in seconds."""

    def __init__(
        self,
        step_s: Callable[[list[Stream]], float],
        read_s: Callable[[Stream], float],
        gap_s: Callable[[], float],
    ) -> None:
        """step_s: a step of these streams once their prompts are read; read_s: what is left of a prompt, on all threads;
        gap_s: the target gap."""
        self._step_s, self._read_s, self._gap_s = step_s, read_s, gap_s

    def ready(self, reading: list[Stream], writing: list[Stream], split: bool, now: float) -> list[Stream]:
        """Prompts that may be read on now, in order. All are, as soon as one that is held has no reason to be."""
        held = [s for s in reading if s.held_since is not None]
        if held and not (split and self._waits(held, reading, writing, now)):
            _release(held)
            held = []
        return [s for s in reading if not s.in_flight and s not in held]

    def held_rows(self, stream: Stream, n: int, reading: list[Stream], writing: list[Stream], now: float) -> int:
        """How many of the n last rows of a prompt are to wait; where none are, those held for it go on as well."""
        held = [s for s in reading if s.held_since is not None]
        if n > GRAIN and not (stream.was_held or stream.wants_all_rows) and stream.n_most >= LEAST_ANSWER:
            stream.held_since = now
            if self._waits([*held, stream], reading, writing, now):
                return GRAIN
        _release([*held, stream])
        return 0

    def _waits(self, held: list[Stream], reading: list[Stream], writing: list[Stream], now: float) -> bool:
        """Whether streams that are held wait on: for the next prompt, or until fewer are answered."""
        following = next((s for s in reading if s.held_since is None), None)
        until = min(since + HOLD_PART * (since - s.run.accepted) for s in held if (since := s.held_since) is not None)
        if following is None or now > until or any(s.level != following.level for s in held):
            return False
        most_s = GAP_PART * self._gap_s()
        if writing and self._step_s([*writing, *held]) > most_s:
            return True
        if len(held) >= COMPANY or self._step_s([*held, following]) > most_s:
            return False
        return now + self._read_s(following) < until


def _release(held: list[Stream]) -> None:
    for stream in held:
        stream.held_since, stream.was_held = None, True
