"""The GGUF reader on sound files: what it reads equals what was written, and what the `gguf` package reads."""

from __future__ import annotations

import gc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import ModelFileError
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.lazy_array import LazyArray
from tests import gguf_bytes as make
from tests.tiny import build_tiny


def opened(tmp_path: Path, raw: bytes) -> GGUFFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    return GGUFFile.open(path)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", ["F32", "F16", "Q4_0", "Q4_K"])
def test_agrees_with_the_gguf_package(tmp_path: Path, arch: str, weight_type: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type, "token_embd": "Q8_0"})
    theirs = gguf.GGUFReader(path)
    with GGUFFile.open(path) as ours:
        assert (ours.version, ours.size, ours.path) == (3, path.stat().st_size, path)
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for t in theirs.tensors:
            info = ours.tensors[t.name]
            assert (info.type_id, info.type_name) == (int(t.tensor_type), t.tensor_type.name)
            assert info.shape == tuple(reversed(t.shape.tolist()))
            assert (info.offset, info.n_bytes, info.n_elements) == (t.data_offset, t.n_bytes, t.n_elements)
            assert ours.data(t.name).tobytes() == t.data.tobytes()
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for k, field in fields.items():
            value = ours.metadata[k]
            assert (list(value) if isinstance(value, LazyArray) else value) == field.contents()


def test_a_real_file_agrees_with_the_gguf_package_in_its_scalars(gemma3_path: Path) -> None:
    with GGUFFile.open(gemma3_path) as file:
        assert (file.version, len(file.metadata), len(file.tensors)) == (3, 33, 236)
        assert file.metadata["general.architecture"] == "gemma3"
        assert file.metadata["gemma3.attention.sliding_window"] == 512
        assert file.metadata["gemma3.rope.freq_base"] == 1e6
        assert file.metadata["tokenizer.ggml.add_bos_token"] is True
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, LazyArray)
        pieces = tokens.strings()
        assert len(tokens) == len(pieces) == 262144
        assert (pieces[0], pieces[1], pieces[2], pieces[106]) == ("<pad>", "<eos>", "<bos>", "<end_of_turn>")
        assert [piece.encode() for piece in pieces] == tokens.bytes_list()
        scores = file.metadata["tokenizer.ggml.scores"]
        assert isinstance(scores, LazyArray)
        assert scores.numpy().dtype == np.float32
        assert file.tensors["token_embd.weight"].shape == (262144, 640)


def test_v2_and_v3_give_the_same_content(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "v3.gguf")
    raw = bytearray(path.read_bytes())
    raw[4] = 2
    with GGUFFile.open(path) as v3, opened(tmp_path, bytes(raw)) as v2:
        assert (v3.version, v2.version) == (3, 2)
        assert v2.tensors == v3.tensors
        assert dict(v2.metadata) == dict(v3.metadata)
        assert v2.data("blk.1.ffn_down.weight").tobytes() == v3.data("blk.1.ffn_down.weight").tobytes()


def test_every_metadata_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(None, "x")
    wrote = {
        "u8": 200, "i8": -100, "u16": 60000, "i16": -30000, "u32": 4_000_000_000, "i32": -2_000_000_000,
        "u64": 2**63 + 1, "i64": -(2**62), "f32": 0.5, "f64": 1e300, "bool": True, "string": "grüße 世界 🎉",
    }  # fmt: skip
    long_names = {"u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32", "i32": "int32",
                  "u64": "uint64", "i64": "int64", "f32": "float32", "f64": "float64"}  # fmt: skip
    for name, value in wrote.items():
        getattr(writer, f"add_{long_names.get(name, name)}")(f"x.{name}", value)
    writer.write_header_to_file(tmp_path / "m.gguf")
    writer.write_kv_data_to_file()
    writer.close()
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert {key[2:]: value for key, value in file.metadata.items() if key.startswith("x.")} == wrote
        assert file.metadata["x.bool"] is True
        assert not file.tensors


def test_arrays_of_numbers_strings_and_arrays(tmp_path: Path) -> None:
    nested = make.string("nested") + (9).to_bytes(4, "little") + (9).to_bytes(4, "little") + (2).to_bytes(8, "little")
    for values in ([1, 2, 3], [4]):
        nested += (4).to_bytes(4, "little") + len(values).to_bytes(8, "little")
        nested += b"".join(v.to_bytes(4, "little") for v in values)
    keys = [
        make.key("ints", "int32[]", [1, -2, 3]),
        make.key("flags", "bool[]", [True, False]),
        make.key("texts", "string[]", ["a", "", "ß" * 300, "\0\x01"]),
        make.key("empty", "string[]", []),
        nested,
        make.key("after", "uint32", 7),
    ]
    with opened(tmp_path, make.gguf(keys)) as file:
        meta = {key: value for key, value in file.metadata.items() if isinstance(value, LazyArray)}
        assert meta["ints"] == [1, -2, 3]
        assert meta["ints"].numpy().dtype == np.int32
        assert meta["ints"][-1] == 3
        assert meta["ints"][:2] == [1, -2]
        assert meta["flags"] == [True, False]
        assert meta["texts"] == ["a", "", "ß" * 300, "\0\x01"]
        assert meta["texts"].bytes_list() == [b"a", b"", "ß".encode() * 300, b"\0\x01"]
        assert meta["empty"].strings() == [] == meta["empty"].bytes_list()
        assert [list(inner) for inner in meta["nested"]] == [[1, 2, 3], [4]]
        assert file.metadata["after"] == 7
        assert "3 elements" in repr(meta["ints"])
        assert meta["ints"] != meta["flags"]
        with pytest.raises(TypeError):
            meta["texts"].numpy()
        with pytest.raises(TypeError):
            meta["ints"].strings()
        with pytest.raises(TypeError):
            meta["ints"].bytes_list()


