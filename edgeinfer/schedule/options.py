"""How streams share an engine: the settings, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import SettingError
from .sharing import SHARINGS

__all__ = ["ScheduleSettings"]


@dataclass(frozen=True)
class ScheduleSettings:
    """How streams share one engine.

    max_streams    most streams at once, prompts and answers together
    max_queue      most requests that wait beyond them; one more is refused with BusyError
    sharing        who gets the cores when prompts are read and answers written at once: "auto" measures, "ride" puts
                   both into one forward, "split" runs two forwards, "whole" reads every prompt first (for benchmarks)
    target_gap_s   the time between two tokens of an answer while another prompt is read; None is the longest of 16 ms,
                   3.2 usual gaps of one stream and 1.5 of all that answer, and while prompts wait in line for each
                   other 26 ms and 3.8 gaps
    max_wait_s     the longest forward of a prompt while nobody reads an answer; None is 250 ms where the engine can
                   stop a forward in the middle, else 26 ms, because a cancel waits for its end
    aging_s        how much later than it is a request counts for each step down in priority
    """

    max_streams: int = 16
    max_queue: int = 256
    sharing: str = "auto"
    target_gap_s: float | None = None
    max_wait_s: float | None = None
    aging_s: float = 5.0

    def __post_init__(self) -> None:
        for name, low in (("max_streams", 1), ("max_queue", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise SettingError(f"{name} is {value!r}; wanted a whole number, at least {low}")
        if self.sharing not in SHARINGS:
            raise SettingError(f"sharing is {self.sharing!r}; wanted one of {', '.join(SHARINGS)}")
        for name in ("target_gap_s", "max_wait_s", "aging_s"):
            value = getattr(self, name)
            if value is None and name != "aging_s":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise SettingError(f"{name} is {value!r}; wanted a number of seconds above 0")
