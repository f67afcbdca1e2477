"""A smoke test on every Python from 3.10 to 3.13 found here: install the wheel from nothing and answer greedily."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .installed import build_wheel, install_whole
from .models import smollm2

VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def find_python(version: str) -> Path | None:
    """An interpreter of the version that runs: in pyenv's folder, or on the path."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = shutil.which(f"python{version}")
    candidates = [*pyenv.glob(f"versions/{version}.*/bin/python{version}"), *([Path(on_path)] if on_path else [])]
    for candidate in candidates:
        # a version manager's stand-in exists for versions that do not run, and a Debian python may lack venv
        code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_answers_on_every_python_found(version: str, wheel: Path, tmp_path: Path) -> None:
    base = find_python(version)
    if base is None:
        pytest.skip(f"needs a Python {version} with venv")
    python = install_whole(wheel, tmp_path / "venv", base)
    # an empty cache: the kernels are compiled by this Python and this Numba
    env = {**os.environ, "EDGEINFER_HOME": str(tmp_path / "home"), "EDGEINFER_CACHE": str(tmp_path / "cache")}
    command = [python.with_name("edgeinfer"), "run", smollm2(), "-p", "The capital of France is"]
    command += ["-n", "8", "--temp", "0", "--n-ctx", "256", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"]
