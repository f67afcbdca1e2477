"""The built wheel installs and runs outside the checkout, and carries its data and licence."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from .installed import build_wheel, install_beside
from .models import ROOT
from .tiny import build_tiny


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_beside(wheel, tmp_path_factory.mktemp("venv") / "venv")


def run(python: Path, *arguments: str | Path, cwd: Path) -> str:
    """Run `edgeinfer ARGUMENTS` of an installation from a folder that is not the checkout; return its stdout."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [python.with_name("edgeinfer"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_package_data_licence_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "edgeinfer/_data/models/manifest.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "scripts"))]


def test_wheel_holds_every_module_of_the_checkout(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in (ROOT / "edgeinfer").rglob("*.py")}


def test_installed_package_is_the_wheel_and_not_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import edgeinfer; print(edgeinfer.__file__)"
    where = subprocess.run([installed, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path).stdout
    assert where.startswith(str(installed.parent.parent))


def test_installed_version(wheel: Path, installed: Path, tmp_path: Path) -> None:
    version = wheel.name.split("-")[1]
    assert run(installed, "--version", cwd=tmp_path) == f"edgeinfer {version}\n"
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


def test_installed_models_finds_the_manifest(installed: Path, tmp_path: Path) -> None:
    assert json.loads(run(installed, "models", "--json", cwd=tmp_path)) is not None
    code = "from importlib.resources import files; print(files('edgeinfer') / '_data/models/manifest.toml')"
    path = subprocess.run([installed, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path).stdout.strip()
    assert "smollm2-135m" in Path(path).read_text()


def test_installed_inspect_reads_a_file(installed: Path, tmp_path: Path) -> None:
    tiny = build_tiny(tmp_path / "tiny.gguf")
    assert "llama" in run(installed, "inspect", tiny, cwd=tmp_path)
