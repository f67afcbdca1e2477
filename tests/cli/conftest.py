"""The command line called inside the test's own process, with an echoing model."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli.main import main

from .echo import install


@dataclass
class Result:
    """What a call of the command line gave."""

    code: int
    out: str
    err: str


@dataclass
class Command:
    """Calls `edgeinfer`."""

    capture: Any
    patch: pytest.MonkeyPatch
    model: str = ""  # path of a file that stands for the echoing model
    plain: str = ""  # the same, without a chat template
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, *arguments: str, stdin: bytes | None = b"") -> Result:
        """Call it with arguments; stdin None is a closed one."""
        closed: Any = None
        self.patch.setattr(sys, "stdin", closed if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        self.capture.readouterr()
        code = main(list(arguments))
        out, err = self.capture.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)


@pytest.fixture
def edgeinfer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("edgeinfer.store.discover._ollama_folders", lambda settings: [settings.ollama_models])
    command = Command(capsys, monkeypatch, calls=install(monkeypatch.setattr))
    for name in ("model", "plain"):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(b"GGUF" + bytes(100))
        setattr(command, name, str(path))
    return command
