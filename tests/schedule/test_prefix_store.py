from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.schedule.prefix_store import PrefixStore
from edgeinfer.schedule.prefix_tree import Ids

from ..models import ROOT

PAGE = 4
MINE, OTHER = "ab" * 32, "cd" * 32
CAP = 1 << 30


def store(folder: Path, fingerprint: Any = MINE, cap: int = CAP) -> PrefixStore:
    return PrefixStore(folder, fingerprint, cap, page_size=PAGE)


def some_ids(n: int, start: int = 0) -> Ids:
    return np.arange(start, start + n, dtype=np.int32)


def contents(n: int, size: int = 100, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(size) for _ in range(n)]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_got_after_a_restart(tmp_path: Path) -> None:
    pages = contents(4)
    assert store(tmp_path).put(some_ids(19), pages)
    again = store(tmp_path)
    assert again.load_index() == 1
    assert list(again.get(some_ids(19))) == pages
    assert list(again.get(some_ids(100))) == pages
    assert list(again.get(some_ids(11))) == pages[:2]
    assert list(again.get(some_ids(19), first=3)) == pages[3:]
    assert list(again.get(some_ids(19), first=4)) == []
    assert list(again.get(some_ids(3))) == []
    assert list(again.get(some_ids(19, start=1))) == []
    assert again.covered(some_ids(40)) == 4
    stats = again.stats()
    assert (stats.files, stats.pages_read, stats.pages_written, stats.removed, stats.off) == (1, 11, 0, 0, "")
    assert stats.n_bytes == files(tmp_path)[0].stat().st_size == 4096 + 400


def test_runs_make_a_chain(tmp_path: Path) -> None:
    a, b, other = contents(2), contents(3, seed=1), contents(1, seed=2)
    here = store(tmp_path)
    assert here.put(some_ids(8), a)
    assert here.put(some_ids(20), b, first=2)
    branch = np.concatenate([some_ids(8), some_ids(4, start=70)])
    assert here.put(branch, other, first=2)
    assert list(here.get(some_ids(20))) == [*a, *b]
    assert list(here.get(branch)) == [*a, *other]
    assert here.covered(some_ids(20)) == 5
    files_of = {path.name.split("-")[1]: path for path in files(tmp_path)}
    assert len(files(tmp_path)) == 3
    files_of["0"].unlink()
    assert list(here.get(some_ids(20))) == []  # a beginning is missing
    assert list(here.get(some_ids(20), first=2)) == b


def test_the_tokens_decide_and_not_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixStore, "_hash", lambda self, ids: "0" * 32)  # every prompt has the same hash
    here = store(tmp_path)
    assert here.put(some_ids(8), contents(2))
    assert list(here.get(some_ids(8, start=1))) == []
    assert list(here.get(np.array([0, 1, 2, 3, 9, 9, 9, 9], np.int32))) == contents(2)[:1]
    assert len(files(tmp_path)) == 1


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store(tmp_path / "prefix").put(some_ids(8), contents(2))
    finally:
        os.umask(old)
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o755)
    store(tmp_path / "prefix").put(some_ids(8, 50), contents(2))
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_nothing_is_touched_before_the_first_look(tmp_path: Path) -> None:
    def never() -> str:
        raise RuntimeError("asked")

    here = store(tmp_path / "prefix", never)
    assert here.writable
    assert list(here.get(some_ids(8))) == []
    assert not here.writable
    assert here.stats().off == "asked"
    assert not here.put(some_ids(8), contents(2))
    assert not (tmp_path / "prefix").exists()


# damage


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    """The bytes of a file of three pages."""
    store(tmp_path / "made").put(some_ids(12), contents(3))
    return files(tmp_path / "made")[0].read_bytes()


def damaged(tmp_path: Path, data: bytes) -> tuple[list[bytes], bool]:
    """What is read from a file with these bytes, and whether the file is still there."""
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tmp_path / "made", folder)
    (path,) = files(folder)
    path.write_bytes(data)
    return list(store(folder).get(some_ids(12))), path.exists()


HEAD = [0, 7, 8, 11, 12, 15, 16, 47, 48, 79, 80, 84, 88, 92, 96, 103, 104, 151, 152, 163, 164, 200, 4095]


def test_cut_short_anywhere(tmp_path: Path, whole: bytes) -> None:
    assert len(whole) == 4096 + 300
    for n in [*HEAD, 4096, 4097, 4195, 4196, 4197, 4295, 4296, 4395]:
        assert damaged(tmp_path, whole[:n]) == ([], False)
    assert damaged(tmp_path, whole + b"\0") == ([], False)
    assert damaged(tmp_path, whole) == (contents(3), True)


