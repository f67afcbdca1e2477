"""Packed products of every weight format against float products of the dequantized weights, on every instruction set.

Every bit of the blocks is random and every sub-block has its own scale (bug reports of K-quants: right only in the first
sub-block, unseen by tests on zeros). A row's sums are the same to the last bit for any number of tokens and threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.formats import FORMATS, Format, by_name
from edgeinfer.plan.fields import MODES
from edgeinfer.runtime.isa import machine_arch
from edgeinfer.runtime.library import object_path
from tests.kernels.harness import ISAS, SCALES, THREAD_BYTES, Buffer, Kernels, kernels_of, random_rows, slots_for, tiles

NATIVE = [fmt.name for fmt in FORMATS.values() if fmt.native]
FLOATS = ("F32", "F16", "BF16")
MANY = 263  # so many that every format that is ever unpacked is unpacked; the last tile is not full
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 40, MANY)
ROWS = 55  # not a multiple of 16
TMP = 4096  # where a product's own memory starts in a thread's
STATED_ERROR = 2e-6  # of the sum of the absolute products


def widths(name: str) -> list[int]:
    """Row lengths to test: also such that only blocks of 32 divide."""
    return [256, 512, 768] + ([32, 576] if by_name(name).block_size <= 32 else [])


class Problem:
    """Random weights and activations of one shape, and what their product is."""

    def __init__(self, kernels: Kernels, fmt: Format, cols: int, rows: int = ROWS, n: int = MANY, seed: int = 0):
        rng = np.random.default_rng([seed, cols, fmt.type_id])
        self.kernels, self.fmt, self.cols, self.rows = kernels, fmt, cols, rows
        self.floats = fmt.name in FLOATS
        raw = random_rows(fmt, rows, cols, rng)
        assert fmt.dequantize is not None
        self.w = fmt.dequantize(raw).astype(np.float64)
        self.quants, self.scales = kernels.pack(fmt, raw)
        self.groups = -(-rows // 16)
        self.q = rng.integers(-127, 128, (n, cols)).astype(np.int8)
        self.d = rng.uniform(0.001, 0.02, (n, cols // 32)).astype(np.float32)
        self.h = rng.standard_normal((n, cols)).astype(np.float32)
        exact = self.q.astype(np.float64) * np.repeat(self.d.astype(np.float64), 32, axis=1)
        self.x = self.h.astype(np.float64) if self.floats else exact
        self.product = self.x @ self.w.T
        self.bound = STATED_ERROR * np.abs(self.x) @ np.abs(self.w.T)

    def run(
        self,
        n: int,
        nth: int = 1,
        mode: str = "store",
        y: NDArray[np.float32] | None = None,
        private: bool = False,
        bias: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """The rows (n, groups * 16 or half of it) that the kernel makes of the first n tokens."""
        joins = mode in ("silu", "gelu")
        width = self.groups * 16 // (2 if joins else 1)
        stride = width * 4 + 64
        out = np.full((n + 8, stride // 4), np.nan, np.float32)
        if y is not None:
            out[:n, :width] = y
        target = Buffer.of(out)
        added = Buffer.of(bias) if bias is not None else None
        fields: dict[str, Any] = {
            "cols": self.cols, "groups": self.groups, "y": target.address, "y_stride": stride, "mode": MODES[mode],
            "rows": 0, "private": int(private), "tmp": TMP, "bias": added.address if added else 0,
        }  # fmt: skip
        if self.floats:
            source = Buffer.of(np.concatenate([self.h[:n], np.full((8, self.cols), 9, np.float32)]))
            fields.update(weights=self.quants.address, h=source.address, h_stride=self.cols * 4)
        else:
            source, tile_bytes = tiles(self.q[:n], self.d[:n], slots_for(n))
            fields.update(quants=self.quants.address, scales=self.scales.address, acts=source.address)
            fields["tile_bytes"] = tile_bytes
        if private:
            for ith in range(nth):
                at = ith * THREAD_BYTES + THREAD_BYTES // 2
                self.kernels.thread.bytes[at : at + source.bytes.size] = source.bytes
            fields["h" if self.floats else "acts"] = THREAD_BYTES // 2
        self.kernels.call("matmul_float" if self.floats else "matmul", self.fmt.name.lower(), fields, n=n, nth=nth)
        for buffer in (target, self.quants, self.scales, source):
            buffer.check()
        result = target.bytes.view(np.float32).reshape(n + 8, -1)
        assert np.isnan(result[:, width:]).all()  # nothing between the rows is touched
        return result[:n, :width].copy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NATIVE)
def test_products(isa: str, name: str) -> None:
    fmt = by_name(name)
    for cols in widths(name):
        problem = Problem(kernels_of(isa), fmt, cols)
        whole = problem.run(MANY)
        assert (np.abs(whole[:, :ROWS] - problem.product) <= problem.bound).all()
        assert (whole[:, ROWS:] == 0).all()
        for n in COUNTS:
            for nth in (1, 2, 4):
                np.testing.assert_array_equal(
                    problem.run(n, nth), whole[:n], f"{cols} columns, {n} tokens, {nth} threads"
                )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "F16"])
def test_no_token_is_special(isa: str, name: str) -> None:
    """Each token alone gives what it gives in company, wherever it stands in a tile."""
    problem = Problem(kernels_of(isa), by_name(name), 256, n=17)
    whole = problem.run(17)
    for t in range(17):
        problem.q[0], problem.d[0], problem.h[0] = problem.q[t], problem.d[t], problem.h[t]
        np.testing.assert_array_equal(problem.run(1)[0], whole[t])


def act(mode: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The activation function in float64."""
    silu: NDArray[np.float64] = x / (1 + np.exp(np.minimum(-x, 700)))
    gelu: NDArray[np.float64] = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return silu if "silu" in mode else gelu


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q5_0", "Q4_1", "Q6_K", "F32"])
def test_adding_and_joining(isa: str, name: str) -> None:
    fmt = by_name(name)
    problem = Problem(kernels_of(isa), fmt, 256, rows=96, n=MANY)
    y = np.random.default_rng(1).standard_normal((MANY, 96)).astype(np.float32)
    pairs = problem.product.reshape(MANY, 3, 2, 16)
    bounds = problem.bound.reshape(MANY, 3, 2, 16)
    gate, up = pairs[:, :, 0].reshape(MANY, 48), pairs[:, :, 1].reshape(MANY, 48)
    slack = (bounds[:, :, 0] * np.abs(pairs[:, :, 1]) + bounds[:, :, 1] * np.abs(pairs[:, :, 0])).reshape(MANY, 48)
    wanted = {"add": (y + problem.product, problem.bound + 1e-6)}
    for mode in ("silu", "gelu"):
        joined = act(mode, gate) * up
        wanted[mode] = joined, 2 * slack + 2e-6 * np.abs(joined) + 1e-6
        into = act(mode, y.astype(np.float64)) * problem.product
        wanted[f"{mode}_into"] = into, problem.bound * np.abs(y) + 2e-6 * np.abs(into) + 1e-6
    assert set(wanted) == set(MODES) - {"store"}
    for mode, (want, allowed) in wanted.items():
        there = y if mode == "add" or "into" in mode else None
        whole = problem.run(MANY, mode=mode, y=there)
        assert (np.abs(whole - want) <= allowed).all(), mode
        for n in (1, 2, 4, 9):
            for nth in (1, 3):
                rows = problem.run(n, nth, mode, None if there is None else there[:n])
                np.testing.assert_array_equal(rows, whole[:n], mode)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q6_K", "F32"])