@settings(deadline=None)
@given(st.lists(st.text() | st.text("\0\x01\x02\x03\x04\x05\x06\x07", max_size=4), max_size=30))
def test_any_strings_come_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    raw = make.gguf([make.key("texts", "string[]", [text.encode() for text in texts])])
    with opened(tmp_path_factory.mktemp("texts"), raw) as file:
        array = file.metadata["texts"]
        assert isinstance(array, LazyArray)
        assert array.strings() == texts
        assert array.bytes_list() == [text.encode() for text in texts]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=30))
def test_any_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    with opened(tmp_path_factory.mktemp("pieces"), make.gguf([make.key("pieces", "string[]", pieces)])) as file:
        array = file.metadata["pieces"]
        assert isinstance(array, LazyArray)
        assert array.bytes_list() == pieces
        assert array.strings() == [piece.decode(errors="replace") for piece in pieces]


def test_a_vocabulary_that_uses_every_byte_still_decodes(tmp_path: Path) -> None:
    pieces = [bytes([b]) for b in range(256)] * 2
    with opened(tmp_path, make.gguf([make.key("pieces", "string[]", pieces)])) as file:
        array = file.metadata["pieces"]
        assert isinstance(array, LazyArray)
        assert array.bytes_list() == pieces
        assert array.strings() == [piece.decode(errors="replace") for piece in pieces]


def test_large_honest_arrays_load(tmp_path: Path) -> None:
    """The positive control of the hostile cases: 262,144 tokens and 500,000 merges."""
    keys = [
        make.key("tokens", "string[]", [f"token{i}" for i in range(262_144)]),
        make.key("merges", "string[]", [f"a{i} b" for i in range(500_000)]),
    ]
    with opened(tmp_path, make.gguf(keys)) as file:
        assert {key: len(value) for key, value in file.metadata.items() if isinstance(value, LazyArray)} == {
            "tokens": 262_144,
            "merges": 500_000,
        }
        assert file.metadata["merges"][499_999] == "a499999 b"  # type: ignore[index]


def test_tensor_data_is_not_copied(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        first, again = file.data("token_embd.weight"), file.data("token_embd.weight")
        assert np.shares_memory(first, again)
        assert not first.flags.writeable
        assert first.__array_interface__["data"][0] == file.address("token_embd.weight")
        before = first.tobytes()
        file.release("token_embd.weight")
        file.release("token_embd.weight", 5000, 1 << 40)
        assert first.tobytes() == before


def test_close_keeps_views_and_refuses_new_ones(tmp_path: Path) -> None:
    file = GGUFFile.open(build_tiny(tmp_path / "m.gguf"))
    view = file.data("output_norm.weight")
    tokens = file.metadata["tokenizer.ggml.tokens"]
    before = view.tobytes()
    file.close()
    file.close()
    gc.collect()
    assert view.tobytes() == before
    with pytest.raises(ModelFileError, match="is closed"):
        file.data("output_norm.weight")
    assert isinstance(tokens, LazyArray)
    with pytest.raises(ModelFileError, match="is closed"):
        tokens.strings()


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    with GGUFFile.open(build_tiny(tmp_path / "m.gguf")) as file, pytest.raises(ModelFileError, match="'nope.weight'"):
        file.data("nope.weight")


def test_another_alignment(tmp_path: Path) -> None:
    keys = [make.key("general.alignment", "uint32", 64)]
    data = np.arange(16, dtype=np.float32).tobytes() + np.full(4, 7, np.float32).tobytes()
    tensors = [make.tensor("a", [16]), make.tensor("b", [4], offset=64)]
    with opened(tmp_path, make.gguf(keys, tensors, data, alignment=64)) as file:
        assert file.data_offset % 64 == 0
        assert file.data("b").view(np.float32).tolist() == [7.0] * 4


@pytest.mark.parametrize("type_id", [4, 36, 16, 40, 200])
def test_types_that_do_not_run_still_open(tmp_path: Path, type_id: int) -> None:
    """Case A7: a rare, unknown or withdrawn type does not hide the rest of the file."""
    tensors = [make.tensor("a", [256, 2]), make.tensor("odd", [256, 4], type_id, 2048), make.tensor("z", [8], 0, 4096)]
    with opened(tmp_path, make.gguf((), tensors, bytes(2048 + 2048 + 32))) as file:
        odd = file.tensors["odd"]
        names = {4: "Q4_2", 36: "IQ4_NL_4_4", 16: "IQ2_XXS", 40: "NVFP4", 200: "unknown (200)"}
        sizes = {4: 2048, 36: 2048, 16: 4 * 66, 40: 16 * 36, 200: 2048}
        assert (odd.type_name, odd.n_bytes) == (names[type_id], sizes[type_id])
        assert (odd.format is None) == (type_id == 200)
        assert file.data("z").tolist() == [0] * 32
