"""The scripts make .venv from nothing, refuse in one sentence where they cannot, and keep stdout for answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ..models import ROOT

FACTS = "3 12 64 other venv"  # what lib.sh's probe prints about a good interpreter


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts in a folder of their own, with nothing installed; blanks in its path must not matter."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def fake_python(folder: Path, name: str, facts: str, venv: str = "exit 1") -> None:
    """An interpreter that answers the probe with `facts` and does `venv` when asked to make a venv."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/bash\ncase "$2" in venv) {venv};; *) echo "{facts}";; esac\n')
    path.chmod(0o755)


def tools(folder: Path) -> Path:
    """A folder with the few commands that the scripts need, and no Python."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("bash", "env", "dirname", "cksum", "cat", "mkdir", "chmod", "ln"):
        found = shutil.which(name)
        assert found, f"this test needs {name}"
        (folder / name).symlink_to(found)
    return folder


def start(script: Path, path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": str(path), "HOME": str(path), **env},
    )


@pytest.mark.parametrize(
    ("name", "facts", "sentence"),
    [
        ("python3", "3 9 64 other venv", "python3 is Python 3.9, and edgeinfer needs Python 3.10 or newer"),
        ("python3", "2 7 64 other novenv", "python3 is Python 2.7, and edgeinfer needs Python 3.10 or newer"),
        ("python3.11", "3 11 32 other venv", "python3.11 is a 32-bit Python; edgeinfer needs a 64-bit system"),
        ("python3.12", "3 12 64 musl venv", "python3.12 is built for musl (as on Alpine)"),
        ("python3", "3 11 64 other novenv", "install what it lacks with: sudo apt install python3-venv"),
        ("unrelated", "", "found no Python; install Python 3.10 or newer"),
    ],
)
def test_unusable_python_is_refused_in_one_sentence(
    checkout: Path, tmp_path: Path, name: str, facts: str, sentence: str
) -> None:
    path = tools(tmp_path / "bin")
    fake_python(path, name, facts)
    done = start(checkout / "scripts" / "chat", path)
    assert done.returncode == 13
    assert sentence in done.stderr
    assert done.stderr.startswith("edgeinfer: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (checkout / ".venv").exists()


def test_named_python_that_does_not_run_is_refused(checkout: Path, tmp_path: Path) -> None:
    done = start(checkout / "scripts" / "chat", tools(tmp_path / "bin"), PYTHON="/no where/python")
    assert done.returncode == 13
    assert done.stderr == "edgeinfer: PYTHON=/no where/python is not a Python that runs; wanted Python 3.10 or newer.\n"


def test_newest_usable_python_is_chosen_and_a_second_start_installs_nothing(checkout: Path, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin")
    fake_python(path, "python3.10", "3 10 64 other venv")
    fake_python(path, "python3.13", "3 13 64 other novenv")  # newer, but of no use
    fake_python(path, "python3.11", "3 9 64 other venv")  # a name that lies is not believed
    made = (
        'for last; do :; done; mkdir -p "$last/bin"; '
        'printf "#!/bin/bash\\necho \\"\\$@\\" >>\\"%s/log\\"\\n" "$last" >"$last/bin/python"; '
        'printf "#!/bin/bash\\necho \\"\\$@\\"; cat\\n" >"$last/bin/edgeinfer"; chmod +x "$last/bin/"*'
    )
    fake_python(path, "python3.12", FACTS, made)
    command = checkout / "scripts" / "chat"
    first = start(command, path, "some model", "--temp", "0")
    assert first.returncode == 0, first.stderr
    assert first.stdout == "chat some model --temp 0\n"
    assert "with python3.12" in first.stderr
    log = checkout / ".venv" / "log"
    assert log.read_text().count("pip install") == 1
    second = start(command, path)
    assert (second.returncode, second.stdout, second.stderr) == (0, "chat\n", "")
    assert log.read_text().count("pip install") == 1
    with open(checkout / "pyproject.toml", "a") as file:
        file.write("\n# changed\n")
    assert start(command, path).returncode == 0
    assert log.read_text().count("pip install") == 2


def test_failed_install_is_not_remembered(checkout: Path, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin")
    made = (
        'for last; do :; done; mkdir -p "$last/bin"; '
        'printf "#!/bin/bash\\n[ \\"\\$1\\" = -c ]\\n" >"$last/bin/python"; chmod +x "$last/bin/python"'
    )
    fake_python(path, "python3.12", FACTS, made)
    for _ in range(2):
        done = start(checkout / "scripts" / "chat", path)
        assert done.returncode == 13
        assert "the installation failed" in done.stderr


def test_compare_without_a_subject_says_how(checkout: Path, tmp_path: Path) -> None:
    done = start(checkout / "scripts" / "compare", tools(tmp_path / "bin"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: scripts/compare exactness|greedy")


@pytest.mark.parametrize("name", ["chat", "test", "check", "bench", "compare"])
def test_every_script_can_be_run(name: str) -> None:
    assert os.access(ROOT / "scripts" / name, os.X_OK)


def test_ci_runs_the_checks_and_every_test() -> None:
    lines = (ROOT / ".ci" / "run").read_text().split("\n")
    assert "scripts/check" in lines
    assert "scripts/test --all" in lines
