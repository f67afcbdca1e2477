"""A loaded model and its prefixes on disk: a restart costs a file read, and what was turned off stays off."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.settings import settings
from tests.tiny import build_tiny

SYSTEM = {"role": "system", "content": "what is the capital of France and the weather of today? " * 12}


def answer(path: Path, folder: Path, text: str, **options: Any) -> tuple[list[int | None], int, dict[str, Any] | None]:
    """Load, answer, close: the tokens, how many of the prompt were reused, and what the disk part says."""
    chosen = dataclasses.replace(settings(), cache=folder, prefix_cache=options.pop("on", True))
    with edgeinfer.load(path, n_ctx=512, n_threads=1, settings=chosen, **options) as llm:
        reply = llm.chat([SYSTEM, {"role": "user", "content": text}], temperature=0, max_tokens=8, ignore_eos=True)
        tokens = [chunk.token for chunk in reply]
        assert llm.prefix_cache is not None
        return tokens, reply.timings.n_reused, llm.prefix_cache.stats()["disk"]


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_system_prompt_survives_a_restart(tmp_path: Path, arch: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", arch)
    tokens, reused, _ = answer(path, tmp_path / "cold", "hello", on=False)
    assert reused == 0
    assert not (tmp_path / "cold").exists()
    assert answer(path, tmp_path / "cache", "one two")[1] == 0
    (file,) = [item for item in (tmp_path / "cache" / "prefix").rglob("*") if item.is_file()]
    assert b"one two" not in file.read_bytes()
    again, reused, disk = answer(path, tmp_path / "cache", "hello")
    assert reused >= 128
    assert reused % 64 == 0
    assert again == tokens
    assert disk is not None
    assert disk["pages_read"] == reused // 64


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf")
    for off in (dict(on=False), dict(prefix_cache=False)):
        for _ in range(2):
            assert answer(path, tmp_path / "cache", "hello", **off)[1:] == (0, None)
    assert not (tmp_path / "cache").exists()
    answer(path, tmp_path / "cache", "hello", on=False, prefix_cache=True)
    assert (tmp_path / "cache" / "prefix").exists()
