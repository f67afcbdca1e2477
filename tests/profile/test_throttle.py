"""A processor that slows down is noticed, on a file system of the test's own."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.profile.throttle import ThrottleWatch


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def clock(root: Path, khz: int) -> None:
    for cpu in (0, 1):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", f"{khz}\n")


def watch(root: Path, load: float = 0.0) -> ThrottleWatch:
    return ThrottleWatch(root, load=load, n_cpus=4)


def test_a_system_that_tells_nothing_is_no_reason_for_a_note(tmp_path: Path) -> None:
    assert watch(tmp_path).notes() == []


def test_a_clock_that_falls_half_way_is_mentioned(tmp_path: Path) -> None:
    clock(tmp_path, 2_400_000)
    seen = watch(tmp_path)
    seen.sample()
    clock(tmp_path, 1_500_000)
    seen.sample()
    assert seen.notes() == ["the CPU clock fell from 2400 to 1500 MHz while this was measured"]


def test_a_clock_that_only_trembles_is_not(tmp_path: Path) -> None:
    clock(tmp_path, 2_400_000)
    seen = watch(tmp_path)
    clock(tmp_path, 2_200_000)
    assert seen.notes() == []


def test_a_raspberry_pi_says_why(tmp_path: Path) -> None:
    flags = "sys/devices/platform/soc/soc:firmware/get_throttled"
    put(tmp_path, flags, "0\n")
    seen = watch(tmp_path)
    put(tmp_path, flags, "50005\n")  # under-voltage and throttled, now and before
    seen.sample()
    put(tmp_path, flags, "50000\n")  # over, but it happened while we looked
    assert seen.notes() == ["the board reports: under-voltage, throttled"]


def test_counters_count_from_the_start(tmp_path: Path) -> None:
    heat = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    quota = "sys/fs/cgroup/cpu.stat"
    put(tmp_path, heat, "7\n")
    put(tmp_path, quota, "usage_usec 1\nnr_throttled 3\n")
    seen = watch(tmp_path)
    assert seen.notes() == []
    put(tmp_path, heat, "9\n")
    put(tmp_path, quota, "usage_usec 2\nnr_throttled 8\n")
    assert seen.notes() == [
        "the CPU was throttled because it was too hot",
        "the CPU quota of this container held the process back 5 times",
    ]


def test_a_busy_machine_is_mentioned(tmp_path: Path) -> None:
    assert "load average 3.5 on 4 CPUs" in watch(tmp_path, load=3.5).notes()[0]
    assert watch(tmp_path, load=0.5).notes() == []


def test_files_that_hold_no_number_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "<unknown>\n")
    put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", "\n")
    assert watch(tmp_path).notes() == []
