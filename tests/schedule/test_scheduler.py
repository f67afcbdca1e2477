from __future__ import annotations

import gc
import os
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import BusyError, ContextOverflowError, EngineError, NumericError, SettingError
from edgeinfer.schedule.prefix_cache import PrefixCache
from tests.fakes import BOS, N_VOCAB, PagedCache, ScriptedEngine, hashed
from tests.schedule.desk import Desk, tokens, wait_until


class TwoLanes(ScriptedEngine):
    """A scripted engine that runs two lanes at once, and knows when threads are lent twice."""

    def __init__(self, *args: Any, n_threads: int = 2, seconds: float = 0.001, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.n_threads, self.seconds = n_threads, seconds
        self.running: dict[str, set[int]] = {}
        self.lent = 0
        self.guard = threading.Lock()
        self.both = 0

    def forward(self, batch: Any, lane: str = "decode", n_threads: int = 0) -> Any:
        seqs = {int(seq) for seq in batch.seq_ids}
        with self.guard:
            assert lane not in self.running, "a lane serves one caller at a time"
            assert not any(seqs & others for others in self.running.values()), "the lanes share a sequence"
            assert self.lent + n_threads <= self.n_threads, "more threads than there are"
            self.running[lane] = seqs
            self.lent += n_threads
            self.both += len(self.running) == 2
        try:
            time.sleep(self.seconds)
            with self.guard:
                return super()._forward(batch, lane)
        finally:
            with self.guard:
                del self.running[lane]
                self.lent -= n_threads


def paged(n_pages: int, page_size: int = 4, **settings: Any) -> Any:
    """Settings of an engine with a pool of pages, and the pool."""
    return {"kv": PagedCache(n_pages, page_size), **settings}


# results are those of the request alone


def request(i: int) -> tuple[list[int], dict[str, Any]]:
    """The i-th of many different requests: greedy or not, short or long, with penalties and stops."""
    rng = random.Random(i)
    prompt = [rng.randrange(256) for _ in range(rng.choice([1, 3, 8, 20, 60]))]
    params: dict[str, Any] = {"max_tokens": rng.choice([1, 5, 30]), "seed": i}
    if i % 2:
        params |= {"temperature": 1.2, "top_k": rng.choice([0, 5, 40]), "repeat_penalty": rng.choice([1.0, 1.3])}
    if i % 5 == 0:
        params["stop"] = ["a", "zz"]
    return prompt, params


@pytest.mark.parametrize("sharing", ["auto", "ride", "split", "whole"])
def test_each_answer_is_that_of_the_request_alone(sharing: str) -> None:
    expected = []
    for i in range(24):
        prompt, params = request(i)
        expected.append(tokens(Desk(ScriptedEngine(n_ctx=128)).answer(prompt, **params)[0]))
    engine = TwoLanes(n_ctx=128, n_batch=16, **paged(400))
    desk = Desk(engine, sharing=sharing, max_streams=6)
    asked = [desk.ask(*request(i)[:1], **request(i)[1]) for i in range(24)]
    assert [tokens(answer) for answer in asked] == expected
    assert max(n for _, n in engine.calls) > 1
    assert engine.both > 0 or sharing != "split"
    desk.close()
    assert engine.kv.free_pages == 400


def test_streams_that_must_give_way_lose_no_token() -> None:
    requests = [([i, i + 1, i + 2], {"max_tokens": 40, "seed": i, "temperature": 1.0}) for i in range(6)]
    expected = [tokens(Desk(ScriptedEngine()).answer(prompt, **params)[0]) for prompt, params in requests]
    desk = Desk(ScriptedEngine(n_ctx=64, **paged(20)), max_streams=6)
    asked = [desk.ask(prompt, **params) for prompt, params in requests]
    assert [tokens(answer) for answer in asked] == expected
    assert sum(answer._stream.run.n_preempted for answer in asked) > 0
    assert desk.scheduler.stats()["preempted"] > 0
    desk.close()
    assert desk.engine.kv.free_pages == 20


def test_a_pool_that_is_smaller_than_it_says() -> None:
    """Without an account of pages the engine's refusal decides: idle sessions go, then streams take turns."""
    prompts = [[i, i + 1, i + 2] for i in range(5)]
    expected = [tokens(Desk(ScriptedEngine()).answer(prompt, max_tokens=30)[0]) for prompt in prompts]
    engine = ScriptedEngine(n_ctx=64)

    def full(batch: Any) -> None:
        held = {seq: len(ids) for seq, ids in engine.kv.held.items()}
        for seq in batch.seq_ids:
            held[int(seq)] += 1
        if sum(-(-n // 4) for n in held.values()) > 20:
            raise ContextOverflowError("the pool is full")

    engine.before = full
    desk = Desk(engine)
    assert [tokens(answer) for answer in [desk.ask(prompt, max_tokens=30) for prompt in prompts]] == expected
    assert desk.answer([9] * 50, max_tokens=9)[1].n_prompt == 50

    def never(batch: Any) -> None:
        raise ContextOverflowError("the pool is full")

    engine.before = never
    with pytest.raises(ContextOverflowError, match="full"):
        desk.answer([8] * 60, max_tokens=3)  # alone, it is told so


def test_logits_while_others_answer() -> None:
    engine = TwoLanes(n_ctx=128, n_batch=16)
    desk = Desk(engine)
    answers = [desk.ask([i, 2, 3], max_tokens=60) for i in range(3)]
    ids = list(range(50))
    rows, work = desk.score(ids)
    assert [chunk.finish_reason for chunk in work] == ["stop"]
    assert all(np.array_equal(rows[i], hashed(tuple(ids[: i + 1]))) for i in range(50))
    for i, answer in enumerate(answers):
        assert tokens(answer) == tokens(Desk(ScriptedEngine(n_ctx=128)).answer([i, 2, 3], max_tokens=60)[0])


# the queue


def test_the_queue_has_a_limit_and_says_when_to_come_back() -> None:
    engine = ScriptedEngine(n_ctx=4096)
    gate = threading.Event()
    engine.before = lambda batch: gate.wait(10)
    desk = Desk(engine, max_streams=2, max_queue=3)
    asked = [desk.ask([i], max_tokens=4) for i in range(5)]
    with pytest.raises(BusyError, match="3 requests wait") as caught:
        desk.ask([9], max_tokens=4)
    assert caught.value.retry_after_s >= 1.0
    assert caught.value.exit_code == 14
    asked[4].cancel()  # a place is free again
    wait_until(lambda: len(desk.scheduler.planner.line) < 3)
    late = desk.ask([9], max_tokens=4)
    gate.set()
    assert [len(list(answer)) for answer in [*asked[:4], late]] == [4] * 5
    assert desk.scheduler.stats()["refused"] == 1


def test_a_hundred_at_once() -> None:
    expected = {i: Desk().ask([i, 1, 2], max_tokens=8).text() for i in range(0, 100, 7)}
    desk = Desk(max_streams=8, max_queue=40)
    desk.engine.before = lambda batch: time.sleep(0.001)
    found: dict[int, str] = {}
    refused: list[int] = []

    def ask(i: int) -> None:
        try:
            answer = desk.ask([i, 1, 2], max_tokens=8)
        except BusyError:
            refused.append(i)
        else:
            found[i] = answer.text()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) + len(refused) == 100
    assert len(found) >= 48
    assert all(found[i] == text for i, text in expected.items() if i in found)


def test_eight_requests_one_cancelled_one_too_long() -> None:
    """Case 43."""
    prompts = [[i, 50 + i, 7] for i in range(8)]
    expected = [Desk().ask(prompt, max_tokens=25).text() for prompt in prompts]
    desk = Desk()
    desk.engine.before = lambda batch: time.sleep(0.001)
    asked = [desk.ask(prompt, max_tokens=25) for prompt in prompts]
    with pytest.raises(ContextOverflowError, match="64 tokens .* 64"):
        desk.ask([1] * 64)
    next(asked[3])
    asked[3].cancel()
    texts = [answer.text() for answer in asked]
    assert texts[:3] + texts[4:] == expected[:3] + expected[4:]
    assert asked[3].finish_reason == "cancelled"
    assert expected[3].startswith(texts[3])


def test_a_waiting_answer_can_be_cancelled_without_disturbing_the_others() -> None:
    desk = Desk(ScriptedEngine(n_ctx=4096), max_streams=1)
    desk.engine.before = lambda batch: time.sleep(0.001)
    first = desk.ask([1, 2, 3], max_tokens=100)
    second, third = desk.ask([4, 5, 6], max_tokens=5), desk.ask([7, 8, 9], max_tokens=5)
    next(first)
    second.cancel()
    assert [chunk.finish_reason for chunk in second] == ["cancelled"]
    assert first.timings.n_out < 100  # it did not have to wait for the first
    assert len(list(first)) == 99
    assert len(list(third)) == 5


# errors


def test_engine_errors_end_everybody() -> None:
    desk = Desk(max_streams=2)
    desk.engine.before = lambda batch: time.sleep(0.002)
    asked = [desk.ask([i, 2, 3]) for i in range(4)]  # two of them wait
    next(asked[0])

    def fail(batch: Any) -> None:
        raise EngineError("it is gone")

    desk.engine.before = fail
    for answer in asked:
        with pytest.raises(EngineError, match="gone"):
            list(answer)
    wait_until(desk.at_rest)
    desk.engine.before = lambda batch: None
    assert len(desk.answer([1, 2, 3], max_tokens=4)[0]) == 4


def test_a_fault_of_the_scheduler_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.engine.before = lambda batch: time.sleep(0.002)
    asked = [desk.ask([i, 2, 3]) for i in range(3)]
    next(asked[0])

    def fault(*args: Any) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(desk.scheduler.planner, "done", fault)
    for answer in asked:
        with pytest.raises(EngineError, match="scheduler failed.*a fault"):
            list(answer)
    with pytest.raises(EngineError, match="failed"):
        desk.ask([1])
    desk.close()


def test_numeric_errors_among_many() -> None:
    def row(history: tuple[int, ...]) -> Any:
        bad = history[0] % 3 == 0 and len(history) == 3 + history[0]
        return np.full(N_VOCAB, np.nan, np.float32) if bad else hashed(history)

    expected = [Desk().ask([i, 1, 2], max_tokens=20).text() for i in range(9)]
    desk = Desk(ScriptedEngine(row))
    for i, answer in enumerate([desk.ask([i, 1, 2], max_tokens=20) for i in range(9)]):
        if i % 3 == 0:
            with pytest.raises(NumericError, match=f"step {i} "):
                list(answer)
        else:
            assert answer.text() == expected[i]


def test_settings_are_refused_at_once() -> None:
    desk = Desk()
    with pytest.raises(SettingError, match="priority is 'urgent'"):
        desk.ask([1], priority="urgent")
    with pytest.raises(SettingError, match="logit_bias names token 999"):
        desk.ask([1], logit_bias={999: 1.0})


# ends


def test_close_is_quick_and_ends_what_waits() -> None:
    desk = Desk(ScriptedEngine(n_ctx=4096), max_streams=1)
    desk.engine.before = lambda batch: time.sleep(0.01)
    asked = [desk.ask([i]) for i in range(4)]
    next(asked[0])
    started = time.perf_counter()
    desk.close()
    assert time.perf_counter() - started < 0.5
    assert [list(answer)[-1].finish_reason for answer in asked] == ["cancelled"] * 4
    assert desk.engine.kv.held == {}
    assert not [thread for thread in threading.enumerate() if thread in desk.scheduler._crew.threads]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_so() -> None:
    desk = Desk(ScriptedEngine(n_ctx=4096))
    desk.engine.before = lambda batch: time.sleep(0.001)
    running = desk.ask([1, 2, 3])
    next(running)
    child = os.fork()
    if not child:
        code = 1
        try:
            for call in (lambda: desk.ask([1]), lambda: next(running)):
                try:
                    call()
                except EngineError as error:
                    code = 0 if "forked" in str(error) else 2
            running.close()
            desk.close()
            del running
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    running.close()
    assert len(desk.answer([4, 5], max_tokens=3)[0]) == 3


def test_idle_threads_use_no_cpu() -> None:
    desk = Desk()
    desk.answer([1, 2, 3], max_tokens=5)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03


def test_a_reader_that_never_reads_blocks_nobody() -> None:
    desk = Desk(ScriptedEngine(n_ctx=4096))
    lazy = desk.ask([1, 2, 3], max_tokens=300)
    quick = desk.ask([4, 5, 6], max_tokens=300)
    assert len(list(quick)) == 300
    wait_until(desk.at_rest)
    assert len(list(lazy)) == 300


# what the cache keeps


def with_prefix(n_pages: int = 200, **options: Any) -> Desk:
    kv = PagedCache(n_pages)
    return Desk(ScriptedEngine(n_ctx=256, kv=kv), prefix=PrefixCache(kv), **options)


def test_prompts_share_their_pages() -> None:
    desk = with_prefix()
    head = [BOS, *range(30)]
    first = desk.answer([*head, 100], max_tokens=4)[1]
    assert first.n_reused == 0
    asked = [desk.ask([*head, 100 + i, 5], max_tokens=4) for i in range(6)]
    texts = [answer.text() for answer in asked]
    assert all(answer.timings.n_reused >= 28 for answer in asked)
    assert texts == [Desk(ScriptedEngine(n_ctx=256)).ask([*head, 100 + i, 5], max_tokens=4).text() for i in range(6)]
    stats = desk.scheduler.stats()
    assert stats["prefix_cache"]["prompts_reused"] > 0
    desk.scheduler.reset()
    assert desk.engine.kv.free_pages == 200


def test_a_conversation_goes_on_from_its_last_token() -> None:
    desk = with_prefix()
    said: list[int] = [BOS, 1, 2, 3, 4]
    for turn in range(5):
        other = desk.ask([BOS, 9, 9, turn], max_tokens=3)  # somebody else's
        chunks, run = desk.answer(said, max_tokens=7)
        if turn:
            assert run.n_reused == len(said) - 3  # all but the answer's last token and the new ones
        assert tokens(chunks) == tokens(Desk(ScriptedEngine(n_ctx=256)).answer(said, max_tokens=7)[0])
        said += [*tokens(chunks), 70, 71]
        other.text()


def test_cached_pages_give_way_to_running_streams() -> None:
    desk = with_prefix(64)
    for i in range(12):
        prompt = [i] * 100
        chunks, run = desk.answer(prompt, max_tokens=20)
        assert run.n_preempted == 0
        assert len(chunks) == 20
    kv = desk.engine.kv
    desk.close()
    assert kv.free_pages == 64


@pytest.mark.slow
def test_soak_with_random_arrivals_cancels_and_disconnects() -> None:
    rng = random.Random(5)
    n_pages = 60
    kv = PagedCache(n_pages)
    engine = TwoLanes(n_ctx=96, n_batch=32, seconds=0.0003, kv=kv)
    desk = Desk(engine, prefix=PrefixCache(kv), max_streams=5, max_queue=20)
    serial: dict[int, list[int]] = {}
    end = time.monotonic() + 20
    lock = threading.Lock()
    done = dict.fromkeys(("read", "cancelled", "dropped", "refused"), 0)
    wrong: list[int] = []

    def expected(i: int, prompt: list[int], n: int) -> list[int]:
        with lock:
            if i not in serial:
                serial[i] = tokens(Desk(ScriptedEngine(n_ctx=96)).answer(prompt, max_tokens=n)[0])
            return serial[i]

    def client(seed: int) -> None:
        mine = random.Random(seed)
        while time.monotonic() < end:
            i = mine.randrange(40)
            of = random.Random(i)
            prompt, n = [of.randrange(4) for _ in range(of.randrange(1, 60))], of.randrange(1, 30)
            try:
                answer = desk.ask(prompt, mine.choice(["voice", "interactive", "background"]), max_tokens=n)
            except BusyError:
                done["refused"] += 1
                continue
            fate = mine.random()
            if fate < 0.5:
                done["read"] += 1
                if tokens(answer) != expected(i, prompt, n):
                    wrong.append(i)
            elif fate < 0.75:
                time.sleep(mine.random() * 0.01)
                answer.cancel()
                done["cancelled"] += 1
                read = tokens(answer)
                if read != expected(i, prompt, n)[: len(read)]:
                    wrong.append(i)
            else:
                time.sleep(mine.random() * 0.01)
                done["dropped"] += 1
                del answer

    threads = [threading.Thread(target=client, args=(rng.randrange(1 << 30),)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    gc.collect()
    wait_until(desk.at_rest)
    assert wrong == []
    assert min(done["read"], done["cancelled"], done["dropped"]) > 50
    assert desk.scheduler.planner.ledger.reserved == 0
    desk.scheduler.reset()
    assert (kv.free_pages, kv.held, kv.references) == (n_pages, {}, {})
    desk.close()
