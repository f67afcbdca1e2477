from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..tiny import build_tiny


@pytest.fixture
def studio(tmp_path: Path) -> Path:
    """A folder of LM Studio with one good model and bad ones beside it."""
    folder = tmp_path / "user/.lmstudio/models/pub/repo"
    folder.mkdir(parents=True)
    good = build_tiny(folder / "good.gguf")
    (folder / "page.gguf").write_text("<!DOCTYPE html>" + " " * 2000)
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "cut.gguf").write_bytes(good.read_bytes()[:-100])
    (folder / "counts.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16)
    (folder / "version1.gguf").write_bytes(b"GGUF\x01\0\0\0" + bytes(100))
    (folder / "evil\x1b[2J.gguf").write_bytes(good.read_bytes())
    return folder


def test_json(edgeinfer: Any, studio: Path) -> None:
    done = edgeinfer("models", "--json")
    assert done.code == 0
    rows = {row.pop("name"): row for row in json.loads(done.out)}
    good = rows["pub/repo/good"]
    assert good["path"] == str(studio / "good.gguf")
    assert good["size"] == (studio / "good.gguf").stat().st_size
    assert (good["owner"], good["problem"]) == ("lmstudio", None)
    for name, says in (
        ("page", "web page"),
        ("empty", "empty"),
        ("cut", ""),
        ("counts", ""),
        ("version1", ""),
    ):
        assert rows[f"pub/repo/{name}"]["problem"], name
        assert says in rows[f"pub/repo/{name}"]["problem"]


def test_table_is_safe_and_lists_what_can_be_pulled(edgeinfer: Any, studio: Path) -> None:
    done = edgeinfer("models")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["NAME", "QUANT", "SIZE", "FROM", "PATH"]
    assert "\x1b" not in done.out
    (row,) = [line for line in lines if line.startswith("pub/repo/good ")]
    assert "LM Studio" in row
    assert row.endswith(str(studio / "good.gguf"))
    assert [line.split("  (")[0] for line in lines[-2:]] == [
        "to pull: edgeinfer pull smollm2-135m",
        "to pull: edgeinfer pull gemma3-270m",
    ]


def test_nothing_at_all(edgeinfer: Any) -> None:
    assert json.loads(edgeinfer("models", "--json").out) == []
    assert len(edgeinfer("models").out.splitlines()) == 2


def test_quant_from_the_file_where_the_name_does_not_tell(edgeinfer: Any, studio: Path) -> None:
    import gguf

    path = studio / "named.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type(15)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    rows = {row["name"]: row for row in json.loads(edgeinfer("models", "--json").out)}
    assert (rows["pub/repo/named"]["quant"], rows["pub/repo/named"]["problem"]) == ("Q4_K_M", None)
