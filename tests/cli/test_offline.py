"""Chatting opens no socket: a pulled model works without any network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..models import ROOT

GUARD = """
import sys
def guard(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        print("SOCKET", event, arguments, file=sys.stderr)
sys.addaudithook(guard)
"""


def chat(code: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    call = f"{GUARD}\n{code}\nfrom edgeinfer.cli.main import main\nsys.exit(main({list(arguments)!r}))"
    env = {**os.environ, "EDGEINFER_HOME": str(home)}
    command = [sys.executable, "-c", call]
    text = "What is the capital of France?"
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)


def test_the_guard_sees_a_socket(tmp_path: Path) -> None:
    code = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('127.0.0.1', 0))"
    assert "SOCKET socket.bind" in chat(code, "--version", home=tmp_path).stderr


def test_chat_opens_no_socket(tmp_path: Path) -> None:
    done = chat("from tests.cli import echo; echo.install()", "chat", "pyproject.toml", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "echo: What is the capital of France?\n")
    assert "SOCKET" not in done.stderr


@pytest.mark.slow
def test_chat_with_a_real_model_opens_no_socket(smollm2_path: Path, tmp_path: Path) -> None:
    done = chat("", "chat", str(smollm2_path), "--temp", "0", "-n", "16", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 2
    assert "SOCKET" not in done.stderr
