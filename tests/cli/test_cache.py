from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeinfer.cli.cache import cache_report
from edgeinfer.schedule.prefix_cache import PrefixCache
from edgeinfer.schedule.prefix_store import PrefixStore

from ..schedule.paged import FakeKV


def llm_with(cache: PrefixCache | None) -> Any:
    def decode(ids: Sequence[int], special: bool = False) -> str:
        assert special
        return bytes(ids).decode()

    return SimpleNamespace(prefix_cache=cache, tokenizer=SimpleNamespace(decode=decode))


def use(cache: PrefixCache, kv: FakeKV, text: str) -> None:
    ids = list(text.encode())
    match = cache.match(ids)
    seq = kv.open(match.pages)
    kv.drop(match.pages)
    kv.extend(seq, ids[match.n_tokens :])
    cache.insert(ids, seq)
    kv.close(seq)


def test_an_engine_without_one() -> None:
    assert cache_report(llm_with(None)) == ["this engine has no prefix cache"]


def test_an_empty_one() -> None:
    cache = PrefixCache(FakeKV(16))
    assert cache_report(llm_with(cache)) == [
        "prefix cache: 0 of 16 pages; 0 of 0 prompt tokens were not evaluated again, in 0 of 0 prompts",
        "on disk: off",
        "cache doctor: no prompt was made expensive by a small difference",
    ]


@pytest.mark.parametrize(
    ("n_bytes", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123.5 kB"), (2_500_000, "2.5 MB")]
)
def test_no_limit_is_shown_as_nothing(tmp_path: Path, n_bytes: int, shown: str) -> None:
    store = PrefixStore(tmp_path, "ab" * 32, n_bytes or 1, page_size=4)
    cache = PrefixCache(FakeKV(16), store=store)
    assert f" of at most {shown if n_bytes else '1 B'}; " in cache_report(llm_with(cache))[1]
    cache.close()


def test_figures_and_the_doctors_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.schedule.prefix_writer._IDLE_S", 100.0)
    kv = FakeKV(200)
    store = PrefixStore(tmp_path, "ab" * 32, 50_000_000, page_size=4)
    store.put(np.arange(8, dtype=np.int32), [b"x" * 100] * 2)
    cache = PrefixCache(kv, store=store)
    for clock in ("12:00", "12:01", "12:02"):
        use(cache, kv, f"Time {clock}.\nYou are a ship. {'And so on. ' * 10}")
    first, second, third = cache_report(llm_with(cache))
    assert first.startswith("prefix cache: ")
    assert "in 2 of 3 prompts" in first
    assert second.startswith("on disk: 4.3 kB in 1 file of at most 50.0 MB; 0 pages read, 2 written")
    assert third.startswith("cache doctor (the last of 2): the prompt left the cached text at token 9 of ")
    assert 'there it says "Time 12:0[2].\\nYou are a ship. And so' in third
    assert "It looks like a clock" in third
    store.turn_off("no room")
    assert cache_report(llm_with(cache))[1].endswith("; not written any more: no room")
    cache.close()
