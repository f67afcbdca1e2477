from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import numpy as np

from edgeinfer.model.gguf import GGUFFile
from edgeinfer.schedule.fingerprint import fingerprint, open_store
from edgeinfer.settings import settings
from tests.tiny import build_tiny


def made(path: Path, layout: str = "f16", numerics: str = "avx2") -> str:
    with GGUFFile.open(path) as file:
        return fingerprint(file, layout, numerics)


def test_what_changes_a_page_changes_the_fingerprint(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "a.gguf")
    first = made(path)
    assert len(bytes.fromhex(first)) == 32
    assert made(path) == first
    seen = {first, made(path, "q8_0"), made(path, numerics="avx512"), made(path, "f16a", "vx2")}
    assert len(seen) == 4
    facts = path.stat()
    for name, changes in {
        "template": dict(template="{{ messages }}"),
        "tokenizer": dict(pre="llama-bpe"),
        "rope": dict(rope_base=20000.0),
        "weights": dict(seed=1),
    }.items():
        other = build_tiny(tmp_path / f"{name}.gguf", **changes)
        os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        seen.add(made(other))
    assert len(seen) == 8


def test_a_file_that_was_changed_in_place_is_another(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "a.gguf")
    first = made(path)
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    assert made(path) != first


def test_a_changed_sample_is_seen_whatever_the_time(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "a.gguf")
    facts, first = path.stat(), made(path)
    with GGUFFile.open(path) as file:
        info = file.tensor("blk.1.ffn_down.weight")
    for offset in (info.offset, info.offset + info.n_bytes // 2, info.offset + info.n_bytes - 1):
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert made(path) != first
        data[offset] ^= 1
        path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert made(path) == first


def test_the_store_can_be_turned_off(tmp_path: Path) -> None:
    on = settings({"HOME": str(tmp_path)})
    assert on.prefix_cache
    assert settings({"EDGEINFER_PREFIX_CACHE": "1"}).prefix_cache
    off = settings({"HOME": str(tmp_path), "EDGEINFER_PREFIX_CACHE": "0"})
    assert not off.prefix_cache
    path = build_tiny(tmp_path / "a.gguf")
    with GGUFFile.open(path) as file:
        assert open_store(off, file, "f16", "avx2") is None
        store = open_store(on, file, "f16", "avx2")
        assert store is not None
        assert store.root == on.cache / "prefix"
        assert not on.cache.exists()
        assert list(store.get(np.arange(200, dtype=np.int32))) == []
        assert store.writable


def test_a_closed_file_turns_it_off(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "a.gguf")
    chosen = dataclasses.replace(settings({"HOME": str(tmp_path)}))
    file = GGUFFile.open(path)
    file.close()  # before the background thread could have read it
    store = open_store(chosen, file, "f16", "avx2")
    assert store is not None
    assert list(store.get(np.arange(200, dtype=np.int32))) == []
    assert not store.writable


def test_a_large_file_is_not_read_whole(gemma3_path: Path) -> None:
    made(gemma3_path)
    started = time.perf_counter()
    made(gemma3_path)
    assert time.perf_counter() - started < 0.2  # all of it takes longer; mostly it is a few milliseconds
