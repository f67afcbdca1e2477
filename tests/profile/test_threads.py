from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.profile.threads import choose_threads, cpu_quota, physical_cores
from edgeinfer.settings import settings

MOUNT_V2 = "30 24 0:26 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate"
MOUNT_V1 = "33 24 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


def fake(root: Path, files: dict[str, str]) -> Path:
    """A root folder with such files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def machine(siblings: list[str]) -> dict[str, str]:
    """The topology of a machine: the thread siblings of each CPU."""
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {folder.format(cpu): text for cpu, text in enumerate(siblings)}


def v2(limits: dict[str, str], path: str = "/", root: str = "/") -> dict[str, str]:
    files = {"proc/self/cgroup": f"0::{path}", "proc/self/mountinfo": MOUNT_V2.format(root=root)}
    return files | {f"sys/fs/cgroup{group}/cpu.max": text for group, text in limits.items()}


def v1(limits: dict[str, tuple[int, int]], path: str = "/", root: str = "/") -> dict[str, str]:
    files = {
        "proc/self/cgroup": f"5:memory:/else\n4:cpu,cpuacct:{path}",
        "proc/self/mountinfo": "34 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        + MOUNT_V1.format(root=root),
    }
    for group, (quota, period) in limits.items():
        files[f"sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_quota_us"] = str(quota)
        files[f"sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_period_us"] = str(period)
    return files


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (v2({"": "max 100000"}), None),
        (v2({"": "250000 100000"}), 2.5),
        (
            v2({"/a/b": "max 100000", "/a": "150000 100000"}, path="/a/b"),
            1.5,
        ),  # the tightest of the groups above counts
        (v2({"/a/b": "50000 100000", "/a": "150000 100000"}, path="/a/b"), 0.5),
        (
            v2({"": "200000 100000", "/b": "100000 100000"}, path="/docker/x", root="/docker/x"),
            2.0,
        ),  # inside a container
        (v2({"": "200000 100000"}, path="/../elsewhere"), 2.0),
        (v2({"": "damaged"}), None),
        (v2({"": "x y"}), None),
        (v2({"": "100000 0"}), None),
        (v1({"": (-1, 100000)}), None),
        (v1({"": (300000, 100000)}), 3.0),
        (v1({"/job": (50000, 100000), "": (300000, 100000)}, path="/job"), 0.5),
        (v1({"": (300000, 100000)}, path="/docker/x", root="/docker/x"), 3.0),
        (v1({"": (0, 100000)}), None),
        ({"proc/self/mountinfo": "damaged\n1 2 - cgroup2", "proc/self/cgroup": "damaged"}, None),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(fake(tmp_path, files)) == quota


def test_quota_of_both_versions_at_once(tmp_path: Path) -> None:
    files = v1({"": (300000, 100000)}) | {"sys/fs/cgroup/unified/cpu.max": "200000 100000"}
    files["proc/self/cgroup"] += "\n0::/"
    files["proc/self/mountinfo"] += "\n35 24 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    assert cpu_quota(fake(tmp_path, files)) == 2.0


@pytest.mark.parametrize(
    ("siblings", "cpus", "cores"),
    [
        (["0", "1", "2", "3"], [0, 1, 2, 3], 4),
        (["0,2", "1,3", "0,2", "1,3"], [0, 1, 2, 3], 2),
        (["0-1", "0-1", "2-3", "2-3"], [1, 2, 3], 2),
        (["0-1", "0-1"], [1], 1),
        ([], [0, 1, 2], 3),
        ([], [], 1),
    ],
)
def test_physical_cores(tmp_path: Path, siblings: list[str], cpus: list[int], cores: int) -> None:
    assert physical_cores(cpus, fake(tmp_path, machine(siblings))) == cores


@pytest.mark.parametrize(
    ("files", "cpus", "n_threads", "reason"),
    [
        (machine(["0", "1", "2", "3"]), range(4), 4, "4 physical cores"),
        (machine(["0"]), [0], 1, "1 physical core"),
        (machine(["0-1", "0-1", "2-3", "2-3"]), range(4), 2, "2 physical cores (4 hardware threads)"),
        (
            machine(["0", "1", "2", "3"]) | v2({"": "250000 100000"}),
            range(4),
            2,
            "the cgroup grants 2.5 CPUs of 4 cores",
        ),
        (
            machine(["0", "1", "2", "3"]) | v2({"": "50000 100000"}),
            range(4),
            1,
            "the cgroup grants 0.5 CPUs of 4 cores",
        ),
        (machine(["0", "1", "2", "3"]) | v2({"": "400000 100000"}), [0, 2], 2, "2 physical cores"),
        (
            machine(["0", "1", "2", "3"]) | v1({"": (300000, 100000)}),
            range(4),
            3,
            "the cgroup grants 3 CPUs of 4 cores",
        ),
    ],
)
def test_the_choice_and_its_reason(
    tmp_path: Path, files: dict[str, str], cpus: Any, n_threads: int, reason: str
) -> None:
    choice = choose_threads(None, settings({}), root=fake(tmp_path, files), cpus=cpus)
    assert (choice.n_threads, choice.reason) == (n_threads, reason)


def test_asking_comes_first_and_then_the_environment(tmp_path: Path) -> None:
    fake(tmp_path, machine(["0", "1"]))
    by_environment = settings({"EDGEINFER_THREADS": "7"})
    assert choose_threads(None, by_environment, root=tmp_path, cpus=[0, 1]).n_threads == 7
    assert choose_threads(3, by_environment, root=tmp_path, cpus=[0, 1]).n_threads == 3
    assert choose_threads(None, settings({}), root=tmp_path, cpus=[0, 1]).n_threads == 2


@pytest.mark.parametrize("asked", [0, -1, 1.5, "2", True, 1025])
def test_numbers_that_are_none(asked: Any) -> None:
    with pytest.raises(SettingError, match="n_threads"):
        choose_threads(asked, settings({}))


def test_a_number_from_the_environment_that_is_none() -> None:
    with pytest.raises(SettingError, match="EDGEINFER_THREADS is 5000"):
        choose_threads(None, settings({"EDGEINFER_THREADS": "5000"}))


def test_this_machine_has_at_least_one() -> None:
    assert choose_threads(None, settings({})).n_threads >= 1
