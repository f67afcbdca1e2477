from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgeinfer.errors import ContextOverflowError
from edgeinfer.schedule.prefix_cache import PrefixCache
from edgeinfer.schedule.prefix_store import PrefixStore

from .paged import FakeKV, Ids

PAGE = 4
FINGERPRINT = "ab" * 32


def cached(cache: PrefixCache) -> dict[Ids, int]:
    """The ids up to the end of each cached page, and the page's number."""
    found = {}
    for node in cache._tree.nodes():
        ids = tuple(int(token) for step in node.path() for token in step.ids)
        found[ids] = node.page[0]
    return found


def serve(kv: FakeKV, cache: PrefixCache, prompt: list[int], answer: tuple[int, ...] = ()) -> tuple[int, int]:
    """What the scheduler does with a prompt: the sequence, still open, and how many tokens were reused."""
    match = cache.match(prompt)
    seq = kv.open(match.pages)
    kv.drop(match.pages)
    assert kv.seqs[seq][0] == prompt[: match.n_tokens]
    kv.extend(seq, prompt[match.n_tokens :])
    cache.insert(prompt, seq)
    kv.extend(seq, answer)
    cache.insert([*prompt, *answer], seq)
    return seq, match.n_tokens


# one cache, step by step


def test_a_prompt_finds_its_whole_pages_but_leaves_a_token_to_evaluate() -> None:
    kv = FakeKV()
    cache = PrefixCache(kv)
    for n, reused in ((1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (9, 8), (13, 8), (13, 12)):
        seq, n_tokens = serve(kv, cache, list(range(n)))
        assert n_tokens == reused
        kv.close(seq)
    assert cached(cache).keys() == {tuple(range(n)) for n in (4, 8, 12)}
    assert kv.free_pages == kv.n_pages - 3


def test_pages_are_shared_and_not_copied() -> None:
    kv = FakeKV()
    cache = PrefixCache(kv)
    first, _ = serve(kv, cache, list(range(12)))
    second, _ = serve(kv, cache, [*range(8), 90, 91])
    assert kv.seqs[first][1][:2] == kv.seqs[second][1][:2]
    assert kv.references[kv.seqs[first][1][0][0]] == 3
    for seq in (first, second):
        kv.close(seq)
    cache.clear()
    assert kv.free_pages == kv.n_pages


def test_the_same_tokens_at_another_place_are_another_page() -> None:
    kv = FakeKV()
    cache = PrefixCache(kv)
    serve(kv, cache, [1, 2, 3, 4, 1, 2, 3, 4, 9])
    assert cache.match([9, 9, 9, 9, 1, 2, 3, 4, 9]).n_tokens == 0
    assert cache.match([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 9]).n_tokens == 8


def test_a_page_shared_in_part_is_rewound_to() -> None:
    kv = FakeKV()
    cache = PrefixCache(kv)
    kv.close(serve(kv, cache, list(range(12)))[0])
    kv.close(serve(kv, cache, [0, 1, 2, 3, 4, 80, 81, 82, 83])[0])
    prompt = [0, 1, 2, 3, 4, 5, 6, 70, 71]
    match = cache.match(prompt, partial=True)
    assert match.n_tokens == 7
    seq = kv.open(match.pages)
    kv.drop(match.pages)
    assert kv.rewind(seq, 7) == 7
    kv.extend(seq, prompt[7:])
    assert kv.seqs[seq][0] == prompt
    assert cached(cache).keys() >= {tuple(range(8)), tuple(range(12))}  # untouched
    assert cache.match(list(range(8)), partial=True).n_tokens == 7  # one token is always left


def test_least_recently_used_leaves_go_first() -> None:
    kv = FakeKV(n_pages=6)
    cache = PrefixCache(kv)
    kv.reclaim = cache.reclaim
    for start in (10, 20, 30):
        kv.close(serve(kv, cache, [0, 1, 2, 3, *range(start, start + 4)])[0])
    assert kv.free_pages == 2
    kv.drop(cache.match([0, 1, 2, 3, *range(10, 14), 5]).pages)
    kv.close(serve(kv, cache, list(range(40, 52)))[0])  # needs three pages
    assert cached(cache).keys() >= {(0, 1, 2, 3), (0, 1, 2, 3, 10, 11, 12, 13), (0, 1, 2, 3, 30, 31, 32, 33)}
    assert (0, 1, 2, 3, 20, 21, 22, 23) not in cached(cache)
    assert cache.stats()["pages_evicted"] == 1


def test_pages_of_running_sequences_free_nothing() -> None:
    kv = FakeKV(n_pages=4)
    cache = PrefixCache(kv)
    seq, _ = serve(kv, cache, list(range(12)))
    assert cache.reclaim(1) == 0
    assert cached(cache) == {}
    kv.close(seq)
    assert kv.free_pages == 4


def test_the_budget_holds() -> None:
    kv = FakeKV(n_pages=32)
    cache = PrefixCache(kv, max_pages=5)
    for start in range(0, 400, 40):
        kv.close(serve(kv, cache, list(range(start, start + 13)))[0])
        assert len(cached(cache)) <= 5
    assert kv.free_pages == 32 - len(cached(cache))
    seq, _ = serve(kv, cache, list(range(1000, 1033)))
    kv.close(seq)
    assert cached(cache).keys() == {tuple(range(1000, 1000 + n)) for n in (4, 8, 12, 16, 20)}  # its beginning is kept


def test_figures() -> None:
    kv = FakeKV()
    cache = PrefixCache(kv)
    serve(kv, cache, list(range(10)))
    serve(kv, cache, list(range(10)))
    stats = cache.stats()
    assert stats.pop("max_pages") == 32
    assert stats == {
        "pages": 2,
        "prompts": 2,
        "prompts_reused": 1,
        "tokens": 20,
        "tokens_reused": 8,
        "pages_restored": 0,
        "pages_evicted": 0,
        "avoidable_misses": 0,
        "disk": None,
    }


def test_a_small_difference_that_cost_much_is_noted() -> None:
    kv = FakeKV(n_pages=200)
    cache = PrefixCache(kv)
    rest = list(range(100, 300))
    kv.close(serve(kv, cache, [1, 2, 3, 10, 11, *rest, 7])[0])
    kv.close(serve(kv, cache, [1, 2, 3, 12, 13, *rest, 7])[0])
    found = cache.last_divergence
    assert found is not None
    assert (found.token, found.n_again, found.ours, found.theirs) == (3, 201, (12, 13), (10, 11))
    assert cache.stats()["avoidable_misses"] == 1


# against a naive model


class Model(RuleBasedStateMachine):
    """The cache against a dictionary of prefixes, each with the time of its last use."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = FakeKV(n_pages=24)
        self.cache = PrefixCache(self.kv)
        self.kv.reclaim = self.cache.reclaim
        self.used: dict[Ids, int] = {}
        self.now = 0
        self.open: list[int] = []
        self.evicting = True

    def touch(self, prefix: Ids) -> None:
        self.now += 1
        self.used[prefix] = self.now

    def known(self, ids: list[int], most: int) -> list[Ids]:
        prefixes = [tuple(ids[: n * PAGE]) for n in range(1, most // PAGE + 1)]
        found = []
        for prefix in prefixes:
            if prefix not in self.used:
                break
            found.append(prefix)
        self.now += 1
        for prefix in found:
            self.used[prefix] = self.now
        return found

    def sync(self) -> None:
        """Take over what went because the KV cache was full: it must have been the oldest, so that order still holds."""
        have = cached(self.cache)
        gone = [prefix for prefix in self.used if prefix not in have]
        for prefix in sorted(gone, key=len, reverse=True):
            children = [
                other for other in self.used if len(other) == len(prefix) + PAGE and other[: len(prefix)] == prefix
            ]
            assert not children, "a page went before one that hangs on it"
            del self.used[prefix]

    # pages of few kinds, so that prompts often share beginnings, and part inside a page too
    prompts = st.builds(
        lambda pages, tail: [token for page in pages for token in page] + tail,
        st.lists(st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1)]), max_size=4),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
    )

    @rule(prompt=prompts, answer=st.lists(st.integers(0, 1), max_size=6), keep=st.booleans())
    def answer(self, prompt: list[int], answer: list[int], keep: bool) -> None:
        expected = self.known(prompt, len(prompt) - 1)
        match = self.cache.match(prompt)
        assert match.n_tokens == len(expected) * PAGE
        assert [self.kv.content[page] for (page,) in match.pages] == expected
        seq = self.kv.open(match.pages)
        self.kv.drop(match.pages)
        try:
            self.kv.extend(seq, prompt[match.n_tokens :])
            self.kv.extend(seq, answer)
        except ContextOverflowError:
            self.kv.close(seq)
            self.sync()
            return
        self.sync()
        whole = [*prompt, *answer]
        have = self.known(whole, len(whole))
        new = self.cache.insert(whole, seq)
        assert new == len(whole) // PAGE - len(have)
        for n in range(len(have) + 1, len(whole) // PAGE + 1):
            self.touch(tuple(whole[: n * PAGE]))
        if keep:
            self.open.append(seq)
        else:
            self.kv.close(seq)

    @rule(prompt=prompts)
    def look(self, prompt: list[int]) -> None:
        expected = self.known(prompt, len(prompt) - 1)
        match = self.cache.match(prompt)
        assert match.n_tokens == len(expected) * PAGE
        self.kv.drop(match.pages)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        seq = data.draw(st.sampled_from(self.open))
        self.open.remove(seq)
        self.kv.close(seq)

    @rule(n=st.integers(1, 6))
    def reclaim(self, n: int) -> None:
        before = self.kv.free_pages
        running = {page for seq in self.open for (page,) in self.kv.seqs[seq][1]}
        pages = cached(self.cache)
        freed = 0
        while freed < n and self.used:
            leaves = [p for p in self.used if not any(len(o) > len(p) and o[: len(p)] == p for o in self.used)]
            oldest = min(leaves, key=lambda p: (self.used[p], -len(p)))
            freed += pages[oldest] not in running
            del self.used[oldest]
        assert self.cache.reclaim(n) == freed == self.kv.free_pages - before

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.used.clear()

    @invariant()
    def the_same_pages_are_cached(self) -> None:
        assert cached(self.cache).keys() == self.used.keys()

    @invariant()
    def every_reference_is_accounted_for(self) -> None:
        expected = [0] * self.kv.n_pages
        for page in cached(self.cache).values():
            expected[page] += 1
        for _, pages in self.kv.seqs.values():
            for (page,) in pages:
                expected[page] += 1
        assert self.kv.references == expected
        assert sorted(self.kv.free) == [page for page, n in enumerate(expected) if not n]


TestModel = Model.TestCase
TestModel.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_many_threads() -> None:
    kv = FakeKV(n_pages=40)
    cache = PrefixCache(kv)
    kv.reclaim = cache.reclaim
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(150):
                prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 20))]
                try:
                    kv.close(serve(kv, cache, prompt, tuple(rng.randrange(2) for _ in range(4)))[0])
                except ContextOverflowError:
                    for seq in [seq for seq in kv.seqs if seq % 4 == seed]:
                        kv.close(seq)
                if rng.random() < 0.1:
                    cache.reclaim(rng.randrange(10))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for ids, page in cached(cache).items():
        assert kv.content[page] == ids
    for seq in list(kv.seqs):
        kv.close(seq)
    cache.clear()
    assert kv.free_pages == 40


# with the disk


def store_in(folder: Path) -> PrefixStore:
    return PrefixStore(folder / "prefix", FINGERPRINT, 1 << 30, page_size=PAGE)


def restarted(folder: Path, n_pages: int = 32) -> tuple[FakeKV, PrefixCache]:
    kv = FakeKV(n_pages)
    cache = PrefixCache(kv, store=store_in(folder))
    kv.reclaim = cache.reclaim
    return kv, cache


SYSTEM = list(range(100, 117))  # four pages and a token


def test_a_pinned_head_survives_a_restart(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    cache.pin(SYSTEM)
    kv.close(serve(kv, cache, [*SYSTEM, 1, 2, 3, 4, 5, 6, 7, 8])[0])
    cache.close()
    assert kv.free_pages == kv.n_pages
    kv, cache = restarted(tmp_path)
    seq, reused = serve(kv, cache, [*SYSTEM, 9, 9])
    assert reused == 16
    assert kv.seqs[seq][0] == [*SYSTEM, 9, 9]
    assert [kv.content[page] for (page,) in kv.seqs[seq][1]][:4] == [tuple(SYSTEM[:n]) for n in (4, 8, 12, 16)]
    assert cache.stats()["pages_restored"] == 4
    assert cache.match([*SYSTEM, 1, 2, 3, 4, 5, 6, 7, 8]).n_tokens == 16  # what was said is not there
    files = list((tmp_path / "prefix" / FINGERPRINT[:32]).iterdir())
    assert len(files) == 1
    cache.close()
    assert list((tmp_path / "prefix" / FINGERPRINT[:32]).iterdir()) == files  # it was there: not written again


def test_the_beginning_that_two_prompts_share_is_written(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    kv.close(serve(kv, cache, [*SYSTEM, *range(20)])[0])
    kv.close(serve(kv, cache, [*SYSTEM, *range(50, 70)])[0])
    cache.close()
    kv, cache = restarted(tmp_path)
    assert serve(kv, cache, [*SYSTEM, 9])[1] == 16


def test_the_beginning_of_short_questions_is_written(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    for question in (1, 2, 3):
        kv.close(serve(kv, cache, [*SYSTEM, question])[0])
    cache.close()
    kv, cache = restarted(tmp_path)
    assert serve(kv, cache, SYSTEM)[1] == 16


def test_prompts_that_needed_no_match_count_too(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    kv.close(serve(kv, cache, [*SYSTEM, 1])[0])
    for question in (2, 3):
        cache.note([*SYSTEM, question], 17)
    stats = cache.stats()
    assert (stats["prompts"], stats["prompts_reused"], stats["tokens_reused"]) == (3, 2, 34)
    cache.close()
    kv, cache = restarted(tmp_path)
    assert serve(kv, cache, SYSTEM)[1] == 16


def test_the_same_prompt_again_is_not_written(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    for _ in range(5):
        kv.close(serve(kv, cache, SYSTEM, (1, 2))[0])
    cache.close()
    assert not (tmp_path / "prefix").exists()


def test_an_error_of_the_writer_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv, cache = restarted(tmp_path)

    def fail(page: Any) -> bytes:
        raise ValueError("no such page")

    monkeypatch.setattr(kv, "export", fail)
    cache.pin(SYSTEM)
    kv.close(serve(kv, cache, SYSTEM)[0])
    cache.close()
    assert cache.stats()["disk"]["off"] == "ValueError: no such page"
    assert kv.free_pages == kv.n_pages


def test_a_conversation_is_not_written(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    talk = list(SYSTEM)
    for turn in range(5):
        talk += [turn * 10 + i for i in range(9)]
        kv.close(serve(kv, cache, talk, (1, 2, 3, 4, 5))[0])
        talk += [1, 2, 3, 4, 5]
    cache.close()
    assert not (tmp_path / "prefix").exists()


def test_a_beginning_of_one_page_is_not_worth_a_file(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    cache.pin(SYSTEM[:7])
    for start in (10, 20, 30, 40):
        kv.close(serve(kv, cache, [*SYSTEM[:4], *range(start, start + 9)])[0])
    cache.close()
    assert not (tmp_path / "prefix").exists()


def test_a_full_kv_cache_restores_what_it_can(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    cache.pin(SYSTEM)
    kv.close(serve(kv, cache, SYSTEM)[0])
    cache.close()
    kv, cache = restarted(tmp_path, n_pages=6)
    running = kv.open()
    kv.extend(running, range(16))
    match = cache.match(SYSTEM)
    assert match.n_tokens == 8
    kv.drop(match.pages)
    kv.close(running)
    assert serve(kv, cache, SYSTEM)[1] == 16
    assert kv.free_pages == 6 - 5


def test_two_prompts_restore_the_same_pages_at_once(tmp_path: Path) -> None:
    kv, cache = restarted(tmp_path)
    cache.pin(SYSTEM)
    kv.close(serve(kv, cache, SYSTEM)[0])
    cache.close()
    kv, cache = restarted(tmp_path)
    barrier = threading.Barrier(2)
    first = [True, True]

    def wait() -> None:
        if first:
            first.pop()
            barrier.wait(5)

    kv.before_load = wait
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(serve(kv, cache, SYSTEM)[1])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [16, 16]
    for seq in list(kv.seqs):
        kv.close(seq)
    assert len(cached(cache)) == kv.n_pages - kv.free_pages == 4


def test_pages_of_another_size_are_of_no_use(tmp_path: Path) -> None:
    store_in(tmp_path).put(np.array(SYSTEM[:8], np.int32), [b"x" * 10, b"y" * 10])
    kv, cache = restarted(tmp_path)
    assert cache.match(SYSTEM).n_tokens == 0
    assert kv.free_pages == kv.n_pages


def test_closing_in_the_middle_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv, cache = restarted(tmp_path)
    started, go = threading.Event(), threading.Event()
    plain = kv.export

    def slow(page: Any) -> bytes:
        started.set()
        go.wait(5)
        return plain(page)

    monkeypatch.setattr(kv, "export", slow)
    monkeypatch.setattr("edgeinfer.schedule.prefix_writer._IDLE_S", 0.0)
    cache.pin(SYSTEM)
    kv.close(serve(kv, cache, SYSTEM)[0])
    assert started.wait(5)
    threading.Timer(0.2, go.set).start()
    cache.close(wait_s=0.05)  # returns when the page that is being read has been read
    assert go.is_set()
    monkeypatch.setattr(kv, "export", None)  # nothing is read any more
    writer: Any = cache._writer
    writer._thread.join(5)
    assert kv.free_pages == kv.n_pages
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_writing_waits_until_nobody_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.schedule.prefix_writer._IDLE_S", 0.15)
    kv, cache = restarted(tmp_path)
    cache.pin(SYSTEM)
    for _ in range(10):
        kv.close(serve(kv, cache, SYSTEM)[0])
        threading.Event().wait(0.02)
        assert not (tmp_path / "prefix").exists()
    for _ in range(100):
        threading.Event().wait(0.05)
        if list(tmp_path.rglob("*.kv")):
            break
    assert len(list(tmp_path.rglob("*.kv"))) == 1
    cache.close()
