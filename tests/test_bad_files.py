"""A bad file at every door: `load`, `chat`, `run` and `inspect` refuse it in one line, `models` lists the good one beside it.

What is inside each refusal is tested where the file is read (tests/model/test_gguf_refusals.py); here that nothing on the way
swallows it, adds a traceback, or begins to compute (cases A1, A2, A3, A5, A7).
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.cli.main import main
from edgeinfer.errors import EdgeInferError, ModelFileError, NotFoundError, UnsupportedModelError
from tests import gguf_bytes as make
from tests.models import ROOT
from tests.no_models import NO_MODELS
from tests.tiny import build_tiny


def _of_type(type_id: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        raw = bytearray(build_tiny(path, n_embd=256).read_bytes())
        name = b"blk.1.ffn_up.weight"
        at = raw.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 2 * 8
        raw[at : at + 4] = type_id.to_bytes(4, "little")
        path.write_bytes(raw)

    return write


def _raw(raw: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(raw) and None


def _cut(path: Path) -> None:
    path.write_bytes(build_tiny(path).read_bytes()[:-5])


def _lone_shard(path: Path) -> None:
    build_tiny(path, metadata={"split.count": ("uint16", 2), "split.no": ("uint16", 0)})


def _without_keys(path: Path) -> None:
    """A family that does not run here, and that lacks keys which all that run have."""
    build_tiny(path, "rwkv7", metadata={".attention.head_count": ("uint32", 0), ".feed_forward_length": None})


def _family(kind: str, value: object) -> Callable[[Path], object]:
    return _raw(make.gguf([make.key("general.architecture", kind, value)], [make.tensor("w", [8])], bytes(32)))


def _cut_header(path: Path) -> None:
    """The first bytes of a download, too few for the table of tensors."""
    path.write_bytes(build_tiny(path, n_layer=12).read_bytes()[:1000])


# name -> (how it is written, the error, what the line must say)
BAD: dict[str, tuple[Callable[[Path], object], type[EdgeInferError], str]] = {
    "empty": (_raw(b""), ModelFileError, "empty"),
    "three bytes": (_raw(b"GGU"), ModelFileError, "cut off"),
    "web page": (_raw(b"<!DOCTYPE html>" + b" " * 2000), ModelFileError, "web page"),
    "lfs": (_raw(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), ModelFileError, "git lfs pull"),
    "old": (_raw(b"tjgg" + bytes(100)), ModelFileError, "GGJT"),
    "directory": (Path.mkdir, ModelFileError, "directory"),
    "missing": (lambda path: None, NotFoundError, ""),
    "cut": (_cut, ModelFileError, "truncated"),
    "counts": (_raw(b"GGUF\x03\0\0\0" + b"\xff" * 16), ModelFileError, "metadata count"),
    "version 1": (_raw(make.gguf([make.key("a", "uint32", 1)], version=1)), ModelFileError, "version 1"),
    "big-endian": (lambda path: build_tiny(path, endian="big"), ModelFileError, "big-endian"),
    "lone shard": (_lone_shard, ModelFileError, "shard 1 of 2"),
    "withdrawn type": (_of_type(36), UnsupportedModelError, "'blk.1.ffn_up.weight' is IQ4_NL_4_4"),
    "unknown type": (_of_type(200), UnsupportedModelError, "'blk.1.ffn_up.weight' is unknown (200)"),
    "rare type": (_of_type(16), UnsupportedModelError, "'blk.1.ffn_up.weight' is IQ2_XXS"),
    "family": (lambda path: build_tiny(path, "mamba"), UnsupportedModelError, "'mamba'"),
    "family without keys": (_without_keys, UnsupportedModelError, "the family 'rwkv7' is not one that the native engine"),
    "family a number": (_family("uint32", 5), ModelFileError, "general.architecture is 5; wanted text"),
    "family empty": (_family("string", ""), ModelFileError, "general.architecture is empty"),
    "no family": (_raw(make.gguf([make.key("a", "uint32", 1)])), ModelFileError, "general.architecture is missing"),
    "cut header": (_cut_header, ModelFileError, "1000 bytes long, too short to hold that; it looks truncated, download it"),
    **{name: (_raw(raw), UnsupportedModelError, f"this is {says}") for name, (raw, says) in NO_MODELS.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_load_chat_and_run_refuse(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, error, says = BAD[name]
    path = tmp_path / "m.gguf"
    write(path)
    with pytest.raises(error) as caught:
        edgeinfer.load(path)
    assert says in str(caught.value)
    for command in ("chat", "run"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
        code = main([command, "--offline", str(path)])
        out, err = capsys.readouterr()
        assert code == error.exit_code
        assert (out, "Traceback" in err) == ("", False)
        last = err.rstrip("\n").rpartition("\n")[2]
        assert last.startswith("edgeinfer: ")
        assert says in last


def test_a_refusal_takes_little_memory(tmp_path: Path) -> None:
    """Peak memory of a whole process that refuses one after the other."""
    paths = []
    for name in ("cut", "counts", "withdrawn type", "unknown type", "family"):
        paths.append(tmp_path / f"{name}.gguf")
        BAD[name][0](paths[-1])
    code = (
        "import sys, edgeinfer\n"
        "for path in sys.argv[1:]:\n"
        "    try: edgeinfer.load(path)\n"
        "    except edgeinfer.EdgeInferError: print('refused')\n"
        # not ru_maxrss: a child of a large process starts with its parent's
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[: len(paths)] == ["refused"] * len(paths)
    assert int(lines[-1]) < 200_000  # kB


def test_the_good_model_is_listed_and_used_beside_the_bad_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "user" / ".lmstudio" / "models" / "pub" / "repo"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    written = {n for n, bad in BAD.items() if bad[1] is ModelFileError and n != "directory"}
    written |= {n for n in NO_MODELS if "imatrix" not in n}  # whose names say it: they are not even listed
    for name in written:
        BAD[name][0](folder / f"{name}.gguf")
    shutil.copy(build_tiny(tmp_path / "good.gguf"), folder / "good.gguf")
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row["problem"] for row in json.loads(capsys.readouterr().out)}
    assert rows.pop("pub/repo/good") is None
    assert rows.keys() == {f"pub/repo/{name}" for name in written}
    assert all(rows.values())
    assert rows["pub/repo/adapter"].startswith("this is a LoRA adapter")
    assert main(["inspect", "pub/repo/good"]) == 0
    assert "tiny llama" in capsys.readouterr().out
