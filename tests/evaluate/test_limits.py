"""The machine's limits and where the time goes, on a tiny model's native engine and on every instruction set here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.types import Batch
from edgeinfer.evaluate.bandwidth import ReadLoop, TokenBytes, token_bytes
from edgeinfer.evaluate.limits import Limits, macs_per_token
from edgeinfer.evaluate.native_loop import NativeLoop
from edgeinfer.evaluate.peak import PeakLoop
from edgeinfer.evaluate.step_times import timed
from edgeinfer.evaluate.verify_curve import OurStepper
from edgeinfer.formats import by_name
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.runtime.arena import Arena, aligned
from edgeinfer.runtime.isa import available
from edgeinfer.runtime.layout import METER_PRODUCTS
from edgeinfer.runtime.library import KernelLibrary
from edgeinfer.settings import settings

from ..engine.open import ids_of, open_engine
from ..tiny import build_tiny

ISAS = [isa.name for isa in available()]


def library_of(name: str) -> KernelLibrary:
    return KernelLibrary(next(isa for isa in available() if isa.name == name), settings().cache)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_read_loop_reads_every_byte_once(isa: str, n_threads: int) -> None:
    arena = Arena(37 * 1024 + 999, "a test")  # no whole number of anything
    words = arena.bytes.view(np.uint32)
    words[:] = np.random.default_rng(3).integers(0, 1 << 32, words.size, np.uint64)
    n_bytes = 37 * 1024 + 999
    loop = ReadLoop(library_of(isa), arena.address, n_bytes, n_threads)
    assert loop.measure() > 0
    wanted = int(words[: 37 * 256].astype(np.uint64).sum()) & 0xFFFFFFFF  # whole kilobytes
    assert loop.checksum() == wanted
    loop.close()


@pytest.mark.parametrize("isa", ISAS)
def test_the_product_loop_forms_as_many_products_as_it_counts(isa: str) -> None:
    library = library_of(isa)
    count, rounds = METER_PRODUCTS[library.isa.dot], 5
    operands = aligned(24 * 8)
    raw = operands.view(np.uint8)
    raw[:] = np.random.default_rng(5).integers(0, 64, raw.size)
    vectors = raw.reshape(24, 16, 4).astype(np.int64)
    start = operands.view(np.int32).reshape(24, 16).astype(np.int64)
    loop = NativeLoop(library, "meter.multiply", 1, int(operands.ctypes.data))
    loop.seconds(rounds)
    shared = library.isa.dot not in ("pmaddubsw", "plain")
    total = start[:count].sum()
    x = start[0].astype(np.int32)
    for _ in range(rounds):
        x = x + np.int32(1)
        signed = x.view(np.int8).reshape(16, 4).astype(np.int64)
        for k in range(count):
            total += (vectors[count + (0 if shared else k)] * signed).sum()
    assert loop.result() == int(total) & 0xFFFFFFFF
    loop.close()


def test_the_peak_is_of_this_world() -> None:
    loop = PeakLoop(library_of(ISAS[0]), 1)
    assert 1e9 < loop.measure() < 1e13
    loop.close()


def test_bytes_of_a_token_are_those_of_the_file(tmp_path: Path) -> None:
    for tied in (False, True):
        path = build_tiny(tmp_path / f"{tied}.gguf", tied=tied)
        with GGUFFile.open(path) as file, open_engine(path) as engine:
            table = file.tensor("token_embd.weight")
            every = sum(info.n_bytes for info in file)
            wanted = every if tied else every - table.n_bytes + by_name(table.type_name).n_bytes(table.shape[1])
            assert token_bytes(file, engine.config).weights == wanted


class Mixture:
    n_expert, n_expert_used = 8, 2


def test_of_a_mixture_only_the_experts_that_are_used_count() -> None:
    class Info:
        def __init__(self, name: str, n_bytes: int) -> None:
            self.name, self.n_bytes, self.shape = name, n_bytes, (4, 4)

    file: Any = [Info("output.weight", 10), Info("blk.0.ffn_up_exps.weight", 800), Info("token_embd.weight", 40)]
    assert token_bytes(file, Mixture()).weights == 10 + 200 + 10


def test_a_window_bounds_what_attention_reads() -> None:
    traffic = TokenBytes(1000, ((2, 0), (3, 100)))
    assert traffic.at(50) == 1000 + 2 * 50 + 3 * 50
    assert traffic.at(400) == 1000 + 2 * 400 + 3 * 100


def test_limits_of_an_engine(tmp_path: Path) -> None:
    with open_engine(build_tiny(tmp_path / "m.gguf", types={"default": "Q8_0"})) as engine:
        limits = Limits.of(engine, 1)
        assert limits is not None
        c = engine.config
        # every matrix of every layer, rows filled up to groups of 16
        rows = (c.n_head + 2 * c.n_head_kv) * c.head_dim
        layer = rows * c.n_embd + c.n_embd * c.n_head * c.head_dim + 3 * c.n_ff * c.n_embd
        assert macs_per_token(engine.programs["batch"]) == c.n_layer * layer == limits.macs
        positions = c.n_layer * 2 * c.n_head_kv * c.head_dim * 2  # f16
        assert limits.traffic.at(10) - limits.traffic.at(0) == 10 * positions
        assert limits.mbu(10.0, 0.0, 10.0 * limits.traffic.weights) == 1.0
        assert limits.of_peak(1.0, 4.0 * limits.macs) == 0.5
        assert limits.bandwidth() > 0
        limits.close()
    assert Limits.of(object(), 1) is None


def test_a_profile_adds_up_and_changes_nothing(tmp_path: Path) -> None:
    ids = ids_of(40)
    with open_engine(build_tiny(tmp_path / "m.gguf", types={"default": "Q8_0"}), n_threads=2) as engine:

        def answer() -> list[np.ndarray]:
            seq = engine.kv.open()
            rows = [engine.forward(Batch.of(seq, ids[:30], 0), "prefill").row(0).copy()]
            for at in range(30, 40):
                logits = engine.forward(Batch.of(seq, [ids[at]], at), "decode")
                assert logits.finite(0)
                assert logits.argmax(0) == int(logits.row(0).argmax())
                assert len(logits) == 1
                rows.append(logits.row(0).copy())
            engine.kv.close(seq)
            return rows

        plain = answer()
        started = time.perf_counter()
        with timed(engine) as times:
            clocked = answer()
        wall = time.perf_counter() - started
        after = answer()
    for a, b, c in zip(plain, clocked, after, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    decode, batch = times["decode"], times["batch"]
    assert (decode.n_forwards, decode.n_tokens, batch.n_forwards, batch.n_tokens) == (10, 10, 1, 30)
    for found in (decode, batch):
        inside = sum(operation.seconds for operation in found.operations.values())
        assert 0 < inside <= found.forward_s <= wall
        assert all(operation.seconds >= 0 for operation in found.operations.values())
    assert {"token rows", "attention", "rope and KV write", "norm"} < set(decode.operations)
    heads = [name for name in decode.operations if name.startswith("output head ")]
    assert len(heads) == 1
    assert times["tokens"].operations["sampling"].n_steps == 20
    products = [decode.operations[name] for name in decode.operations if name.startswith("matmul ")]
    assert sum(p.n_macs for p in products) == 10 * macs_per_token(engine.programs["decode"])
    entries = decode.as_dict()["operations"]
    assert [e["seconds"] for e in entries] == sorted((e["seconds"] for e in entries), reverse=True)


def test_a_stepper_takes_its_steps_back(tmp_path: Path) -> None:
    with open_engine(build_tiny(tmp_path / "m.gguf")) as engine:
        stepper = OurStepper(engine, ids_of(40), ids_of(8, seed=1))
        n_free = engine.kv.free_pages
        for n in (1, 4, 8):
            assert stepper.step(n) > 0
            assert engine.kv.n_past(stepper._seq) == 40
        assert engine.kv.free_pages == n_free
        stepper.close()


@pytest.mark.parametrize(("decode", "batch"), [(1, 2), (2, 1)])
def test_a_phase_uses_no_more_threads_than_it_may(tmp_path: Path, decode: int, batch: int) -> None:
    used = []
    phases = {"decode": decode, "batch": batch}
    with open_engine(build_tiny(tmp_path / "m.gguf"), n_threads=2, phase_threads=phases) as engine:
        lane = engine._lanes["decode"]
        run = lane.team.run

        def noted(program: int, n_steps: int, state: int, n: int) -> None:
            used.append(n)
            run(program, n_steps, state, n)

        lane.team.run = noted  # type: ignore[method-assign]
        seq = engine.kv.open()
        engine.forward(Batch.of(seq, [5, 6, 7], 0))
        engine.forward(Batch.of(seq, [8], 3), "decode", 2)  # asking for more does not help
    assert used == [batch, decode]
