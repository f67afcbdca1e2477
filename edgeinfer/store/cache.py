"""The folder of pulled models and what is written in it.

models/NAME/FILE.gguf      the model, or all of its shards
models/NAME/model.json     source, sizes and checksums: only a folder with this file is ours to remove
models/.partial/NAME/      what an interrupted pull left
models/.locks/NAME.lock    held while one process pulls or removes NAME
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DownloadError, NotFoundError, SettingError
from ..settings import Settings
from .progress import Progress

__all__ = [
    "LocalModel",
    "Record",
    "check_name",
    "find_pulled",
    "lock",
    "look",
    "models_folder",
    "partial_folder",
    "pulled",
    "quant_of",
    "remove",
]

RECORD = "model.json"


@dataclass(frozen=True)
class LocalModel:
    """A GGUF file on this disk that has a name."""

    name: str
    path: Path  # the file, or the first of its shards
    size: int  # bytes, all shards together
    quant: str  # "" where neither the record nor the file name tells
    owner: str  # "edgeinfer", "folder" (put there by hand), "huggingface", "ollama" or "lmstudio"
    source: str = ""  # what was pulled
    sha256: str = ""
    licence: str = ""
    problem: str = ""  # why it cannot be used; "" when nothing was seen


@dataclass(frozen=True)
class Record:
    """What model.json says about a pulled model."""

    source: str  # what the user asked for
    files: tuple[tuple[str, int, str], ...]  # file name, bytes, SHA-256
    quant: str = ""
    licence: str = ""

    def write(self, folder: Path) -> None:
        """Write the record into a model's folder, beside and renamed."""
        table = {
            "version": 1,
            "source": self.source,
            "quant": self.quant,
            "licence": self.licence,
            "files": [{"name": name, "size": size, "sha256": sha256} for name, size, sha256 in self.files],
        }
        beside = folder / (RECORD + ".new")
        beside.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        beside.replace(folder / RECORD)

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read a model's record. Raises ValueError or OSError when it is missing or damaged."""
        table: Any = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        try:
            files = tuple((str(f["name"]), int(f["size"]), str(f["sha256"])) for f in table["files"])
            record = cls(str(table["source"]), files, str(table.get("quant", "")), str(table.get("licence", "")))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{RECORD} lacks {error}") from error
        if not files or any(Path(name).name != name or name in ("", ".", "..") for name, _, _ in files):
            raise ValueError(f"{RECORD} names no file of its own folder")
        return record


def models_folder(settings: Settings) -> Path:
    """Where pulled models live."""
    return settings.home / "models"


def partial_folder(settings: Settings, name: str) -> Path:
    """Where the unfinished pull of a name lives."""
    return models_folder(settings) / ".partial" / name


