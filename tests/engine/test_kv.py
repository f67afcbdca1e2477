"""The paged KV cache: pages are handed out, shared, copied and given back, and none is ever lost or in two places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edgeinfer.arch.family import KVGroup
from edgeinfer.engine.kv import PAGE, Page, PagedKV
from edgeinfer.errors import ContextOverflowError, ModelFileError, NotFoundError, SettingError

PAGE_BYTES = 128
GROUPS = (KVGroup(2), KVGroup(1, window=32))


def cache(n_ctx: int = 256, n_positions: int = 512, n_seq: int = 8) -> PagedKV:
    return PagedKV(GROUPS, PAGE_BYTES, n_ctx, n_positions, n_seq)


def fill(kv: PagedKV, seq: int, n: int) -> None:
    """n positions more, as a forward does it."""
    kv.grow(seq, n)
    kv.advance(seq, n)


def pages(kv: PagedKV, seq: int, group: int = 0) -> list[int]:
    """The pages that hold a sequence's positions."""
    return [int(p) for p in kv.table[seq, group, : -(-kv.n_past(seq) // PAGE)]]


def content(kv: PagedKV, group: int, layer: int, page: int) -> np.ndarray:
    """The bytes of a page of one layer: a view."""
    pool = kv.pools[group]
    return pool.arena.view(kv.layer_address(group, layer) + page * kv.page_stride(group), PAGE_BYTES)


def test_pages_come_as_a_sequence_grows() -> None:
    kv = cache()
    seq = kv.open()
    assert (kv.n_past(seq), kv.free_pages) == (0, 8)
    for n, held in ((1, 1), (63, 1), (1, 2), (128, 4)):
        fill(kv, seq, n)
        assert kv.free_pages == 8 - held
    assert kv.n_past(seq) == 193
    assert len(set(pages(kv, seq))) == 4
    kv.close(seq)
    assert kv.free_pages == 8


def test_sequence_ids_are_used_again() -> None:
    kv = cache(n_seq=2)
    first, second = kv.open(), kv.open()
    with pytest.raises(SettingError, match="all 2 sequences of the KV cache are open"):
        kv.open()
    kv.close(first)
    assert kv.open() == first
    assert kv.n_past(first) == kv.n_past(second) == 0


@pytest.mark.parametrize("seq", [-1, 0, 8, 1000])
def test_a_sequence_that_is_not_open_is_refused(seq: int) -> None:
    kv = cache()
    for use in (kv.n_past, kv.close, lambda s: kv.grow(s, 1), lambda s: kv.fork(s, 0), lambda s: kv.rewind(s, 0)):
        with pytest.raises(NotFoundError, match=f"sequence {seq} is not open"):
            use(seq)


def test_the_context_is_a_limit_of_each_sequence() -> None:
    kv = cache(n_ctx=100)
    seq = kv.open()
    fill(kv, seq, 90)
    with pytest.raises(ContextOverflowError, match="holds 90 tokens and 11 more were given; the context is 100"):
        kv.grow(seq, 11)
    fill(kv, seq, 10)
    assert kv.n_past(seq) == 100
    with pytest.raises(ContextOverflowError):
        kv.grow(seq, 1)


def test_a_full_pool_refuses_and_leaves_everything_as_it_was() -> None:
    kv = cache(n_positions=192)  # 3 pages
    a, b = kv.open(), kv.open()
    fill(kv, a, 100)
    fill(kv, b, 60)
    with pytest.raises(ContextOverflowError, match="KV cache is full: 1 pages wanted, 0 free; close a sequence"):
        kv.grow(b, 5)
    assert kv.n_past(b) == 60
    fill(kv, b, 4)  # still fits in its page
    fill(kv, a, 28)
    kv.close(a)
    fill(kv, b, 100)
    assert kv.free_pages == 0


def test_a_fork_shares_whole_pages_and_copies_the_last() -> None:
    kv = cache()
    a = kv.open()
    fill(kv, a, 100)
    for group, layer in ((0, 0), (0, 1), (1, 0)):
        content(kv, group, layer, pages(kv, a, group)[1])[:] = 10 * group + layer + 1
    b = kv.fork(a, 70)
    assert kv.n_past(b) == 70
    for group, layer in ((0, 0), (0, 1), (1, 0)):
        mine, theirs = pages(kv, b, group), pages(kv, a, group)
        assert mine[0] == theirs[0]
        assert mine[1] != theirs[1]
        assert (content(kv, group, layer, mine[1]) == 10 * group + layer + 1).all()
    assert kv.free_pages == 8 - 3
    kv.close(a)
    assert kv.free_pages == 8 - 2  # the shared page lives on
    kv.close(b)
    assert kv.free_pages == 8


@pytest.mark.parametrize("n", [0, 64, 128])
def test_a_fork_at_a_page_boundary_copies_nothing(n: int) -> None:
    kv = cache()
    a = kv.open()
    fill(kv, a, 130)
    free = kv.free_pages
    b = kv.fork(a, n)
    assert kv.free_pages == free
    assert pages(kv, b) == pages(kv, a)[: n // 64]
    fill(kv, b, 1)
    assert pages(kv, b)[-1] not in pages(kv, a)


def test_what_cannot_be_forked_is_refused() -> None:
    kv = cache(n_positions=128, n_seq=2)
    a = kv.open()
    fill(kv, a, 70)
    for n in (-1, 71):
        with pytest.raises(SettingError, match=f"cannot fork {n} positions of a sequence that holds 70"):
            kv.fork(a, n)
    with pytest.raises(ContextOverflowError, match="no page free to fork into"):
        kv.fork(a, 70)
    b = kv.fork(a, 64)
    with pytest.raises(SettingError, match="all 2 sequences"):
        kv.fork(a, 64)
    kv.close(b)
    assert kv.free_pages == 0
    kv.close(a)
    assert kv.free_pages == 2


def test_rewind_gives_pages_back() -> None:
    kv = cache()
    a = kv.open()
    fill(kv, a, 200)
    first = pages(kv, a)
    assert kv.rewind(a, 65) == 65
    assert pages(kv, a) == first[:2]
    assert kv.free_pages == 6
    assert kv.rewind(a, 64) == 64
    assert kv.free_pages == 7
    assert kv.rewind(a, 64) == 64
    for n in (-1, 65):
        with pytest.raises(SettingError, match=f"cannot rewind to {n}: the sequence holds 64 positions"):
            kv.rewind(a, n)


def test_rewind_into_a_shared_page_takes_a_copy() -> None:
    kv = cache()
    a = kv.open()
    fill(kv, a, 128)
    content(kv, 0, 1, pages(kv, a)[1])[:] = 7
    b = kv.fork(a, 128)
    assert pages(kv, a) == pages(kv, b)
    assert kv.rewind(b, 100) == 100
    assert pages(kv, b)[0] == pages(kv, a)[0]
    assert pages(kv, b)[1] != pages(kv, a)[1]
    assert (content(kv, 0, 1, pages(kv, b)[1]) == 7).all()


def test_rewind_without_room_for_a_copy_goes_to_the_page_start() -> None:
    """And gives each page back once: the pages beyond are shared too, so nothing comes free on the way."""
    kv = cache(n_positions=192)
    a = kv.open()
    fill(kv, a, 192)
    b = kv.fork(a, 192)
    assert kv.free_pages == 0
    assert kv.rewind(b, 100) == 64
    assert kv.n_past(b) == 64
    assert [pool.references for pool in kv.pools] == [[2, 1, 1], [2, 1, 1]]
    kv.close(a)
    assert kv.free_pages == 2
    kv.close(b)
    assert kv.free_pages == 3


def test_trim_takes_nothing_from_other_sequences() -> None:
    """Table entries beyond what a sequence holds are stale; they may name pages that are others' now."""
    kv = cache()
    a, b = kv.open(), kv.open()
    fill(kv, b, 150)
    kv.rewind(b, 10)  # leaves stale numbers of two pages behind
    fill(kv, a, 150)  # which a takes
    kv.grow(b, 30)
    kv.trim(b)
    kv.grow(b, 60)  # one page more
    kv.trim(b)
    assert kv.pools[0].references.count(1) == 4
    assert kv.free_pages == 4
    fresh = kv.open()
    kv.grow(fresh, 64)
    kv.trim(fresh)
    assert kv.free_pages == 4
    assert all(kv.pools[0].references[p] == 1 for p in pages(kv, a))


def test_a_window_gives_back_what_no_later_position_sees() -> None:
    kv = cache(n_ctx=1024, n_positions=1024)
    seq = kv.open()
    fill(kv, seq, 700)
    window = kv.pools[1]
    assert len(kv.pools[0].free) == 16 - 11
    passed = (700 - 32 - 256) // PAGE
    assert len(window.free) == 16 - 11 + passed
    assert kv.table[seq, 1, :passed].tolist() == [-1] * passed
    assert kv.rewind(seq, 600) == 600  # what position 600 looks back at is still there
    with pytest.raises(SettingError, match=f"cannot fork at 200: the window of sequence {seq} has passed"):
        kv.fork(seq, 200)
    fresh = kv.fork(seq, 0)
    fill(kv, fresh, 300)
    kv.close(fresh)
    assert kv.rewind(seq, 200) == 0  # not there: all has to be evaluated again
    assert [len(pool.free) for pool in kv.pools] == [16, 16]


def test_an_empty_fork_of_a_windowed_sequence_starts_anew() -> None:
    kv = cache(n_ctx=1024, n_positions=2048)
    old = kv.open()
    fill(kv, old, 700)
    fresh = kv.fork(old, 0)
    fill(kv, fresh, 100)
    assert kv.rewind(fresh, 70) == 70
    fill(kv, fresh, 600)
    assert int((kv.table[fresh, 1] < 0).sum()) == (670 - 32 - 256) // PAGE + 16 - 11


def test_held_pages_outlive_their_sequence_and_start_another() -> None:
    kv = cache()
    a = kv.open()
    fill(kv, a, 150)
    for page in pages(kv, a):
        content(kv, 0, 1, page)[:] = page + 1
    held = kv.hold(a, 0, 9)
    assert len(held) == 2  # the third is not full
    kv.close(a)
    assert kv.free_pages == 6
    b = kv.open(held)
    assert kv.n_past(b) == 128
    assert (content(kv, 0, 1, pages(kv, b)[1]) == held[1][0] + 1).all()
    kv.drop(held)
    assert kv.free_pages == 6
    kv.close(b)
    assert kv.free_pages == 8


def test_a_page_goes_out_and_comes_back() -> None:
    kv = cache()
    a = kv.open()
    fill(kv, a, 64)
    rng = np.random.default_rng(0)
    for group, layer in ((0, 0), (0, 1), (1, 0)):
        content(kv, group, layer, pages(kv, a, group)[0])[:] = rng.integers(0, 256, PAGE_BYTES)
    (page,) = kv.hold(a, 0, 1)
    data = kv.export(page)
    assert len(data) == 3 * PAGE_BYTES
    other = kv.load(data)
    assert other != page
    assert kv.export(other) == data
    with pytest.raises(ModelFileError, match=f"a KV page is 5 bytes; wanted {3 * PAGE_BYTES}"):
        kv.load(b"12345")
    kv.drop([page, other])
    kv.close(a)
    assert kv.free_pages == 8


class Pages(RuleBasedStateMachine):
    """Any order of calls: each position of each sequence keeps the value that was written to it."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.kv = cache(n_ctx=640, n_positions=1024, n_seq=5)
        self.held: list[Page] = []
        self.model: dict[int, list[int]] = {}  # what each sequence should hold, one byte a position
        self.counter = 0

    def write(self, seq: int, start: int, values: list[int]) -> None:
        for g, group in enumerate(GROUPS):
            for layer in range(group.n_layer):
                for i, value in enumerate(values):
                    page = int(self.kv.table[seq, g, (start + i) // PAGE])
                    content(self.kv, g, layer, page)[(start + i) % PAGE] = value

    @rule(target=sequences)
    def open(self) -> int:
        try:
            seq = self.kv.open()
        except SettingError:
            assert len(self.model) == 5
            return -1
        assert seq not in self.model
        self.model[seq] = []
        return seq

    @rule(seq=sequences, n=st.integers(1, 330), fails=st.booleans())
    def grow(self, seq: int, n: int, fails: bool) -> None:
        if seq not in self.model:
            return
        past = len(self.model[seq])
        try:
            self.kv.grow(seq, n)
        except ContextOverflowError:
            wanted = -(-(past + n) // PAGE) - -(-past // PAGE)
            assert past + n > 640 or wanted > self.kv.free_pages
            return
        if fails:
            self.kv.trim(seq)
            return
        values = [(self.counter + i) % 251 for i in range(n)]
        self.counter += n
        self.write(seq, past, values)
        self.kv.advance(seq, n)
        self.model[seq] += values

    @rule(target=sequences, src=sequences, share=st.floats(0, 1), whole=st.booleans())
    def fork(self, src: int, share: float, whole: bool) -> int:
        if src not in self.model:
            return -1
        n = int(share * len(self.model[src]))
        n = n // PAGE * PAGE if whole else n
        try:
            seq = self.kv.fork(src, n)
        except SettingError:
            assert len(self.model) == 5 or self.passed(src, 1)
            return -1
        except ContextOverflowError:
            assert n % PAGE
            assert self.kv.free_pages == 0
            return -1
        self.model[seq] = self.model[src][:n]
        return seq

    @rule(seq=sequences, share=st.floats(0, 1))
    def rewind(self, seq: int, share: float) -> None:
        if seq not in self.model:
            return
        n = int(share * len(self.model[seq]))
        reached = self.kv.rewind(seq, n)
        assert reached in (n, n // PAGE * PAGE, 0)
        if reached == 0 < n // PAGE:
            assert self.passed(seq, 1) > 0  # a window's pages are gone
        del self.model[seq][reached:]

    @rule(seq=sequences, first=st.integers(0, 3), count=st.integers(1, 4))
    def hold(self, seq: int, first: int, count: int) -> None:
        if seq in self.model:
            self.held += self.kv.hold(seq, first, count)

    @rule()
    def let_go(self) -> None:
        self.kv.drop(self.held)
        self.held = []

    def passed(self, seq: int, group: int) -> int:
        """Leading pages that the group has given back."""
        row = self.kv.table[seq, group, : -(-len(self.model[seq]) // PAGE)]
        gone = int((row < 0).sum())
        assert (row[:gone] < 0).all()
        return gone

    @rule(seq=consumes(sequences))
    def close(self, seq: int) -> None:
        if seq in self.model:
            self.kv.close(seq)
            del self.model[seq]

    @invariant()
    def pages_are_counted(self) -> None:
        for g, pool in enumerate(self.kv.pools):
            held = [p for seq in self.model for p in pages(self.kv, seq, g) if p >= 0] + [p[g] for p in self.held]
            assert len(pool.free) == len(set(pool.free))
            assert set(pool.free) | set(held) == set(range(pool.n_pages))
            assert not set(pool.free) & set(held)
            assert all(pool.references[p] == held.count(p) for p in range(pool.n_pages))

    @invariant()
    def contents_are_kept(self) -> None:
        for seq, values in self.model.items():
            assert self.kv.n_past(seq) == len(values)
            for g, group in enumerate(GROUPS):
                gone = self.passed(seq, g)
                assert not gone or gone * PAGE <= len(values) - group.window
                for layer in range(group.n_layer):
                    got = [content(self.kv, g, layer, p) for p in pages(self.kv, seq, g)[gone:]]
                    stored = [int(x) for page in got for x in page[:PAGE]]
                    assert stored[: len(values) - gone * PAGE] == values[gone * PAGE :]


Pages.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPages = Pages.TestCase