def test_biases(isa: str, name: str) -> None:
    """Added to each row before anything else is done with it, for any number of tokens."""
    problem = Problem(kernels_of(isa), by_name(name), 256, rows=96, n=MANY)
    bias = np.random.default_rng(2).standard_normal(96).astype(np.float32)
    y = np.random.default_rng(1).standard_normal((MANY, 96)).astype(np.float32)
    biased = problem.product + bias
    pairs, bounds = biased.reshape(MANY, 3, 2, 16), problem.bound.reshape(MANY, 3, 2, 16)
    gate, up = pairs[:, :, 0].reshape(MANY, 48), pairs[:, :, 1].reshape(MANY, 48)
    slack = (bounds[:, :, 0] * np.abs(pairs[:, :, 1]) + bounds[:, :, 1] * np.abs(pairs[:, :, 0])).reshape(MANY, 48)
    joined = act("silu", gate) * up
    wanted = {
        "store": (biased, problem.bound + 1e-6),
        "add": (y + biased, problem.bound + 2e-6),
        "silu": (joined, 2 * slack + 2e-6 * np.abs(joined) + 1e-5),
    }
    for mode, (want, allowed) in wanted.items():
        there = y if mode == "add" else None
        whole = problem.run(MANY, mode=mode, y=there, bias=bias)
        assert (np.abs(whole - want) <= allowed).all(), mode
        for n in (1, 2, 4, 17):
            rows = problem.run(n, 3, mode, None if there is None else there[:n], bias=bias)
            np.testing.assert_array_equal(rows, whole[:n], mode)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q4_0", "F16"])
