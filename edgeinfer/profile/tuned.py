"""The thread counts that `edgeinfer bench --tune-threads` measured as the fastest, kept in the cache folder.

A measurement holds for one model, one machine and one set of kernels. What it was made with is its key, so a changed
machine (CPU, cores it may use, quota), changed kernels or another file of the same name find nothing and the default is
used. A file that cannot be read is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..settings import Settings
from .threads import Cores, ThreadChoice, choose_threads, usable_cores

__all__ = ["Tuned", "board_key", "find_tuned", "keep_tuned", "model_key", "threads_for", "with_tuned"]

_VERSION = 1


@dataclass(frozen=True)
class Tuned:
    """The fastest thread counts of a model on this board, and what was measured."""

    n_prefill: int
    n_decode: int
    prefill_tok_s: dict[str, float]  # by thread count
    decode_tok_s: dict[str, float]
    model: str  # the file's name, for people

    @property
    def reason(self) -> str:
        """The choice in words."""
        if self.n_prefill == self.n_decode:
            return f"fastest in `edgeinfer bench --tune-threads` ({_say(self.decode_tok_s)} tok/s)"
        return (
            f"fastest in `edgeinfer bench --tune-threads` (prefill {_say(self.prefill_tok_s)}, decode "
            f"{_say(self.decode_tok_s)} tok/s)"
        )


def _say(rates: dict[str, float]) -> str:
    return ", ".join(f"{n}: {rate:.0f}" for n, rate in sorted(rates.items(), key=lambda item: int(item[0])))


def board_key(cores: Cores, root: Path = Path("/")) -> str:
    """What the measurement depends on of the machine, as a text: CPU, cores and quota."""
    cpu = ""
    try:
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "CPU part") and value.strip() not in cpu:
                cpu += value.strip() + " "
    except OSError:
        pass
    return f"{cpu.strip()}|cpus {','.join(map(str, cores.cpus))}|cores {cores.n_physical}|quota {cores.quota}"


def model_key(path: Path) -> str:
    """What tells a model file from others: its name, size and time of change."""
    found = path.stat()
    return f"{path.name}|{found.st_size}|{found.st_mtime_ns}"


def _path(settings: Settings, model: Path, board: str) -> Path:
    key = "\n".join((str(_VERSION), model_key(model), board))
    return settings.cache / "threads" / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def find_tuned(
    settings: Settings,
    model: Path,
    kernels: str | None = None,
    *,
    root: Path = Path("/"),
    cpus: Iterable[int] | None = None,
) -> Tuned | None:
    """What was measured for this model, these kernels (the name of their folder) and this machine, or None.

    Without `kernels`, whatever was measured for the model and the machine: for showing it where finding out about the
    kernels would cost too much.
    """
    cores = usable_cores(root, cpus)
    try:
        raw: Any = json.loads(_path(settings, model, board_key(cores, root)).read_text(encoding="utf-8"))
        measured_with = raw.pop("kernels")
        found = Tuned(**raw)
        counts = (found.n_prefill, found.n_decode)
        good = all(isinstance(n, int) and 1 <= n <= cores.most for n in counts) and bool(found.reason)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None
    return found if good and kernels in (None, measured_with) else None


def keep_tuned(
    settings: Settings,
    model: Path,
    kernels: str,
    tuned: Tuned,
    *,
    root: Path = Path("/"),
    cpus: Iterable[int] | None = None,
) -> Path:
    """Write a measurement down, whole or not at all; returns its file. Raises SettingError when that is not possible."""
    path = _path(settings, model, board_key(usable_cores(root, cpus), root))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as part:
            json.dump({**asdict(tuned), "kernels": kernels}, part)
        os.replace(part.name, path)
    except OSError as error:
        raise SettingError(f"the measured thread counts cannot be kept in {path.parent}: {error}") from error
    return path


def with_tuned(choice: ThreadChoice, tuned: Tuned | None) -> ThreadChoice:
    """The choice with measured numbers in its place, where nobody asked for a number."""
    if tuned is None or not choice.automatic:
        return choice
    n = max(tuned.n_prefill, tuned.n_decode)
    return replace(choice, n_threads=n, reason=tuned.reason, n_prefill=tuned.n_prefill, n_decode=tuned.n_decode)


def threads_for(model: Path, settings: Settings) -> ThreadChoice:
    """The threads that this model would be loaded with here, for showing: whether the kernels are still those that were
    measured is not looked at."""
    choice = choose_threads(None, settings)
    return with_tuned(choice, find_tuned(settings, model)) if choice.automatic else choice