def test_any_flipped_bit(tmp_path: Path, whole: bytes) -> None:
    for at in [*HEAD, 4096, 4150, 4195, 4196, 4296, 4395]:
        for bit in (1, 128):
            data = bytearray(whole)
            data[at] ^= bit
            got, there = damaged(tmp_path, bytes(data))
            assert not there
            assert got == contents(3)[: max(0, (at - 4096) // 100)]  # pages before the damaged one are sound


def test_other_things_under_the_name(tmp_path: Path, whole: bytes) -> None:
    for data in (b"", b"\0" * 5000, b"<html>" * 1000, os.urandom(6000), whole[:8] + b"\xff" * 5000):
        assert damaged(tmp_path, data) == ([], False)


def test_a_directory_a_pipe_a_link_and_a_locked_file(tmp_path: Path, whole: bytes) -> None:
    made = files(tmp_path / "made")[0]
    outside = tmp_path / "outside"
    outside.write_bytes(whole)
    for make in (
        lambda p: p.mkdir(),
        os.mkfifo,
        lambda p: p.symlink_to(outside),
        lambda p: p.symlink_to(tmp_path / "no"),
    ):
        made.unlink(missing_ok=True)
        make(made)
        assert list(store(tmp_path / "made").get(some_ids(12))) == []
        assert not made.is_symlink()
        if made.is_dir():
            made.rmdir()
        assert not made.exists()
    assert outside.read_bytes() == whole


def test_a_file_that_may_not_be_read(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".kv"):
            raise PermissionError(errno.EACCES, "no")
        return plain(path, *rest, **more)

    monkeypatch.setattr("edgeinfer.schedule.prefix_file.os.open", refuse)
    assert list(store(tmp_path / "made").get(some_ids(12))) == []
    assert files(tmp_path / "made") == []


def test_an_error_that_may_pass_removes_nothing(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    here = store(tmp_path / "made")
    with monkeypatch.context() as patch:
        patch.setattr("edgeinfer.schedule.prefix_store.open_run", fail)
        assert list(here.get(some_ids(12))) == []
    assert len(files(tmp_path / "made")) == 1
    assert list(store(tmp_path / "made").get(some_ids(12))) == contents(3)


def test_a_second_file_with_the_same_page_helps(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.put(some_ids(12), contents(3))
    here.put(some_ids(8), contents(2))
    long = max(files(tmp_path), key=lambda path: path.stat().st_size)
    data = bytearray(long.read_bytes())
    data[4096 + 100] ^= 1
    long.write_bytes(data)
    assert list(here.get(some_ids(12))) == contents(2)  # the first page of the long one, the second of the short one
    assert here.stats().removed == 1
    assert not long.exists()


def test_what_another_model_made_is_not_read(tmp_path: Path, whole: bytes) -> None:
    other = store(tmp_path / "made", OTHER)
    assert list(other.get(some_ids(12))) == []
    (path,) = files(tmp_path / "made")
    moved = tmp_path / "made" / OTHER[:32]
    moved.mkdir()
    shutil.copy(path, moved / path.name)
    assert list(other.get(some_ids(12))) == []  # not even when it is put into the folder
    assert files(tmp_path / "made") == [path]
    assert list(PrefixStore(tmp_path / "made", MINE, CAP, page_size=2).get(some_ids(12))) == []


def test_a_file_under_the_name_of_another(tmp_path: Path, whole: bytes) -> None:
    (path,) = files(tmp_path / "made")
    head, _, count, tail = path.name.split("-")
    path.rename(path.with_name(f"{head}-1-{count}-{tail}"))
    assert list(store(tmp_path / "made").get(some_ids(12), first=1)) == []


# the disk


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    size = 4096 + 400
    here = store(tmp_path, cap=3 * size)
    for i in range(3):
        assert here.put(some_ids(16, 100 * i), contents(4, seed=i))
        os.utime(files(tmp_path)[-1])
        time.sleep(0.01)
    assert list(here.get(some_ids(16))) == contents(4)  # so it is not the oldest any more
    time.sleep(0.01)
    other = store(tmp_path, OTHER, cap=3 * size)
    assert other.put(some_ids(16, 900), contents(4, seed=9))
    assert list(here.get(some_ids(16, 100))) == []
    assert list(here.get(some_ids(16))) == contents(4)
    assert list(here.get(some_ids(16, 200))) == contents(4, seed=2)
    assert list(other.get(some_ids(16, 900))) == contents(4, seed=9)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 3 * size


def test_a_prefix_larger_than_the_cap_removes_nothing(tmp_path: Path) -> None:
    here = store(tmp_path, cap=6000)
    assert here.put(some_ids(16), contents(4))
    assert not here.put(some_ids(80, 500), contents(20))
    assert list(here.get(some_ids(16))) == contents(4)
    assert here.writable


def test_the_default_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, cap in ((1 << 40, 512 << 20), (1 << 30, (1 << 30) // 20)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(1 << 41, 0, free))
        assert store(tmp_path, cap=0).stats().max_bytes == cap


@pytest.mark.parametrize("where", ["pwrite", "fsync", "replace", "open", "mkdir", "space"])
def test_a_disk_that_fails_turns_writing_off_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    caplog.set_level(logging.INFO)

    def fail(*arguments: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    here = store(tmp_path / "prefix")
    assert here.put(some_ids(8), contents(2))
    with monkeypatch.context() as patch:
        if where == "mkdir":
            patch.setattr(Path, "mkdir", fail)
        elif where == "space":
            patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 41, 0, 1000))
        elif where == "open":
            plain = os.open
            patch.setattr(
                os, "open", lambda path, flags, *rest: fail() if flags & os.O_CREAT else plain(path, flags, *rest)
            )
        else:
            patch.setattr(os, where, fail)
        assert not here.put(some_ids(8, 50), contents(2))
        assert not here.put(some_ids(8, 60), contents(2))
    assert not here.writable
    assert not here.put(some_ids(8, 70), contents(2))
    assert len(caplog.records) == 1
    assert "is not written any more" in caplog.text
    assert here.stats().off
    left = files(tmp_path)
    assert [path.suffix for path in left] == ([".kv"] if where != "space" else [])  # nothing half-written
    if where != "space":
        assert list(here.get(some_ids(8))) == contents(2)  # what is there is still used


def test_what_the_pages_raise_comes_through_and_leaves_nothing(tmp_path: Path) -> None:
    def pages() -> Iterator[bytes]:
        yield b"x" * 100
        raise KeyError("gone")

    here = store(tmp_path)
    with pytest.raises(KeyError):
        here.put(some_ids(12), pages())
    assert files(tmp_path) == []
    assert here.writable


def test_the_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = store(tmp_path)
    assert here.put(some_ids(8), contents(2))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not here.put(some_ids(8, 50), contents(2))
    assert "belongs to another user" in here.stats().off


def test_a_read_only_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store(tmp_path).put(some_ids(8), contents(2))

    def fail(*arguments: Any, **more: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "unlink", "replace"):
        monkeypatch.setattr(os, name, fail)
    assert list(store(tmp_path).get(some_ids(8))) == contents(2)


CHILD = """
import os, signal, sys
import numpy as np
from pathlib import Path
from edgeinfer.schedule.prefix_store import PrefixStore
folder, end = Path(sys.argv[1]), sys.argv[2]
def pages():
    for i in range(3):
        if end == str(i):
            os.kill(os.getpid(), signal.SIGKILL)
        yield bytes([i]) * 100
if end == "fsync":
    os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
PrefixStore(folder, "ab" * 32, 1 << 30, page_size=4).put(np.arange(12, dtype=np.int32), pages())
"""


@pytest.mark.parametrize("end", ["1", "2", "fsync"])
def test_a_process_that_is_killed_while_it_writes(tmp_path: Path, end: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), end], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    (left,) = files(tmp_path)
    assert left.suffix == ".tmp"
    here = store(tmp_path)
    assert list(here.get(some_ids(12))) == []
    assert here.put(some_ids(8, 50), contents(2))
    assert left.exists()  # it could be young: a process may have made it this moment
    os.utime(left, (1, 1))
    assert here.put(some_ids(8, 60), contents(2))
    assert not left.exists()
    assert len(files(tmp_path)) == 2


def test_a_temporary_file_that_is_being_written_stays(tmp_path: Path) -> None:
    here, second = store(tmp_path), store(tmp_path)

    def pages() -> Iterator[bytes]:
        yield b"x" * 100
        (beside,) = [path for path in files(tmp_path) if path.suffix == ".tmp"]
        os.utime(beside, (1, 1))
        assert second.put(some_ids(8, 50), contents(2))
        assert beside.exists()
        yield b"y" * 100

    assert here.put(some_ids(8), pages())
    assert list(second.get(some_ids(8))) == [b"x" * 100, b"y" * 100]


def test_one_process_sees_what_another_wrote(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    assert first.load_index() == second.load_index() == 0
    assert first.put(some_ids(8), contents(2))
    assert list(second.get(some_ids(8))) == contents(2)
    assert second.put(some_ids(12), contents(3)[2:], first=2)
    assert list(first.get(some_ids(12))) == contents(3)
    for path in files(tmp_path):
        path.unlink()
    assert list(first.get(some_ids(12))) == []
    assert list(second.get(some_ids(12))) == []
    assert first.stats().removed == 0


def _hammer(folder: str, seed: int) -> None:
    """Write and read at random, under a cap that only a few files fit under; every page read must be right."""
    rng = np.random.default_rng(seed)
    here = PrefixStore(Path(folder), MINE, 5 * (4096 + 800), page_size=PAGE)
    for _ in range(120):
        start, n = int(rng.integers(8)) * 100, int(rng.integers(2, 9))
        ids = some_ids(n * PAGE, start)
        pages = [bytes([start // 100, i]) * 50 for i in range(n)]
        got = list(here.get(ids))
        if got != pages[: len(got)]:
            raise SystemExit(3)
        have = here.covered(ids)
        if have < n:
            here.put(ids, pages[have:], have)
        if not here.writable:
            raise SystemExit(4)


def test_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_hammer, args=(str(tmp_path), seed)) for seed in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert all(path.suffix == ".kv" for path in files(tmp_path))
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 7 * (4096 + 800)  # each may have overlooked one
