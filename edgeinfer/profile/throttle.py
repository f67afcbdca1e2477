"""Was the processor slowed down, or shared with others, while something was measured?

Looks at what Linux tells: clock frequencies, counters of thermal throttling, a Raspberry Pi's own flags, the CPU quota of
a container, and the load average before the start. Files that are not there say nothing. Measures no speed itself.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ThrottleWatch"]

_FALL = 0.85  # a mean frequency below this share of the first one is worth a word
_FLAGS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}


class ThrottleWatch:
    """Take a `sample()` now and then; `notes()` says in sentences what was seen. `root` stands for the file system's root."""

    def __init__(self, root: Path = Path("/"), load: float | None = None, n_cpus: int | None = None) -> None:
        self._root = root
        self._frequencies: list[float] = []  # MHz, the mean over the CPUs, a value for each sample
        self._flags = 0
        self._thermal = self._count("sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")
        self._quota = self._quota_count()
        self._load = os.getloadavg()[0] if load is None else load
        self._n_cpus = len(os.sched_getaffinity(0)) if n_cpus is None else n_cpus
        self.sample()

    def sample(self) -> None:
        """Look at frequencies and flags now."""
        paths = self._root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")
        values = [value for value in map(_number, paths) if value]
        if values:
            self._frequencies.append(sum(values) / len(values) / 1e3)
        for path in self._root.glob("sys/devices/platform/soc*/soc*:firmware/get_throttled"):
            self._flags |= _number(path, base=16) or 0

    def _count(self, pattern: str) -> int:
        return sum(value or 0 for value in map(_number, self._root.glob(pattern)))

    def _quota_count(self) -> int:
        try:
            lines = (self._root / "sys/fs/cgroup/cpu.stat").read_text().splitlines()
        except (OSError, ValueError):
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("nr_throttled ")), 0)

    def notes(self) -> list[str]:
        """What was seen since the start, a sentence each; empty when all was well or nothing can be known."""
        self.sample()
        notes = []
        first = self._frequencies[:1]
        late = self._frequencies[len(self._frequencies) // 2 :]
        if first and late and (mean := sum(late) / len(late)) < _FALL * first[0]:
            notes.append(f"the CPU clock fell from {first[0]:.0f} to {mean:.0f} MHz while this was measured")
        flags = [name for bit, name in _FLAGS.items() if self._flags >> bit & 1]
        if flags:
            notes.append(f"the board reports: {', '.join(flags)}")
        if self._count("sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count") > self._thermal:
            notes.append("the CPU was throttled because it was too hot")
        if (held := self._quota_count() - self._quota) > 0:
            notes.append(f"the CPU quota of this container held the process back {held} times")
        if self._load > 0.25 * self._n_cpus:
            notes.append(
                f"other programs were at work before the start (load average {self._load:.1f} on {self._n_cpus} CPUs): "
                "the figures are lower than this machine's own"
            )
        return notes


def _number(path: Path, base: int = 10) -> int | None:
    try:
        return int(path.read_text().strip(), base)
    except (OSError, ValueError):
        return None
