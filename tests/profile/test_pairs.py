"""Two files compared: metadata, tensors by type, shape and content; and a draft's size beside its target's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.model.gguf import GGUFFile
from edgeinfer.profile.pairs import compare_files, draft_pair
from tests.shards import split
from tests.tiny import build_tiny


def compared(a: Path, b: Path) -> dict[str, Any]:
    with GGUFFile.open(a) as first, GGUFFile.open(b) as second:
        return compare_files(first, second)


def test_a_file_and_its_copy(tmp_path: Path) -> None:
    a = build_tiny(tmp_path / "a.gguf", types={"default": "Q4_0"})
    found = compared(a, build_tiny(tmp_path / "b.gguf", types={"default": "Q4_0"}))
    assert found["same"] is True
    assert found["tensors"]["n_same"] == 21
    assert found["metadata"] == {"only_a": {}, "only_b": {}, "changed": []}
    parts = split(a, tmp_path / "shards", 8)
    found = compared(a, parts[1])
    assert found["tensors"]["n_same"] == 21
    assert set(found["metadata"]["only_b"]) == {"split.no", "split.count", "split.tensors.count"}


def test_metadata(tmp_path: Path) -> None:
    a = build_tiny(tmp_path / "a.gguf", metadata={"only.a": 1, "kind": 1, "list": [1, 2, 3], "nan": float("nan")})
    with GGUFFile.open(a) as file:
        tokens = list(file.metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    tokens[300], tokens[5] = "x", "y"
    changed = {"only.b": True, "kind": True, "list": [1, 2, 4], "nan": float("nan"), "tokenizer.ggml.tokens": tokens}
    found = compared(a, build_tiny(tmp_path / "b.gguf", metadata=changed))["metadata"]
    assert (found["only_a"], found["only_b"]) == ({"only.a": 1}, {"only.b": True})
    rows = {row["key"]: row for row in found["changed"]}
    assert set(rows) == {"kind", "list", "tokenizer.ggml.tokens"}
    assert (rows["kind"]["a"], rows["kind"]["b"]) == (1, True)
    assert (rows["list"]["a"], rows["list"]["first"], rows["list"]["first_b"]) == ([1, 2, 3], 2, 4)
    row = rows["tokenizer.ggml.tokens"]
    assert (row["first"], row["first_b"], row["n_differing"]) == (5, "y", 2)


def test_tensors(tmp_path: Path) -> None:
    a = build_tiny(tmp_path / "a.gguf", types={"default": "F16"})
    other = {"blk.0.ffn_up.weight": np.ones((128, 64), np.float32)}
    types = {"default": "F16", "attn_q": "Q8_0"}
    b = build_tiny(tmp_path / "b.gguf", types=types, n_rows=500, replace_tensors=other, omit_tensors=("output.weight",))
    found = compared(a, b)["tensors"]
    assert found["only_a"] == ["output.weight"]
    assert found["only_b"] == []
    (shape,) = found["shape"]
    assert (shape["name"], shape["b"]) == ("token_embd.weight", [500, 64])
    assert [(t["name"], t["a"], t["b"]) for t in found["type"]] == [
        (f"blk.{i}.attn_q.weight", "F16", "Q8_0") for i in (0, 1)
    ]
    assert all(0.001 < t["distance"] < 0.01 for t in found["type"])  # Q8_0 of the same weights
    (content,) = found["content"]
    assert content["name"] == "blk.0.ffn_up.weight"
    assert content["distance"] > 1
    with GGUFFile.open(a) as first, GGUFFile.open(b) as second:
        for file, key in ((first, "a_sha256"), (second, "b_sha256")):
            assert content[key] == hashlib.sha256(file.data("blk.0.ffn_up.weight").tobytes()).hexdigest()
    assert found["n_same"] == 21 - 1 - 1 - 2 - 1


def test_distance_is_of_the_weights(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 128 * 64, dtype=np.float32).reshape(128, 64)
    paths = []
    for i, scale in enumerate((1.0, 1.5)):
        more = {"blk.0.ffn_up.weight": values * np.float32(scale)}
        paths.append(build_tiny(tmp_path / f"{i}.gguf", replace_tensors=more))
    (content,) = compared(*paths)["tensors"]["content"]
    assert content["distance"] == pytest.approx(0.5, rel=1e-5)


def test_types_that_nothing_decodes(tmp_path: Path) -> None:
    raw = bytearray(build_tiny(tmp_path / "a.gguf").read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = raw.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 2 * 8
    raw[at : at + 4] = (200).to_bytes(4, "little")
    (tmp_path / "b.gguf").write_bytes(raw)
    (row,) = compared(tmp_path / "a.gguf", tmp_path / "b.gguf")["tensors"]["type"]
    assert (row["b"], row["distance"]) == ("unknown (200)", None)


def test_a_draft_pair(tmp_path: Path) -> None:
    target = build_tiny(tmp_path / "t.gguf", n_layer=6, types={"default": "F32"}, n_ctx_train=512)
    draft = build_tiny(tmp_path / "d.gguf", n_layer=1, types={"default": "Q4_0"}, n_ctx_train=256, tied=True)
    with GGUFFile.open(target) as a, GGUFFile.open(draft) as b:
        found = draft_pair(a, b)
        weights = [sum(info.n_elements for info in file) for file in (a, b)]
    assert found["compatible"] is True
    assert found["ratio"]["parameters"] == round(weights[0] / weights[1], 3)
    assert found["ratio"]["bytes"] > 8
    assert any("trained for 256 tokens, the target for 512" in note for note in found["notes"])
    with GGUFFile.open(draft) as a, GGUFFile.open(target) as b:
        assert any("drafting will hardly pay" in note for note in draft_pair(a, b)["notes"])
