"""State that is carried from token to token: it survives rewinds, forks, shared pages, the disk, and forwards that fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.arch.family import KVGroup
from edgeinfer.engine.kv import PAGE, PagedKV
from edgeinfer.engine.native import NativeEngine
from edgeinfer.engine.types import Batch, ForwardStopped
from edgeinfer.errors import SettingError
from tests.arch.families import copied, reference, unpack
from tests.engine.open import forward, ids_of, open_engine, run
from tests.schedule.test_prefix_engine import PROMPT, last_row, opened

same = np.testing.assert_array_equal
KEEP = 14  # 16 slots, of which the two before a position are its state


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lfm2")
    return copied(unpack("lfm2", folder), folder / "q8.gguf", "Q8_0")


IDS = reference("lfm2").ids


def test_rewinds_reach_a_few_tokens_or_the_last_checkpoint(path: Path) -> None:
    with open_engine(path, n_threads=2) as engine:
        seq = engine.kv.open()
        want = run(engine, IDS, seq=seq)
        for back, reached in ((219, 219), (206, 206), (205, 192), (178, 178), (177, 128), (128, 128), (5, 0)):
            assert engine.kv.rewind(seq, back) == reached
            same(run(engine, IDS[reached : back + 20], [30], seq), want[reached : back + 20])


def test_what_was_taken_back_cannot_be_gone_back_behind(path: Path) -> None:
    """Tokens that were rejected have overwritten state from before them; only what is still there may be reached."""
    with open_engine(path, n_threads=2) as engine:
        want = run(engine, IDS[:60])
        seq = engine.kv.open()
        run(engine, IDS[:30], seq=seq)
        run(engine, ids_of(10, 280), seq=seq)
        assert engine.kv.rewind(seq, 30) == 30
        same(run(engine, IDS[30:35], [1], seq), want[30:35])
        assert engine.kv.rewind(seq, 26) == 26  # 14 before 40
        same(run(engine, IDS[26:30], seq=seq), want[26:30])
        assert engine.kv.rewind(seq, 25) == 0
        same(run(engine, IDS[:60], seq=seq), want)


def test_forks_where_state_is_kept(path: Path) -> None:
    with open_engine(path, n_threads=2) as engine:
        want, seq = run(engine, IDS), engine.kv.open()
        run(engine, IDS[:150], seq=seq)
        for n in (150, 140, 128, 64):
            child = engine.kv.fork(seq, n)
            same(run(engine, IDS[n : n + 20], [3], child), want[n : n + 20])
            engine.kv.close(child)
        with pytest.raises(SettingError, match="cannot fork at 130: state is kept at 128"):
            engine.kv.fork(seq, 130)
        same(run(engine, IDS[150:], seq=seq), want[150:])  # the parent saw nothing of it


def test_whole_pages_are_shared_and_kept_as_bytes(path: Path) -> None:
    with open_engine(path, n_threads=2) as engine:
        want, seq = run(engine, IDS), engine.kv.open()
        run(engine, IDS[:150], seq=seq)
        pages = engine.kv.hold(seq, 0, 9)
        assert len(pages) == 2
        exported = [engine.kv.export(page) for page in pages]
        engine.kv.close(seq)
        again = engine.kv.open(pages)
        same(run(engine, IDS[128:], [11], again), want[128:])
        assert engine.kv.rewind(again, 120) == 120  # into a shared page, which is copied
        same(run(engine, ids_of(9, 280), seq=again), run_after(engine, IDS[:120], ids_of(9, 280)))
        other = engine.kv.open(pages)
        same(run(engine, IDS[128:150], seq=other), want[128:150])
    with open_engine(path) as fresh:
        seq = fresh.kv.open([fresh.kv.load(data) for data in exported])
        same(run(fresh, IDS[128:], [5], seq), want[128:])


def run_after(engine: NativeEngine, before: list[int], ids: list[int]) -> np.ndarray:
    return run(engine, [*before, *ids])[len(before) :]


@pytest.mark.parametrize("n", [40, 9])
def test_a_forward_that_is_stopped_leaves_the_state_as_it_was(path: Path, n: int) -> None:
    """One that would have overwritten the state it began with, and a short one."""
    with open_engine(path, n_threads=2) as engine:
        want, seq = run(engine, IDS), engine.kv.open()
        run(engine, IDS[:70], seq=seq)
        lane = engine._lanes["prefill"]
        team = lane.team

        class Stopping:
            """Runs the program, and says then that it was stopped: all pages have been written."""

            def run(self, *call: int) -> None:
                team.run(*call)
                raise ForwardStopped

        lane.team = Stopping()  # type: ignore[assignment]
        with pytest.raises(ForwardStopped):
            engine.forward(Batch.of(seq, ids_of(n, 280), 70, "none"), "prefill")
        lane.team = team
        assert engine.kv.n_past(seq) == 70
        same(run(engine, IDS[70:], [13], seq), want[70:])


def test_two_sequences_in_one_forward_keep_their_state_apart(path: Path) -> None:
    with open_engine(path, n_threads=3) as engine:
        other = ids_of(100, 280, seed=6)
        want, want_other = run(engine, IDS), run(engine, other)
        a, b = engine.kv.open(), engine.kv.open()
        for i in range(0, 100, 20):
            rows = forward_both(engine, (a, IDS[i : i + 20]), (b, other[i : i + 20]))
            same(rows[:20], want[i : i + 20])
            same(rows[20:], want_other[i : i + 20])
        same(forward(engine, a, IDS[100:101], "decode"), want[100:101])


def forward_both(engine: NativeEngine, *pieces: tuple[int, list[int]]) -> np.ndarray:
    from tests.engine.open import joined

    return np.concatenate(joined(engine, pieces))


def test_a_group_of_state_has_pages_of_its_own_size() -> None:
    groups = (KVGroup(2), KVGroup(3, state_bytes=256, keep=KEEP))
    kv = PagedKV(groups, 1024, n_ctx=256, n_positions=512)
    assert [pool.page_bytes for pool in kv.pools] == [1024, 256]
    assert "3/0/256" in kv.layout
    seq = kv.open()
    kv.grow(seq, PAGE)
    kv.advance(seq, PAGE)
    page = kv.hold(seq, 0, 1)[0]
    assert len(kv.export(page)) == 2 * 1024 + 3 * 256
    kv.drop([page])


def test_the_prefix_cache_in_memory_and_on_disk(path: Path, tmp_path: Path) -> None:
    """Whole pages of a prompt are taken over; a page that is the prompt's only in part gives its beginning, not its middle."""
    other = [*PROMPT[:300], 5, *PROMPT[301:]]
    with opened(path, tmp_path / "cold") as (engine, cache):
        n, cold = last_row(engine, cache, PROMPT)
        assert n == 0
    with opened(path, tmp_path / "warm") as (engine, cache):
        n, cold_other = last_row(engine, cache, other)
        assert not np.array_equal(cold, cold_other)
        n, row = last_row(engine, cache, PROMPT, partial=True)
        assert n == 256
        same(row, cold)
        n, row = last_row(engine, cache, PROMPT)
        assert n == 384
        same(row, cold)
        cache.pin(PROMPT[:400])
    with opened(path, tmp_path / "warm") as (engine, cache):
        n, row = last_row(engine, cache, PROMPT)
        assert n == 384  # from the disk
        same(row, cold)