def test_activations_in_private_memory(isa: str, name: str) -> None:
    problem = Problem(kernels_of(isa), by_name(name), 512)
    np.testing.assert_array_equal(problem.run(1, nth=3, private=True), problem.run(1))


@pytest.mark.skipif(machine_arch() != "x86_64", reason="only x86-64 asks for weights ahead")
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_asking_ahead_is_compiled_and_changes_no_bit(name: str) -> None:
    fmt = by_name(name)
    made = {asks: Kernels(ISAS[0], asks) for asks in (False, True)}
    problems = {asks: Problem(kernels, fmt, 512) for asks, kernels in made.items()}
    for n in (1, 2, 4, MANY):
        np.testing.assert_array_equal(problems[True].run(n), problems[False].run(n))
    kernel = f"matmul.{fmt.name.lower()}"
    sizes = {asks: object_path(kernels.library.folder, kernel).stat().st_size for asks, kernels in made.items()}
    assert sizes[True] > sizes[False]  # it is other code: folders are not shared


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NATIVE)
def test_extreme_values_do_not_overflow(isa: str, name: str) -> None:
    """All weights and activations as large as they can be: integer sums stay exact."""
    fmt = by_name(name)
    problem = Problem(kernels_of(isa), fmt, 768, rows=32, n=MANY)
    if fmt.block_size > 1:
        raw: NDArray[np.uint8] = np.full((32, 768 // fmt.block_size, fmt.block_bytes), 0xFF, np.uint8)
        raw[16:] = 0x7F if fmt.name == "Q8_0" else 0
        if fmt.name == "MXFP4":
            raw[:, :, 0] = 127
        for at in SCALES[fmt.name]:
            raw[:, :, at : at + 2] = np.array([0.5], np.float16).view(np.uint8)
        if fmt.name == "Q8_0":
            raw[:16, :, 2:] = 0x80  # -128
        if fmt.name == "Q6_K":
            raw[:, :, 192:208] = np.resize(np.array([127, -128], np.int8), 16).view(np.uint8)
        raw = raw.reshape(32, -1)
        assert fmt.dequantize is not None
        problem.w = fmt.dequantize(raw).astype(np.float64)
        problem.quants, problem.scales = problem.kernels.pack(fmt, raw)
    problem.q[:] = np.where(np.arange(MANY) % 2, -127, 127)[:, None]
    problem.d[:] = 1
    problem.h[:] = 100
    x = problem.h if problem.floats else problem.q
    want = x.astype(np.float64) @ problem.w.T
    bound = STATED_ERROR * np.abs(x.astype(np.float64)) @ np.abs(problem.w.T)
    for n in (1, 2, 9, MANY):
        assert (np.abs(problem.run(n) - want[:n]) <= bound[:n]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NATIVE)
def test_packing_on_threads_gives_the_same_bytes(isa: str, name: str) -> None:
    fmt = by_name(name)
    raw = random_rows(fmt, ROWS, 256, np.random.default_rng(3))
    quants, scales = kernels_of(isa).pack(fmt, raw)
    for nth in (2, 4):
        again = kernels_of(isa).pack(fmt, raw, nth)
        np.testing.assert_array_equal(again[0].bytes, quants.bytes)
        np.testing.assert_array_equal(again[1].bytes, scales.bytes)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_embedding_rows_are_the_dequantized_rows(isa: str, name: str, scale: float) -> None:
    fmt = by_name(name)
    for cols in widths(name):
        raw = random_rows(fmt, 40, cols, np.random.default_rng(cols))
        assert fmt.dequantize is not None
        table, ids = Buffer.of(raw), np.array([39, 0, 7, 7, 12], np.int64)
        want = fmt.dequantize(raw)[ids] * np.float32(scale)
        for nth in (1, 2, 4):
            x = Buffer(5 * (cols * 4 + 64), fill=0xFF)
            fields = {
                "table": table.address, "row_bytes": raw.shape[1], "x": x.address, "x_stride": cols * 4 + 64, "cols": cols,
                "scale": scale,
            }  # fmt: skip
            kernels_of(isa).call("embed", name.lower(), fields, n=5, nth=nth, ids=Buffer.of(ids))
            x.check()
            rows = x.bytes.view(np.float32).reshape(5, -1)
            np.testing.assert_array_equal(rows[:, :cols], want)
            assert np.isnan(rows[:, cols:]).all()
