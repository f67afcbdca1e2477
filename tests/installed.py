"""Builds the wheel and installs it somewhere else, for tests of what a user gets."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from .models import ROOT

__all__ = ["build_wheel", "install_beside", "install_whole"]


def _run(*command: str | Path, **kwargs: object) -> None:
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into `folder`, with the build backend of the running Python."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _run(*pip, "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("edgeinfer-*.whl")
    return wheel


def install_beside(wheel: Path, folder: Path) -> Path:
    """Install the wheel alone into a new venv that borrows this Python's dependencies; return the venv's python."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    # a folder named in a .pth file is searched, but its own .pth files, such as our editable install, are not read
    Path(site, "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return python


def install_whole(wheel: Path, folder: Path, base: Path) -> Path:
    """Install the wheel and its dependencies into a new venv of the interpreter `base`; return its python."""
    _run(base, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel)
    return python
