"""The GGUF reader on bad files: each is refused in one sentence that names the place (cases A1, A2, A3, A5)."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeinfer.errors import ModelFileError, NotFoundError, UnsupportedModelError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.lazy_array import LazyArray
from tests import gguf_bytes as make
from tests.models import ROOT
from tests.tiny import build_tiny

TEXT = make.key("text", "string", "hello")
ONE = [make.tensor("weight", [8])]
DATA = bytes(32)


def refusal(tmp_path: Path, raw: bytes) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


NOT_GGUF = {
    "empty": (b"", "empty (0 bytes)"),
    "three bytes": (b"GGU", "cut off after 3 bytes"),
    "web page": (b"<!DOCTYPE html><html><body>Sign in</body></html>" * 40, "web page"),
    "web page after blanks": (b"\n  <HTML>\n" * 20, "web page"),
    "lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9226\n", "Git LFS pointer"),
    "old container": (b"tjgg" + bytes(100), "GGJT"),
    "pytorch": (b"PK\x03\x04" + bytes(range(100)), "PyTorch"),
    "safetensors": (struct.pack("<Q", 60) + b'{"__metadata__":{}}' + bytes(100), "safetensors"),
    "json": (b'{"error": "not found"}', "JSON"),
    "zeros": (bytes(4096), "all zeros"),
    "text": (b"hello, this is not a model", "plain text"),
    "noise": (bytes(range(128, 256)), "80 81 82 83"),
    "reversed magic": (b"FUGG" + bytes(64), "magic reversed"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_GGUF)
def test_what_a_wrong_file_looks_like(tmp_path: Path, name: str) -> None:
    raw, wanted = NOT_GGUF[name]
    assert wanted in refusal(tmp_path, raw)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(NotFoundError, match="does not exist"):
        GGUFFile.open(build_tiny(tmp_path / "m.gguf") / "below.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        GGUFFile.open(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        GGUFFile.open("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile.open("/dev/null")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf")
    path.chmod(0)
    with pytest.raises(ModelFileError, match="Permission denied"):
        GGUFFile.open(path)


# -- versions (A5) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 4, 77])
def test_other_versions_are_named(tmp_path: Path, version: int) -> None:
    assert f"version {version}" in refusal(tmp_path, make.gguf([TEXT], ONE, DATA, version=version))


def test_a_real_v1_file(tmp_path: Path) -> None:
    """Counts and lengths of 32 bits."""
    raw = b"GGUF" + struct.pack("<III", 1, 0, 1) + struct.pack("<I", 4) + b"text" + struct.pack("<II", 8, 5) + b"hello"
    assert "version 1" in refusal(tmp_path, raw)


def test_big_endian(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "big.gguf", endian="big")
    assert "big-endian" in refusal(tmp_path, path.read_bytes())


# -- truncation (A2) -------------------------------------------------------------------------------------------------


def test_every_cut_of_the_header_is_refused(tmp_path: Path) -> None:
    keys = [
        TEXT,
        make.key("list", "string[]", ["a", "bb", ""]),
        make.key("n", "int32[]", [1, 2, 3]),
        make.key("u", "uint32", 3),
    ]
    raw = make.gguf(keys, [make.tensor("a", [8]), make.tensor("b", [4, 2], 0, 32)], bytes(64))
    path = tmp_path / "cut.gguf"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)
    path.write_bytes(raw)
    GGUFFile.open(path).close()


def test_a_cut_inside_a_tensor_names_it(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "whole.gguf", types={"default": "Q4_0"})
    raw = path.read_bytes()
    with GGUFFile.open(path) as file:
        infos = list(file)
    last = max(infos, key=lambda info: info.offset)
    for info in infos:
        message = refusal(tmp_path, raw[: info.offset + info.n_bytes // 2])
        assert "truncated" in message
        assert f"{info.offset + info.n_bytes // 2} bytes long" in message
        if info is last:
            assert repr(info.name) in message
            assert f"byte {info.offset + info.n_bytes}," in message
    end = last.offset + last.n_bytes
    assert repr(last.name) in refusal(tmp_path, raw[: end - 1])


def test_only_the_last_padding_may_be_missing(tmp_path: Path) -> None:
    raw = make.gguf([TEXT], [make.tensor("a", [8]), make.tensor("b", [3], 0, 32)], bytes(32 + 12))
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with GGUFFile.open(path) as file:
        assert file.data("b").tolist() == [0] * 12
    path.write_bytes(raw + bytes(20))
    with GGUFFile.open(path) as file:
        assert file.data("b").tolist() == [0] * 12


# -- hostile numbers (A3) --------------------------------------------------------------------------------------------


def array(name: str, kind: int, n: int, body: bytes = b"") -> bytes:
    return make.string(name) + struct.pack("<IIQ", 9, kind, n) + body


def hostile() -> dict[str, tuple[bytes, str]]:
    """name -> (file, what the refusal must mention)."""
    pad = bytes(64)
    cases = {
        "key count 2^32": (make.gguf([TEXT], n_keys=2**32), "metadata count is 4294967296"),
        "key count 2^64-1": (make.gguf([TEXT], n_keys=2**64 - 1), "metadata count"),
        "key count, one too many": (make.gguf([TEXT], n_keys=2), ""),
        "key count of a cut file": (make.gguf([TEXT], n_keys=33), "it looks truncated, download it again"),
        "tensor count of a cut file": (make.gguf([TEXT], n_tensors=272), "it looks truncated, download it again"),
        "tensor count 2^63": (make.gguf([TEXT], ONE, DATA, n_tensors=2**63), "tensor count is 9223372036854775808"),
        "key length 2^62": (make.gguf([struct.pack("<Q", 2**62) + b"x" * 64]), "name of metadata key 0"),
        "empty key": (make.gguf([make.key("", "uint32", 1) + pad]), "name of metadata key 0"),
        "string length 2^62": (make.gguf([make.string("text") + struct.pack("<IQ", 8, 2**62) + pad]), "'text'"),
        "string length 2^64-1": (make.gguf([make.string("text") + struct.pack("<IQ", 8, 2**64 - 1) + pad]), "'text'"),
        "number array 2^40": (make.gguf([array("list", 4, 2**40, pad)]), "'list'"),
        "number array 2^62 of u64": (make.gguf([array("list", 10, 2**62, pad)]), "'list'"),
        "string array 2^40": (make.gguf([array("list", 8, 2**40, pad)]), "'list'"),
        "string in array 2^62": (make.gguf([array("list", 8, 2, struct.pack("<Q", 2**62) + pad)]), "'list'"),
        "string in array 2^64-8": (make.gguf([array("list", 8, 3, struct.pack("<Q", 2**64 - 8) + pad)]), "'list'"),
        "string in array wraps to itself": (make.gguf([array("list", 8, 7, struct.pack("<q", -8) + pad)]), "'list'"),
        "last string of array": (make.gguf([array("list", 8, 1, struct.pack("<Q", 65) + pad)]), "'list'"),
        "nested 3000 deep": (
            make.gguf([make.string("deep") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000 + bytes(12)]),
            "'deep'",
        ),
        "nested 2^20 wide": (make.gguf([array("wide", 9, 2**40, struct.pack("<IQ", 9, 2**40) * 8)]), "'wide'"),
        "array of unknown": (make.gguf([array("list", 77, 1, pad)]), "type 77"),
        "value of unknown type": (make.gguf([make.string("odd") + struct.pack("<I", 13) + pad]), "'odd'"),
        "n_dims 5": (make.gguf([], [make.tensor("w", [1] * 5)], DATA), "5 dimensions"),
        "n_dims 2^32-1": (make.gguf([], [make.tensor("w", [8], n_dims=2**32 - 1)], DATA), "4294967295 dimensions"),
        "dims wrap to 0": (make.gguf([], [make.tensor("w", [2**22, 2**42])], DATA), "'w'"),
        "dims wrap to 8": (make.gguf([], [make.tensor("w", [2**63 + 4, 2])], DATA), "'w'"),
        "dims wrap, unknown type": (make.gguf([], [make.tensor("w", [2**22, 2**42], 200)], DATA), "'w'"),
        "dim 0": (make.gguf([], [make.tensor("w", [8, 0])], DATA), "'w'"),
        "offset near 2^64": (make.gguf([], [make.tensor("w", [8], 0, 2**64 - 32)], DATA), "'w'"),
        "offset not aligned": (make.gguf([], [make.tensor("w", [4], 0, 4)], DATA), "alignment"),
        "offset past the end, unknown type": (make.gguf([], [make.tensor("w", [8], 200, 2**62)], DATA), "'w'"),
        "row not whole blocks": (make.gguf([], [make.tensor("w", [33, 2], 2)], pad), "multiple of 32"),
        "overlap": (make.gguf([], [make.tensor("a", [16]), make.tensor("b", [8], 0, 32)], pad), "overlap"),
        "same place": (make.gguf([], [make.tensor("a", [8]), make.tensor("b", [8])], DATA), "overlap"),
        "tensor twice": (make.gguf([], [make.tensor("a", [8]), make.tensor("a", [8], 0, 32)], pad), "twice"),
        "key twice": (make.gguf([TEXT, TEXT]), "twice"),
        "key not UTF-8": (make.gguf([make.key(b"\xff\xfe", "uint32", 1)]), "UTF-8"),
        "alignment 0": (make.gguf([make.key("general.alignment", "uint32", 0)], ONE, DATA), "general.alignment"),
        "alignment 3": (make.gguf([make.key("general.alignment", "uint32", 3)], ONE, DATA), "general.alignment"),
        "alignment text": (make.gguf([make.key("general.alignment", "string", "32")], ONE, DATA), "general.alignment"),
        "alignment 2^31": (make.gguf([make.key("general.alignment", "uint32", 2**31)], ONE, DATA), "truncated"),
        "tensor name 2^40": (make.gguf([], [struct.pack("<Q", 2**40) + pad], DATA), "name of tensor 0"),
    }  # fmt: skip
    return cases


@pytest.mark.parametrize("name", hostile())
def test_hostile_numbers_are_refused_by_name(tmp_path: Path, name: str) -> None:
    raw, wanted = hostile()[name]
    assert wanted in refusal(tmp_path, raw)


LIMITED = """
import resource, sys, time
from edgeinfer.errors import ModelFileError
from edgeinfer.model.gguf import GGUFFile
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
def peak():  # in kB; not ru_maxrss, which a child of a large process begins with its parent's
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
before = peak()
for path in sys.argv[1:]:
    start = time.perf_counter()
    try:
        GGUFFile.open(path)
        print(path, "was opened")
    except ModelFileError:
        pass
    if time.perf_counter() - start > 1:
        print(path, "took", time.perf_counter() - start, "s")
    grown = (peak() - before) / 1024
    if grown > 200:
        print(path, "took", grown, "MB")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_hostile_files_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """Each below 1 s and 200 MB, under a limit of 2 GB of address space; the widest ones in files of some size."""
    files = dict(hostile())
    many = 3_000_000
    files["many empty strings"] = (make.gguf([array("list", 8, many * 2, bytes(8 * many * 2))]), "")
    files["many nested arrays"] = (make.gguf([array("list", 9, many, struct.pack("<IQ", 4, 0) * many)]), "")
    files["many keys"] = (make.gguf([make.key(f"k{i}", "bool", True) for i in range(70_000)]), "")
    paths = []
    for i, (raw, _) in enumerate(files.values()):
        paths.append(tmp_path / f"{i}.gguf")
        paths[-1].write_bytes(raw)
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


