from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.profile.threads import ThreadChoice, big_cores, choose_threads, cpu_quota, physical_cores
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
    fake(tmp_path, machine(["0", "1", "2", "3", "4", "5", "6", "7"]))
    by_environment = settings({"EDGEINFER_THREADS": "7"})
    assert choose_threads(None, by_environment, root=tmp_path, cpus=range(8)).n_threads == 7
    assert choose_threads(3, by_environment, root=tmp_path, cpus=range(8)) == ThreadChoice(3, "asked for")
    assert choose_threads(None, settings({}), root=tmp_path, cpus=range(8)).n_threads == 8


@pytest.mark.parametrize(
    ("files", "cpus", "used", "limit"),
    [
        ({}, [3], 1, "this process may run on 1 CPU"),
        ({}, [0, 1], 2, "this process may run on 2 CPUs"),
        (v2({"": "150000 100000"}), range(4), 1, "the cgroup grants 1.5 CPUs"),
        (v2({"": "50000 100000"}), range(4), 1, "the cgroup grants 0.5 CPUs"),
        (v1({"": (300000, 100000)}), range(8), 3, "the cgroup grants 3 CPUs"),
        (v1({"": (900000, 100000)}), range(2), 2, "this process may run on 2 CPUs"),
    ],
)
def test_more_than_can_run_at_once_are_capped_with_a_note(
    tmp_path: Path, files: dict[str, str], cpus: Any, used: int, limit: str
) -> None:
    root = fake(tmp_path, files)
    choice = choose_threads(6, settings({}), root=root, cpus=cpus)
    assert (choice.n_threads, choice.note) == (used, f"6 threads were asked for, but {limit}: computing with {used}")
    choice = choose_threads(None, settings({"EDGEINFER_THREADS": "6"}), root=root, cpus=cpus)
    assert choice.note == f"6 threads were set by EDGEINFER_THREADS, but {limit}: computing with {used}"
    assert not choose_threads(used, settings({}), root=root, cpus=cpus).note
    assert not choose_threads(None, settings({}), root=root, cpus=cpus).note


def test_hardware_threads_may_be_asked_for(tmp_path: Path) -> None:
    """Siblings are not counted by default, but who asks for them gets them: they can run at once."""
    root = fake(tmp_path, machine(["0-1", "0-1", "2-3", "2-3"]))
    assert choose_threads(4, settings({}), root=root, cpus=range(4)) == ThreadChoice(4, "asked for")


CPU = "sys/devices/system/cpu/cpu{}/"


def sizes(place: str, values: list[int]) -> dict[str, str]:
    """A number for each CPU, such as its capacity."""
    return {CPU.format(cpu) + place: str(value) for cpu, value in enumerate(values)}


@pytest.mark.parametrize(
    ("files", "cpus", "big"),
    [
        ({}, range(4), (0, 1, 2, 3)),
        (sizes("cpu_capacity", [414] * 4 + [1024] * 4), range(8), (4, 5, 6, 7)),  # A55 and A76
        (sizes("cpu_capacity", [300] * 3 + [850] * 4 + [1024]), range(8), (3, 4, 5, 6, 7)),  # little, middle, prime
        (sizes("cpu_capacity", [414] * 4 + [1024] * 4), [0, 1], (0, 1)),  # only little ones may be used: they are it
        (sizes("cpu_capacity", [1024] * 4), range(4), (0, 1, 2, 3)),
        ({"sys/devices/cpu_core/cpus": "0-3"}, range(8), (0, 1, 2, 3)),  # Intel's hybrids
        ({"sys/devices/cpu_core/cpus": "0-3"}, [4, 5], (4, 5)),
        ({"sys/devices/cpu_core/cpus": "0,2-3"}, range(8), (0, 2, 3)),
        ({"sys/devices/cpu_core/cpus": "damaged-1"}, range(2), (0, 1)),
        (sizes("cpufreq/cpuinfo_max_freq", [1800000] * 4 + [2400000] * 2), range(6), (0, 1, 2, 3, 4, 5)),
        (sizes("cpufreq/cpuinfo_max_freq", [1200000] * 4 + [2400000] * 2), range(6), (4, 5)),
        (sizes("cpufreq/cpuinfo_max_freq", [1200000] * 4), range(6), (0, 1, 2, 3, 4, 5)),  # not known of all
    ],
)
def test_big_cores(tmp_path: Path, files: dict[str, str], cpus: Any, big: tuple[int, ...]) -> None:
    assert big_cores(cpus, fake(tmp_path, files)) == big


def test_only_big_cores_compute(tmp_path: Path) -> None:
    files = sizes("cpu_capacity", [414] * 4 + [1024] * 4)
    choice = choose_threads(None, settings({}), root=fake(tmp_path, files), cpus=range(8))
    assert (choice.n_threads, choice.reason) == (4, "4 big cores of 8")
    assert choice.automatic


@pytest.mark.parametrize("asked", [0, -1, 1.5, "2", True, 1025])
def test_numbers_that_are_none(asked: Any) -> None:
    with pytest.raises(SettingError, match="n_threads"):
        choose_threads(asked, settings({}))


def test_a_number_from_the_environment_that_is_none() -> None:
    with pytest.raises(SettingError, match="EDGEINFER_THREADS is 5000"):
        choose_threads(None, settings({"EDGEINFER_THREADS": "5000"}))


def test_this_machine_has_at_least_one() -> None:
    assert choose_threads(None, settings({})).n_threads >= 1
