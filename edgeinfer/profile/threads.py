"""How many threads to compute with: what the process may use of this machine, and why.

One thread per physical core that the process may run on, on a big.LITTLE or hybrid CPU one per big core, never more than
the CPU time it is granted (cgroup quota, rounded down, at least 1): the threads of a step wait for each other, so one
that is not scheduled, or that is slow, stops them all. For the same reason more threads than the process may run on at
once are never started, whatever was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import SettingError
from ..settings import Settings

__all__ = ["Cores", "ThreadChoice", "big_cores", "choose_threads", "cpu_quota", "physical_cores", "usable_cores"]

_MOST = 1024  # more is a slip of the pen
_BIG = 0.6  # a core below this part of the fastest one's capacity would hold the others up more than it helps


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads and the reason for it.

    n_prefill and n_decode are less than n_threads where a measurement said so (0: n_threads). `note` says that not all
    that was asked for is used.
    """

    n_threads: int
    reason: str
    n_prefill: int = 0
    n_decode: int = 0
    note: str = ""
    automatic: bool = False  # nobody asked for a number: a measured one may take its place

    def phases(self) -> dict[str, int]:
        """The most threads of a forward of several tokens ("batch") and of one token ("decode")."""
        return {"batch": self.n_prefill or self.n_threads, "decode": self.n_decode or self.n_threads}


@dataclass(frozen=True)
class Cores:
    """What the process may use."""

    cpus: tuple[int, ...]  # hardware threads of the affinity mask
    big: tuple[int, ...]  # those of big cores
    n_physical: int  # different cores among the big ones
    quota: float | None  # CPUs' worth of time that cgroups grant

    @property
    def most(self) -> int:
        """How many threads can run at once: hardware threads, or the quota rounded down, at least 1."""
        granted = len(self.cpus) if self.quota is None else min(len(self.cpus), int(self.quota))
        return max(1, granted)

    @property
    def limit(self) -> str:
        """What sets `most`, in words."""
        if self.quota is not None and int(self.quota) < len(self.cpus):
            return f"the cgroup grants {self.quota:g} CPUs"
        n = len(self.cpus)
        return f"this process may run on {n} CPU{'s' if n != 1 else ''}"


def usable_cores(root: Path = Path("/"), cpus: Iterable[int] | None = None) -> Cores:
    """What the process may use of this machine; `root` and `cpus` as in `choose_threads`."""
    usable = tuple(sorted(_affinity() if cpus is None else cpus))
    big = big_cores(usable, root)
    return Cores(usable, big, physical_cores(big, root), cpu_quota(root))


def choose_threads(
    asked: int | None, settings: Settings, *, root: Path = Path("/"), cpus: Iterable[int] | None = None
) -> ThreadChoice:
    """The number of threads: `asked`, else EDGEINFER_THREADS, else what fits this machine.

    More than can run at once are capped, with a note. `root` stands for the root of the file system and `cpus` for the
    CPUs of the affinity mask (tests give their own). Raises SettingError when what was asked for is not a whole number
    from 1 to 1024.
    """
    source = "asked for"
    if asked is not None:
        if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= _MOST:
            raise SettingError(
                f"n_threads is {asked!r}; wanted a whole number from 1 to {_MOST}; left out, the machine decides"
            )
    elif settings.threads:
        if settings.threads > _MOST:
            raise SettingError(f"environment variable EDGEINFER_THREADS is {settings.threads}; wanted at most {_MOST}")
        asked, source = settings.threads, "EDGEINFER_THREADS"
    cores = usable_cores(root, cpus)
    if asked is not None:
        if asked > cores.most:
            note = (
                f"{asked} threads were {'asked for' if source == 'asked for' else 'set by EDGEINFER_THREADS'}, but "
                f"{cores.limit}: computing with {cores.most}"
            )
            return ThreadChoice(cores.most, f"{source}: {asked}, {cores.limit}", note=note)
        return ThreadChoice(asked, source)
    if cores.quota is not None and int(cores.quota) < cores.n_physical:
        reason = f"the cgroup grants {cores.quota:g} CPUs of {cores.n_physical} cores"
        return ThreadChoice(max(1, int(cores.quota)), reason, automatic=True)
    n = cores.n_physical
    if len(cores.big) < len(cores.cpus):
        kind = f"{n} big core{'s' if n > 1 else ''} of {physical_cores(cores.cpus, root)}"
    else:
        kind = f"{n} physical core{'s' if n > 1 else ''}"
    hidden = "" if n == len(cores.big) else f" ({len(cores.big)} hardware threads)"
    return ThreadChoice(n, kind + hidden, automatic=True)


