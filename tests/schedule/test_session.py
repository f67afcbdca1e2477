from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.errors import EngineError
from edgeinfer.schedule.prefix_cache import PrefixCache
from edgeinfer.schedule.session import Session, Sessions
from tests.fakes import PagedCache, ScriptedCache, ScriptedEngine


def sessions(kv: ScriptedCache, prefix: Any = None, most_idle: int = 8) -> Sessions:
    engine: Any = ScriptedEngine(kv=kv)
    return Sessions(engine, prefix, most_idle=most_idle)


def filled(desk: Sessions, ids: list[int]) -> Session:
    """A session that holds ids."""
    session = desk.new()
    kv: Any = desk._kv
    kv.held[session.seq] += ids
    session.ids = list(ids)
    return session


def keep(desk: Sessions, ids: list[int]) -> Session:
    session = filled(desk, ids)
    desk.share(session)
    desk.keep(session)
    return session


def test_the_conversation_that_shares_most_goes_on() -> None:
    desk = sessions(ScriptedCache())
    short, long = keep(desk, [1, 2, 3]), keep(desk, [1, 2, 4, 5])
    taken, _ = desk.take([1, 2, 4, 5, 6, 7])
    assert taken is long
    assert taken.ids == [1, 2, 4, 5]
    assert desk.idle == [short]
    taken, _ = desk.take([1, 2, 9])
    assert (taken, taken.ids) == (short, [1, 2])
    taken, _ = desk.take([8, 8])
    assert taken.ids == []


def test_one_token_is_always_left() -> None:
    desk = sessions(ScriptedCache())
    keep(desk, [1, 2, 3])
    taken, _ = desk.take([1, 2, 3])
    assert taken.ids == [1, 2]


def test_a_long_conversation_is_copied_rather_than_cut_short() -> None:
    kv = ScriptedCache()
    desk = sessions(kv, most_idle=2)
    long = keep(desk, list(range(200)))
    taken, _ = desk.take([*range(50), 7])
    assert taken is not long
    assert (taken.ids, long.ids) == (list(range(50)), list(range(200)))
    assert desk.idle == [long]
    keep(desk, [500])
    taken, _ = desk.take([*range(50), 7])  # no room for one more: the longer part wins
    assert (taken.ids, long.ids) == ([], list(range(200)))
    taken, _ = desk.take([*range(150), 7])
    assert (taken, taken.ids) == (long, list(range(150)))


def test_a_few_tokens_in_common_are_no_reason_to_end_a_conversation() -> None:
    desk = sessions(ScriptedCache())
    talk = keep(desk, [1, *range(100, 140)])  # a begin token is in every prompt
    assert desk.take([1, 2, 3])[0].ids == []
    assert desk.idle == [talk]


def test_what_a_cache_cannot_rewind_to_is_believed() -> None:
    desk = sessions(ScriptedCache(grain=4))
    keep(desk, list(range(10)))
    taken, _ = desk.take([*range(7), 99])
    assert taken.ids == [0, 1, 2, 3]


def test_a_sequence_that_cannot_be_mended_is_closed() -> None:
    kv = ScriptedCache()
    desk = sessions(kv)
    keep(desk, list(range(10)))
    kv.broken = True
    taken, _ = desk.take([*range(7), 99])
    assert taken.ids == []
    session = filled(desk, [5, 6, 7])
    session.ids = [5]
    assert not desk.settle(session)
    kv.broken = False
    desk.drop(taken)
    assert kv.held == {}


def test_the_oldest_idle_ones_go_first() -> None:
    kv = ScriptedCache()
    desk = sessions(kv, most_idle=2)
    kept = [keep(desk, [i, i]) for i in range(4)]
    assert desk.idle == kept[2:]
    assert len(kv.held) == 2
    assert desk.shed()
    assert desk.idle == kept[3:]
    desk.clear()
    assert not desk.shed()
    assert kv.held == {}


def test_an_idle_session_makes_room_where_all_sequences_are_open() -> None:
    kv = PagedCache(100, n_seq=3)
    desk = sessions(kv)
    for i in range(3):
        keep(desk, [i, i])
    assert desk.take([9, 9])[0].ids == []
    assert len(desk.idle) == 2


def test_whole_pages_and_the_tail_beyond_them() -> None:
    kv = PagedCache(100)
    desk = sessions(kv, PrefixCache(kv))
    keep(desk, list(range(10)))  # two pages and two more tokens
    taken, _ = desk.take([*range(10), 50])
    assert taken.ids == list(range(10))  # the conversation itself
    again, _ = desk.take([*range(10), 50])
    assert again.ids == list(range(8))  # the pages, while the conversation is away
    for session in (taken, again):
        desk.drop(session)
    desk.clear()
    assert (kv.free_pages, kv.references) == (100, {})


def test_reclaim_frees_what_nobody_runs_on() -> None:
    kv = PagedCache(10)
    desk = sessions(kv, PrefixCache(kv))
    running = filled(desk, list(range(8)))
    desk.share(running)
    keep(desk, [7] * 16)
    assert kv.free_pages < 5
    assert desk.reclaim(8) >= 4
    assert kv.free_pages == 8  # what runs has its two
    desk.drop(running)


@pytest.mark.parametrize("held", [3, 5, 8])
def test_after_an_error_the_sequence_holds_what_is_known(held: int) -> None:
    kv = ScriptedCache()
    desk = sessions(kv)
    session = filled(desk, [1, 2, 3])
    kv.held[session.seq] = list(range(held))
    session.ids = [0, 1, 2]
    assert desk.settle(session)
    assert kv.held[session.seq] == session.ids == [0, 1, 2]


def test_an_engine_that_is_gone() -> None:
    kv = ScriptedCache()
    desk = sessions(kv)
    session = keep(desk, [1, 2, 3])

    def gone(seq: int) -> None:
        raise EngineError("gone")

    kv.close = gone  # type: ignore[method-assign]
    desk.clear()
    assert session.ids == []