def look(path: Path) -> str:
    """Say in a few words why a file cannot be a GGUF model, from its first bytes; "" when it may be one."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if head[:4] == b"GGUF":
        return "" if len(head) >= 24 else "truncated"
    if not head:
        return "empty file"
    start = head.lstrip()[:64].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, not a model"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the model itself"
    if start.startswith(b"{"):
        return "JSON text, not a model"
    if head[:4] in (b"tjgg", b"fmgg", b"lmgg", b"algg"):
        return "a GGML file of before GGUF"
    return "no GGUF file"


def quant_of(file: str) -> str:
    """Guess the quant from a file name such as model-Q4_K_M.gguf; "" when it holds none."""
    pattern = r"(?<![A-Za-z0-9])(I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32|FP16|FP32)(?![A-Za-z0-9])"
    found: list[str] = re.findall(pattern, file.upper())
    return found[-1] if found else ""


def _pulled_folder(folder: Path) -> LocalModel | None:
    ggufs = sorted(folder.glob("*.gguf"))
    if not (folder / RECORD).exists():
        if not ggufs:
            return None
        path = ggufs[0]
        return LocalModel(folder.name, path, path.stat().st_size, quant_of(path.name), "folder", problem=look(path))
    try:
        record = Record.read(folder)
    except (OSError, ValueError) as error:
        path = ggufs[0] if ggufs else folder
        problem = f"its {RECORD} is damaged ({error}); pull it again"
        return LocalModel(folder.name, path, 0, "", "edgeinfer", problem=problem)
    path = folder / record.files[0][0]
    problem = ""
    for name, size, _ in record.files:
        try:
            found = (folder / name).stat().st_size
        except OSError:
            problem = problem or f"{name} is missing; pull it again"
            continue
        if found != size:
            problem = problem or f"{name} has {found} bytes, not {size}; pull it again"
    sha256 = record.files[0][2] if len(record.files) == 1 else ""
    total = sum(size for _, size, _ in record.files)
    problem = problem or look(path)
    return LocalModel(
        folder.name, path, total, record.quant, "edgeinfer", record.source, sha256, record.licence, problem
    )


def pulled(settings: Settings) -> list[LocalModel]:
    """List what lies in the models folder, by name. A broken entry is listed with its problem, never raised."""
    found: list[LocalModel] = []
    try:
        entries = sorted(models_folder(settings).iterdir())
    except OSError:
        return []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            if entry.is_dir():
                model = _pulled_folder(entry)
            elif entry.suffix.lower() == ".gguf":
                size = entry.stat().st_size
                model = LocalModel(entry.stem, entry, size, quant_of(entry.name), "folder", problem=look(entry))
            else:
                model = None
        except OSError as error:
            model = LocalModel(entry.name, entry, 0, "", "folder", problem=f"cannot be read: {error.strerror or error}")
        if model:
            found.append(model)
    return found


def find_pulled(settings: Settings, name: str) -> LocalModel | None:
    """Return the model of that name, or that was pulled from that source, whatever its case; or None."""
    models = pulled(settings)
    wanted = name.strip().lower()
    by_name = next((model for model in models if model.name.lower() == wanted), None)
    return by_name or next((model for model in models if model.source and model.source.lower() == wanted), None)


def check_name(name: str) -> str:
    """Return a name that may be a folder. Raises SettingError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,119}", name):
        raise SettingError(f"model name {name!r} is not usable; wanted letters, digits and . _ + - (at most 120)")
    return name


@contextmanager
def lock(settings: Settings, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of a name; wait, saying so once, while another process pulls or removes it.

    The kernel frees the lock of a process that dies. Lock files stay: removing one would let two processes hold "it".
    """
    folder = models_folder(settings) / ".locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot write to {folder}: {reason}; EDGEINFER_HOME chooses another folder") from error
    try:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress.status(f"another edgeinfer is busy with {name}; waiting for it")
                told = True
                time.sleep(0.2)
            except OSError as error:
                raise DownloadError(f"cannot lock {folder / name}.lock: {error.strerror or error}") from error
        yield
    finally:
        os.close(handle)


def remove(settings: Settings, name: str, progress: Progress) -> int:
    """Remove a model that edgeinfer pulled and return the bytes freed; files that are not in its record stay.

    Raises NotFoundError when there is no such model and SettingError when it is not edgeinfer's to remove.
    """
    model = find_pulled(settings, name)
    if model is None:
        raise NotFoundError(f"there is no pulled model named {name!r}; `edgeinfer models` lists what is there")
    if model.owner != "edgeinfer":
        raise SettingError(f"{model.path} was not pulled by edgeinfer; remove the file by hand")
    with lock(settings, model.name, progress):
        folder = models_folder(settings) / model.name
        try:
            names = [file for file, _, _ in Record.read(folder).files]
        except (OSError, ValueError):
            names = [path.name for path in folder.glob("*.gguf")]
        freed = 0
        try:
            for path in [folder / file for file in names] + [folder / RECORD]:
                if path.exists() or path.is_symlink():
                    freed += path.lstat().st_size
                    path.unlink()
            shutil.rmtree(partial_folder(settings, model.name), ignore_errors=True)
            if not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:
            raise DownloadError(f"cannot remove {folder}: {error.strerror or error}") from error
    return freed
