from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..store.made import gguf_bytes
from ..store.server import FileServer, serving

DATA = gguf_bytes(100_000)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


@pytest.fixture
def pulled(edgeinfer: Any, server: FileServer) -> Path:
    server.file("/m.gguf", DATA)
    return Path(edgeinfer("pull", f"{server.url}/m.gguf").out.strip())


def test_yes(edgeinfer: Any, pulled: Path) -> None:
    done = edgeinfer("rm", "m", "--yes")
    assert (done.code, done.out) == (0, "")
    assert done.err == "removed m: 0.1 MB freed\n"
    assert not pulled.parent.exists()
    again = edgeinfer("rm", "m", "--yes")
    assert again.code == 5
    assert "no pulled model named 'm'" in again.err


def test_without_a_terminal_it_wants_a_yes(edgeinfer: Any, pulled: Path) -> None:
    done = edgeinfer("rm", "m", stdin=b"y\n")
    assert done.code == 2
    assert "add --yes" in done.err
    assert pulled.exists()


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_it_asks_on_a_terminal(
    edgeinfer: Any, pulled: Path, monkeypatch: pytest.MonkeyPatch, answer: str, gone: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("edgeinfer.cli.rm.sys.stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    from edgeinfer.cli.main import main

    assert main(["rm", "m"]) == 0
    assert pulled.exists() != gone


def test_files_of_others_are_refused(edgeinfer: Any, tmp_path: Path) -> None:
    theirs = tmp_path / "user/.lmstudio/models/pub/repo/m.gguf"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(DATA)
    done = edgeinfer("rm", "pub/repo/m", "--yes")
    assert done.code == 2
    assert "belongs to LM Studio" in done.err
    own = tmp_path / "home/models/own.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(DATA)
    done = edgeinfer("rm", "own", "--yes")
    assert done.code == 2
    assert "was not pulled by edgeinfer" in done.err
    assert theirs.exists()
    assert own.exists()
