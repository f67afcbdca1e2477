"""A parked worker is woken on another core than its caller's, and may go afterwards where it might before."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.native import NativeEngine
from edgeinfer.engine.types import Batch
from tests.engine.open import ids_of, open_engine
from tests.kernels.harness import ISAS, Buffer
from tests.kernels.test_simd import library_of
from tests.tiny import build_tiny

CORES = sorted(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core leaves no other")


def test_a_core_is_taken_out_of_a_set_unless_it_is_alone() -> None:
    without = library_of(ISAS[0]).function("probe.without_core")
    rng = random.Random(0)
    sets = [{0, 1}, {0}, {1}, {63}, {63, 64}, {64}, {5, 127}, set(), set(range(128))]
    sets += [set(rng.sample(range(128), rng.randrange(1, 9))) for _ in range(100)]
    for cores in sets:
        for core in {*cores, 0, 63, 64, 127, 128, 1023}:
            mask, taken = Buffer.of(np.zeros(2, np.uint64)), Buffer(8)
            words = mask.bytes.view(np.uint64)
            for c in cores:
                words[c >> 6] |= np.uint64(1 << (c & 63))
            step = Buffer.of(np.array([mask.address, taken.address, 2, core], np.int64))
            without(step.address, 0, 0, 1)
            want = cores - {core} or cores
            assert {c for c in range(128) if int(words[c >> 6]) >> (c & 63) & 1} == want
            assert taken.bytes.view(np.int64)[0] == (want != cores)
            for buffer in (mask, taken, step):
                buffer.check()


@contextmanager
def affinity(thread: int, cores: set[int]) -> Iterator[None]:
    """A thread on these cores alone."""
    before = os.sched_getaffinity(thread)
    os.sched_setaffinity(thread, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(thread, before)


def read(engine: NativeEngine, seq: int) -> bytes:
    """The logits of a prompt, read after its workers have parked."""
    time.sleep(0.02)
    engine.kv.rewind(seq, 0)
    logits = engine.forward(Batch.of(seq, ids_of(40), 0), "prefill")
    return logits.row(0).tobytes()


def pool() -> list[int]:
    """The workers of this process."""
    return [int(t.native_id or 0) for t in threading.enumerate() if t.name.startswith("edgeinfer-")]


def core_of(thread: int) -> int:
    """The core on which a thread of this process ran last."""
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()[36])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("wake") / "tiny.gguf")


@two_cores
def test_a_worker_may_go_where_it_might_before(tiny: Path) -> None:
    """All cores, one core of its own, or the caller's core alone: the set is what it was, the logits are the same."""
    with open_engine(tiny, n_threads=2) as engine:
        seq = engine.kv.open()
        want = read(engine, seq)
        workers = pool()
        assert workers
        for cores in (set(CORES), {CORES[0]}, {CORES[1]}):
            for caller in (set(CORES), {CORES[0]}, {CORES[1]}):
                with ExitStack() as stack:
                    for worker in workers:
                        stack.enter_context(affinity(worker, cores))
                    with affinity(0, caller):
                        assert read(engine, seq) == want
                    assert all(os.sched_getaffinity(worker) == cores for worker in workers)


@two_cores
def test_a_woken_worker_is_not_behind_its_caller(tiny: Path) -> None:
    with open_engine(tiny, n_threads=2) as engine:
        seq = engine.kv.open()
        read(engine, seq)
        (worker, *_) = engine_workers(engine, seq)
        with affinity(0, {CORES[0]}):
            cores = []
            for _ in range(20):
                read(engine, seq)
                cores.append(core_of(worker))
        assert cores.count(CORES[0]) <= 5  # another program may push it there


def engine_workers(engine: NativeEngine, seq: int) -> list[int]:
    """The workers that ran during a forward."""
    found = pool()

    def ran(thread: int) -> int:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])

    before = [ran(thread) for thread in found]
    read(engine, seq)
    return [thread for thread, was in zip(found, before, strict=True) if ran(thread) > was]
