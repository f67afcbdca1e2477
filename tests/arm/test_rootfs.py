"""scripts/arm_rootfs says in a sentence where it cannot work, with a code of its own, and leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ..models import ROOT


@pytest.mark.parametrize(
    ("uname", "sentence"),
    [
        ("case $1 in -s) echo Linux;; *) echo aarch64;; esac", "set up on x86-64 Linux; this is Linux on aarch64."),
        ("case $1 in -s) echo Darwin;; *) echo x86_64;; esac", "set up on x86-64 Linux; this is Darwin on x86_64."),
        ("case $1 in -s) echo Linux;; *) echo x86_64;; esac", ""),  # no apt-get, whatever the distribution
    ],
)
def test_elsewhere_it_is_unavailable(tmp_path: Path, uname: str, sentence: str) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "cat"):
        found = shutil.which(name)
        assert found, f"this test needs {name}"
        (tools / name).symlink_to(found)
    fake = tools / "uname"
    fake.write_text(f"#!/bin/bash\n{uname}\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "scripts" / "arm_rootfs")],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": str(tools), "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 77
    assert done.stderr.startswith("edgeinfer: no ARM64 emulation here: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scripts", "tools"]
