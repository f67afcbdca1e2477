"""Models in several files: whichever is opened gives the whole model, and a set that lies is refused by name."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import gguf
import pytest

from edgeinfer.errors import ModelFileError, NotFoundError, SettingError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.lazy_array import LazyArray
from edgeinfer.model.tokenizer import Tokenizer
from tests import gguf_bytes as make
from tests.shards import split
from tests.tiny import build_tiny

TYPES = {"default": "Q4_0", "token_embd": "Q8_0"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("whole") / "whole.gguf", types=TYPES)


@pytest.fixture
def shards(whole: Path, tmp_path: Path) -> list[Path]:
    paths = split(whole, tmp_path / "shards", 8)
    assert [path.name for path in paths] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def refusal(path: object) -> str:
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(file: GGUFFile, whole: Path) -> None:
    """Metadata and every tensor's bytes are those of the whole file, read by the `gguf` package."""
    theirs = gguf.GGUFReader(whole)
    assert set(file.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert file.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        assert file.data(tensor.name).tobytes() == tensor.data.tobytes()
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value = file.metadata[key]
            assert (list(value) if isinstance(value, LazyArray) else value) == field.contents()
    assert ModelConfig.from_gguf(file).n_layer == 2
    assert Tokenizer.from_gguf(file).encode("hello world")


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_shard_opens_the_whole_model(whole: Path, shards: list[Path], which: int) -> None:
    with GGUFFile.open(shards[which]) as file:
        same(file, whole)
        assert file.path == shards[0]
        assert file.size == sum(path.stat().st_size for path in shards)
        assert [shard.path for shard in file.shards] == shards
        assert len(file.head()) == sum(shard.header.data_offset for shard in file.shards)
        assert "shards=3" in repr(file)
        for name in file.tensors:
            file.release(name)
            assert file.address(name) == file.data(name).__array_interface__["data"][0]
    with pytest.raises(ModelFileError, match="is closed"):
        file.data(next(reversed(file.tensors)))


def test_a_list_of_shards_in_any_order_and_under_any_names(whole: Path, shards: list[Path], tmp_path: Path) -> None:
    names = [shutil.copy(path, tmp_path / f"{letter}.bin") for path, letter in zip(shards, "zxy", strict=True)]
    for order in itertools.permutations(names):
        with GGUFFile.open(order) as file:
            same(file, whole)


def test_names_that_were_swapped_do_not_matter(whole: Path, shards: list[Path], tmp_path: Path) -> None:
    os.rename(shards[0], tmp_path / "first")
    os.rename(shards[1], shards[0])
    os.rename(tmp_path / "first", shards[1])
    with GGUFFile.open(shards[0]) as file:
        same(file, whole)


def test_links_to_shards_open_from_the_folder_of_the_link(whole: Path, shards: list[Path], tmp_path: Path) -> None:
    """As the cache of the Hugging Face hub keeps them: names lead to blobs that are named by their digest."""
    (tmp_path / "snapshot").mkdir()
    for i, path in enumerate(shards):
        blob = tmp_path / f"blob{i}"
        shutil.move(path, blob)
        (tmp_path / "snapshot" / path.name).symlink_to(blob)
    with GGUFFile.open(tmp_path / "snapshot" / shards[1].name) as file:
        same(file, whole)


def test_a_first_shard_without_tensors(whole: Path, tmp_path: Path) -> None:
    """As llama.cpp's splitter writes it when asked to."""
    count = ("uint16", 2)
    with GGUFFile.open(whole) as file:
        n_tensors = len(file.tensors)
    meta = {"split.count": count, "split.no": ("uint16", 0), "split.tensors.count": ("int32", n_tensors)}
    first = build_tiny(tmp_path / "m-00001-of-00002.gguf", types=TYPES, metadata=meta, omit_tensors=tuple(file.tensors))
    build_tiny(tmp_path / "m-00002-of-00002.gguf", types=TYPES, metadata={**meta, "split.no": ("uint16", 1)})
    with GGUFFile.open(first) as file:
        assert not file.shards[0].header.tensors
        same(file, whole)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_shard_is_named(shards: list[Path], gone: int) -> None:
    shards[gone].unlink()
    left = [path for path in shards if path.exists()]
    for path in left:
        message = refusal(path)
        assert f"missing beside it: {shards[gone].name};" in message
        assert "1 of them is" in message
    assert f"shard {gone + 1} of 3 is missing" in refusal(left)
    with pytest.raises(NotFoundError):
        GGUFFile.open(shards[gone])


def test_many_missing_shards_are_counted(shards: list[Path]) -> None:
    for path in shards[1:]:
        path.unlink()
    assert "2 of them are missing beside it: model-00002-of-00003.gguf, model-00003-of-00003.gguf;" in refusal(
        shards[0]
    )


def test_a_copy_under_anothers_name(shards: list[Path]) -> None:
    shutil.copy(shards[1], shards[2])
    message = refusal(shards[0])
    assert "are both shard 2 of 3" in message
    assert shards[1].name in message
    assert shards[2].name in message
    assert "are both shard 1 of 3" in refusal([shards[0], shards[0], shards[1]])


def test_shards_of_different_models(whole: Path, shards: list[Path], tmp_path: Path) -> None:
    other = split(whole, tmp_path / "other", 12)
    assert len(other) == 2
    shutil.copy(other[1], shards[1])  # another count
    assert "one of 2 shards, but" in refusal(shards[0])
    shutil.copy(whole, shards[1])
    assert "a whole model, but" in refusal(shards[0])
    for given in ([whole, shards[0]], [shards[0], whole], [whole, whole]):
        with pytest.raises(SettingError, match="is a whole model, not a shard"):
            GGUFFile.open(given)
    larger = build_tiny(tmp_path / "larger.gguf", types=TYPES, n_layer=3)
    shutil.copy(split(larger, tmp_path / "larger", 12)[2], shards[2])
    shutil.copy(split(whole, tmp_path / "again", 8)[1], shards[1])
    assert "different models" in refusal(shards[0])  # the tensor counts differ


def test_shards_with_the_same_tensors(tmp_path: Path) -> None:
    keys = [make.key("split.count", "uint32", 2)]
    for i, name in ((0, "a"), (1, "a")):
        raw = make.gguf([*keys, make.key("split.no", "uint32", i)], [make.tensor(name, [8])], bytes(32))
        (tmp_path / f"m-0000{i + 1}-of-00002.gguf").write_bytes(raw)
    assert "tensor 'a' is in" in refusal(tmp_path / "m-00001-of-00002.gguf")


def test_a_total_that_is_not_reached(tmp_path: Path) -> None:
    for total, says in ((3, "hold 2 tensors; wanted 3"), (-1, "hold 2 tensors; wanted -1")):
        for i, name in ((0, "a"), (1, "b")):
            keys = [make.key("split.count", "uint32", 2), make.key("split.no", "uint32", i)]
            keys.append(make.key("split.tensors.count", "int32", total))
            raw = make.gguf(keys, [make.tensor(name, [8])], bytes(32))
            (tmp_path / f"m-0000{i + 1}-of-00002.gguf").write_bytes(raw)
        assert says in refusal(tmp_path / "m-00002-of-00002.gguf")


def test_names_that_do_not_lead_to_the_others(shards: list[Path], tmp_path: Path) -> None:
    lone = Path(shutil.copy(shards[1], tmp_path / "blob"))
    message = refusal(lone)
    assert "shard 2 of 3" in message
    assert "NAME-00002-of-00003.gguf" in message
    wrong = Path(shutil.copy(shards[1], tmp_path / "model-00002-of-00004.gguf"))
    assert "shard 2 of 3 by its own word, but its name says of 4" in refusal(wrong)


def test_a_damaged_shard_is_named(shards: list[Path]) -> None:
    raw = shards[2].read_bytes()
    shards[2].write_bytes(raw[:-40])
    message = refusal(shards[0])
    assert str(shards[2]) in message
    assert "truncated" in message
    shards[2].write_bytes(b"GGUF\0\0\0\3" + raw[8:])
    assert "big-endian" in refusal(shards[0])
    shards[2].write_bytes(b"")
    assert "empty" in refusal(shards[0])


@pytest.mark.parametrize(
    ("count", "number", "says"),
    [
        (2, None, "split.no is None"),
        (2, 2, "split.no is 2; wanted the shard's number, below 2"),
        (2**32 - 1, 0, "split.count is 4294967295"),
        (5000, 4999, "split.count is 5000"),
        (1, 1, "split.no is 1"),
    ],
)
def test_absurd_numbers(tmp_path: Path, count: int, number: int | None, says: str) -> None:
    keys = [make.key("split.count", "uint32", count)]
    keys += [] if number is None else [make.key("split.no", "uint32", number)]
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(make.gguf(keys))
    assert says in refusal(path)
    path.write_bytes(make.gguf([make.key("split.count", "string", "two" * 1000)]))
    assert "split.count is 'twotwo" in refusal(path)
    assert len(refusal(path)) < 300 + len(str(path))


def test_a_file_that_says_it_was_not_split(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", metadata={"split.count": ("uint16", 0), "split.no": ("uint16", 0)})
    with GGUFFile.open(path) as file:
        assert len(file.shards) == 1
    with pytest.raises(SettingError, match="no model file"):
        GGUFFile.open([])
