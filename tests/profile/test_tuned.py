"""Measured thread counts are used for their model, machine and kernels, and for no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.profile.threads import ThreadChoice, choose_threads
from edgeinfer.profile.tuned import Tuned, find_tuned, keep_tuned, threads_for, with_tuned
from edgeinfer.settings import Settings, settings

TUNED = Tuned(4, 2, {"1": 100.0, "2": 200.0, "4": 390.0}, {"1": 30.0, "2": 40.0, "4": 39.0}, "m.gguf")
CPUINFO = "proc/cpuinfo"


def board(root: Path, cpu: str = "Cortex-A76") -> Path:
    """A machine with a CPU of that name."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / CPUINFO).write_text(f"processor : 0\nmodel name : {cpu}\n")
    return root


@pytest.fixture
def here(tmp_path: Path) -> tuple[Settings, Path, Path]:
    """Settings with a cache folder, a model file and a machine."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    chosen = settings({"EDGEINFER_CACHE": str(tmp_path / "cache")})
    return chosen, model, board(tmp_path / "root")


def test_what_was_kept_is_found(here: tuple[Settings, Path, Path]) -> None:
    chosen, model, root = here
    assert find_tuned(chosen, model, "k1", root=root, cpus=range(4)) is None
    path = keep_tuned(chosen, model, "k1", TUNED, root=root, cpus=range(4))
    assert path.parent == chosen.cache / "threads"
    assert find_tuned(chosen, model, "k1", root=root, cpus=range(4)) == TUNED
    assert find_tuned(chosen, model, root=root, cpus=range(4)) == TUNED  # for showing, whatever the kernels
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no part is left


def test_it_is_not_used_for_anything_else(here: tuple[Settings, Path, Path], tmp_path: Path) -> None:
    chosen, model, root = here
    keep_tuned(chosen, model, "k1", TUNED, root=root, cpus=range(4))
    assert find_tuned(chosen, model, "k2", root=root, cpus=range(4)) is None  # other kernels
    assert find_tuned(chosen, model, "k1", root=root, cpus=range(2)) is None  # fewer CPUs
    assert find_tuned(chosen, model, "k1", root=board(tmp_path / "b", "Cortex-A78"), cpus=range(4)) is None
    quota = board(tmp_path / "c")
    (quota / "proc/self").mkdir()
    (quota / "proc/self/cgroup").write_text("0::/\n")
    (quota / "proc/self/mountinfo").write_text("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    (quota / "sys/fs/cgroup").mkdir(parents=True)
    (quota / "sys/fs/cgroup/cpu.max").write_text("300000 100000\n")
    assert find_tuned(chosen, model, "k1", root=quota, cpus=range(4)) is None
    os.utime(model, ns=(1, 1))  # another file of the same name
    assert find_tuned(chosen, model, "k1", root=root, cpus=range(4)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kernels": "k1"}', '{"kernels": "k1", "n_prefill": 0}'])
def test_a_damaged_file_is_as_good_as_none(here: tuple[Settings, Path, Path], text: str) -> None:
    chosen, model, root = here
    keep_tuned(chosen, model, "k1", TUNED, root=root, cpus=range(4)).write_text(text)
    assert find_tuned(chosen, model, "k1", root=root, cpus=range(4)) is None


def test_counts_that_cannot_be_are_not_used(here: tuple[Settings, Path, Path]) -> None:
    chosen, model, root = here
    path = keep_tuned(chosen, model, "k1", TUNED, root=root, cpus=range(4))
    for bad in (0, 5, "4"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "n_prefill": bad}))
        assert find_tuned(chosen, model, "k1", root=root, cpus=range(4)) is None


def test_a_folder_that_cannot_be_written_is_said(here: tuple[Settings, Path, Path]) -> None:
    chosen, model, root = here
    chosen.cache.write_text("a file in its place")
    with pytest.raises(SettingError, match="cannot be kept in"):
        keep_tuned(chosen, model, "k1", TUNED, root=root, cpus=range(4))


def test_it_takes_the_place_of_the_default_only(here: tuple[Settings, Path, Path]) -> None:
    chosen, _, root = here
    default = choose_threads(None, chosen, root=root, cpus=range(4))
    tuned = with_tuned(default, TUNED)
    assert (tuned.n_threads, tuned.phases()) == (4, {"batch": 4, "decode": 2})
    assert tuned.reason.startswith(
        "fastest in `edgeinfer bench --tune-threads` (prefill 1: 100, 2: 200, 4: 390, decode "
    )
    asked = choose_threads(3, chosen, root=root, cpus=range(4))
    assert with_tuned(asked, TUNED) == asked
    assert with_tuned(default, None) == default
    assert ThreadChoice(3, "x").phases() == {"batch": 3, "decode": 3}


def test_what_would_be_used_can_be_shown_without_the_kernels(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    chosen = settings({"EDGEINFER_CACHE": str(tmp_path / "cache")})
    assert threads_for(model, chosen) == choose_threads(None, chosen)
    keep_tuned(chosen, model, "k1", Tuned(1, 1, {"1": 9.0}, {"1": 8.0}, "m.gguf"))
    shown = threads_for(model, chosen)
    assert (shown.n_threads, shown.reason) == (1, "fastest in `edgeinfer bench --tune-threads` (1: 8 tok/s)")
    asked = settings({"EDGEINFER_CACHE": str(tmp_path / "cache"), "EDGEINFER_THREADS": "1"})
    assert threads_for(model, asked).reason == "EDGEINFER_THREADS"
