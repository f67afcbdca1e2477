"""How many threads to compute with: what the process may use of this machine, and why.

One thread per physical core that the process may run on, never more than the CPU time it is granted (cgroup quota,
rounded down, at least 1): the threads of a step wait for each other, so one that is not scheduled stops them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import SettingError
from ..settings import Settings

__all__ = ["ThreadChoice", "choose_threads", "cpu_quota", "physical_cores"]

_MOST = 1024  # more is a slip of the pen, and would be started


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads and the reason for it."""

    n_threads: int
    reason: str


def choose_threads(
    asked: int | None, settings: Settings, *, root: Path = Path("/"), cpus: Iterable[int] | None = None
) -> ThreadChoice:
    """The number of threads: `asked`, else EDGEINFER_THREADS, else what fits this machine.

    `root` stands for the root of the file system and `cpus` for the CPUs of the affinity mask (tests give their own).
    Raises SettingError when what was asked for is not a whole number from 1 to 1024.
    """
    if asked is not None:
        if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= _MOST:
            raise SettingError(
                f"n_threads is {asked!r}; wanted a whole number from 1 to {_MOST}, or None to let the profile decide"
            )
        return ThreadChoice(asked, "asked for")
    if settings.threads:
        if settings.threads > _MOST:
            raise SettingError(f"environment variable EDGEINFER_THREADS is {settings.threads}; wanted at most {_MOST}")
        return ThreadChoice(settings.threads, "EDGEINFER_THREADS")
    usable = sorted(_affinity() if cpus is None else cpus)
    cores = physical_cores(usable, root)
    quota = cpu_quota(root)
    if quota is not None and int(quota) < cores:
        return ThreadChoice(max(1, int(quota)), f"the cgroup grants {quota:g} CPUs of {cores} cores")
    hidden = "" if cores == len(usable) else f" ({len(usable)} hardware threads)"
    return ThreadChoice(cores, f"{cores} physical core{'s' if cores > 1 else ''}{hidden}")


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