# -- fuzzing ---------------------------------------------------------------------------------------------------------


def read_all(path: Path) -> None:
    """Open a file and touch all that a user would: it either works or ends in an error of ours."""
    try:
        with GGUFFile.open(path) as file:
            for value in file.metadata.values():
                if isinstance(value, LazyArray):
                    list(value)
            for name in file.tensors:
                file.data(name)[-1:].tolist()
            ModelConfig.from_gguf(file)
    except (ModelFileError, UnsupportedModelError):
        pass


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_flipped_bytes_never_surprise(tmp_path: Path, arch: str) -> None:
    raw = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q4_0"}).read_bytes()
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        header = file.data_offset
    path, rng = tmp_path / "flipped.gguf", random.Random(7)
    path.write_bytes(raw)
    with path.open("r+b") as out:
        for _ in range(1500):
            at = sorted({rng.randrange(header) for _ in range(rng.choice([1, 1, 2, 8]))})
            for i in at:
                out.seek(i)
                out.write(bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, raw[i] ^ (1 << rng.randrange(8))])]))
            out.flush()
            read_all(path)
            for i in at:
                out.seek(i)
                out.write(raw[i : i + 1])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 4), st.integers(0, 4))
def test_any_bytes_after_the_magic_never_surprise(tmp_path: Path, body: bytes, n_tensors: int, n_keys: int) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + body)
    read_all(path)


numbers = st.sampled_from([0, 1, 2, 8, 2**16, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_absurd_numbers_in_sound_places_never_surprise(tmp_path: Path, data: st.DataObject) -> None:
    """Entries that parse as far as their absurd number, one after the other."""
    entries = []
    for i in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.integers(0, 13))
        if kind == 9:
            body = struct.pack("<IQ", data.draw(st.integers(0, 13)), data.draw(numbers))
        else:
            body = struct.pack("<Q", data.draw(numbers))
        entries.append(make.string(f"key{i}") + struct.pack("<I", kind) + body + data.draw(st.binary(max_size=40)))
    dims = data.draw(st.lists(numbers, max_size=5))
    tensors = [make.tensor("w", dims, data.draw(st.integers(0, 45)), data.draw(numbers))]
    path = tmp_path / "absurd.gguf"
    path.write_bytes(make.gguf(entries, tensors, bytes(64)))
    read_all(path)
