"""What a model shares a board with: processes that spin, and a cgroup that grants one CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["busy", "quota_of_one_cpu"]

_CGROUP = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # microseconds
# Ends when its parent is gone: a spinning process must not outlive what it was for.
_SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy(n: int) -> Iterator[None]:
    """n processes that spin, at the priority of this one."""
    processes = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(n)]
    try:
        time.sleep(0.5 if n else 0.0)  # they are past their start
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@contextmanager
def quota_of_one_cpu() -> Iterator[str | None]:
    """The file by which a process joins a cgroup that grants one CPU's time; None where none can be made."""
    name = f"edgeinfer-bench-{os.getpid()}"
    version_2 = (_CGROUP / "cgroup.controllers").exists()
    group = _CGROUP / name if version_2 else _CGROUP / "cpu" / name
    try:
        if version_2:
            enabled = _CGROUP / "cgroup.subtree_control"
            if "cpu" not in enabled.read_text().split():
                enabled.write_text("+cpu")
        group.mkdir()
        if version_2:
            (group / "cpu.max").write_text(f"{_PERIOD} {_PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(_PERIOD))
    except OSError:
        _remove(group)
        yield None
        return
    try:
        yield str(group / "cgroup.procs")
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Take an empty cgroup away; its processes have ended."""
    for _ in range(20):
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