def _affinity() -> set[int]:
    """The CPUs that this process may run on."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):  # not on this system
        return set(range(os.cpu_count() or 1))


def physical_cores(cpus: Iterable[int], root: Path = Path("/")) -> int:
    """How many different cores the CPUs belong to; a CPU whose siblings are not known counts as a core. At least 1."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "thread_siblings_list") or _read(topology / "core_cpus_list")
        cores.add(siblings or f"cpu{cpu}")
    return max(1, len(cores))


def big_cores(cpus: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Those of the CPUs that belong to big cores; all of them where nothing tells cores apart.

    Read from what the kernel says first: `cpu_capacity` (ARM), the list of performance cores (Intel's hybrids), the
    highest clock (`cpuinfo_max_freq`). Capacity and clock count as big from 0.6 of the largest among `cpus` on.
    """
    listed = tuple(cpus)
    places = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")
    found = [[_number(root / f"sys/devices/system/cpu/cpu{cpu}/{place}") for cpu in listed] for place in places]
    performance = _list(_read(root / "sys/devices/cpu_core/cpus"))
    if not all(found[0]) and performance:
        return tuple(cpu for cpu in listed if cpu in performance) or listed
    for values in found:
        if values and all(values):
            return tuple(cpu for cpu, value in zip(listed, values, strict=True) if value >= _BIG * max(values))
    return listed


def _list(text: str) -> set[int]:
    """The CPUs of a list such as 0-3,8; none for a text that is no list."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        try:
            found.update(range(int(low), int(high or low) + 1))
        except ValueError:
            return set()
    return found


def _number(path: Path) -> int:
    text = _read(path)
    return int(text) if text.isdigit() else 0


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The CPUs' worth of time that cgroups (v1 or v2, or both) grant this process; None without a limit.

    Every group from the process's own up to the mount counts: the tightest limit holds.
    """
    paths = _cgroup_paths(root)
    limits = []
    for version, mount_root, mount in _cgroup_mounts(root):
        if version not in paths:
            continue
        top = root / mount.lstrip("/")
        inner = _inside(paths[version], mount_root)
        for group in [top / inner, *(top / inner).parents] if inner else [top]:
            limit = _quota_v2(group) if version == 2 else _quota_v1(group)
            if limit is not None:
                limits.append(limit)
            if group == top:
                break
    return min(limits, default=None)


def _cgroup_paths(root: Path) -> dict[int, str]:
    """The process's group below each hierarchy that can limit CPU time: {version: path}."""
    paths = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            paths[2] = path
        elif "cpu" in controllers.split(","):
            paths[1] = path
    return paths


def _cgroup_mounts(root: Path) -> list[tuple[int, str, str]]:
    """Where those hierarchies are mounted: (version, the group that is the mount's root, mount point)."""
    mounts = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        head, dash, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if not dash or len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            mounts.append((2, fields[3], fields[4]))
        elif kind[0] == "cgroup" and "cpu" in kind[-1].split(","):
            mounts.append((1, fields[3], fields[4]))
    return mounts


def _inside(path: str, mount_root: str) -> str:
    """The process's group relative to the mount point; "" where it is the mount's root or not visible below it."""
    base = mount_root.rstrip("/")
    if path == base or not path.startswith(base + "/"):
        return ""
    inner = path[len(base) :].strip("/")
    return "" if ".." in inner.split("/") else inner


def _quota_v2(group: Path) -> float | None:
    words = _read(group / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(words[0], words[1])


def _quota_v1(group: Path) -> float | None:
    return _ratio(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    try:
        granted, of = int(quota), int(period)
    except ValueError:
        return None
    return granted / of if granted > 0 and of > 0 else None  # -1 is "no limit"


def _read(path: Path) -> str:
    """The text of a small system file, "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
