"""Normalization and quantization on every instruction set, with the values that break them: zeros, ties, tiny, not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine.trace import read_tiles
from tests.kernels.harness import ISAS, Buffer, kernels_of

COLS = 96
TILE = (COLS + COLS // 32 * 20) * 8
EPS = 1e-5


def normed(
    isa: str, x: NDArray[np.float32], *, weight: NDArray[np.float32] | None = None, nth: int = 1,
    out_rows: list[int] | None = None, add: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None, scale: float = 1.0,
    gate: NDArray[np.float32] | None = None, floats: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """q, scales, h (and x_out) that the kernel makes of rows; `floats` False: no h, as most steps of a model want it."""
    n = len(x)
    source, out, x_out = Buffer.of(x), Buffer(n * COLS * 4), Buffer(n * COLS * 4)
    w = Buffer.of(weight) if weight is not None else None
    acts = Buffer(TILE * (n // 8 + 1))
    other, other_weight = (Buffer.of(a) for a in add) if add else (None, None)
    gates = Buffer.of(gate) if gate is not None else None
    fields: dict[str, float] = {
        "x": source.address, "x_stride": COLS * 4, "weight": w.address if w else 0, "cols": COLS, "eps": EPS,
        "acts": acts.address, "tile_bytes": TILE, "out": out.address if floats else 0, "out_stride": COLS * 4,
        "rows": int(out_rows is not None),
        "private": 0, "tmp": 4096, "add": other.address if other else 0, "add_stride": COLS * 4,
        "scale": scale, "gate": gates.address if gates else 0, "gate_stride": 4,
        "add_weight": other_weight.address if other_weight else 0, "x_out": x_out.address if add else 0,
    }  # fmt: skip
    rows = Buffer.of(np.array(out_rows or [0], np.int64))
    m = len(out_rows) if out_rows is not None else n
    kernels_of(isa).call("norm", "", fields, n=n, n_out=m, nth=nth, out_rows=rows)
    for buffer in (source, out, x_out, acts):
        buffer.check()
    q, scales, sums, halves = read_tiles(acts.address, m, TILE, COLS)
    wide = q.astype(np.int64)
    finite = np.isfinite(scales)
    np.testing.assert_array_equal(sums[finite], -8 * wide.reshape(m, -1, 32).sum(2)[finite])
    both = np.repeat(finite, 2, axis=1)
    np.testing.assert_array_equal(halves[both], -32 * wide.reshape(m, -1, 16).sum(2)[both])
    h = out.bytes.view(np.float32).reshape(n, COLS)[:m].copy()
    added = x_out.bytes.view(np.float32).reshape(n, COLS).copy()
    return {"q": q, "scales": scales, "h": h, "x_out": added, "tiles": acts.bytes.copy()}


def rms(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[np.float64]:
    """The formula."""
    wide = x.astype(np.float64)
    result: NDArray[np.float64] = wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS) * weight
    return result


@pytest.mark.parametrize("isa", ISAS)
def test_factors_of_the_normalized_row(isa: str) -> None:
    """A constant, and the sigmoid of a number of the row's own; with and without a norm before them."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((19, COLS)).astype(np.float32)
    weight, gate = rng.standard_normal(COLS).astype(np.float32), (4 * rng.standard_normal(19)).astype(np.float32)
    sigmoid = 1 / (1 + np.exp(-gate.astype(np.float64)))
    for w, h in ((weight, rms(x, weight)), (None, x.astype(np.float64))):
        for given, factor in (({"scale": 0.22}, 0.22), ({"scale": 3.0, "gate": gate}, 3 * sigmoid[:, None])):
            got = normed(isa, x, weight=w, nth=2, **given)
            np.testing.assert_allclose(got["h"], h * factor, rtol=2e-6, atol=1e-7)
            dequantized = got["q"] * np.repeat(got["scales"], 32, axis=1)
            np.testing.assert_allclose(dequantized, h * factor, atol=float(got["scales"].max()))
    picked = normed(isa, x, gate=gate, out_rows=[3, 18])
    np.testing.assert_allclose(picked["h"], (x * sigmoid[:, None])[[3, 18]], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
def test_norm_and_its_bytes(isa: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((19, COLS)) * np.exp(rng.standard_normal((19, 1)) * 3)).astype(np.float32)
    weight = rng.standard_normal(COLS).astype(np.float32)
    whole = normed(isa, x, weight=weight)
    want = rms(x, weight)
    assert (np.abs(whole["h"] - want) <= 1e-6 * np.abs(want).max(1, keepdims=True)).all()
    back = whole["q"] * np.repeat(whole["scales"], 32, axis=1)
    assert (np.abs(back - whole["h"]) <= 0.5001 * np.repeat(whole["scales"], 32, axis=1)).all()
    assert (np.abs(whole["q"].astype(int)).reshape(19, -1, 32).max(2) == 127).all()
    for n in (1, 2, 8, 9, 19):
        for nth in (1, 2, 4):
            part = normed(isa, x[:n], weight=weight, nth=nth)
            for name in ("q", "scales", "h"):
                np.testing.assert_array_equal(part[name], whole[name][:n])


@pytest.mark.parametrize("isa", ISAS)
def test_norm_adds_a_normalized_row_first(isa: str) -> None:
    rng = np.random.default_rng(1)
    x, other = rng.standard_normal((2, 11, COLS)).astype(np.float32)
    weight, add_weight = rng.standard_normal((2, COLS)).astype(np.float32)
    got = normed(isa, x, weight=weight, add=(other, add_weight), nth=2)
    total = x + rms(other, add_weight)
    assert (np.abs(got["x_out"] - total) < 2e-6).all()
    assert (np.abs(got["h"] - rms(total, weight)) < 5e-6).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [3, 8, 9, 16, 24, 43])
def test_tiles_without_floats(isa: str, n: int) -> None:
    """A whole tile is quantized at once where no float is wanted: every bit as row by row, sums and padding too."""
    rng = np.random.default_rng(n)
    x, other = (rng.standard_normal((2, n, COLS)) * np.exp(rng.standard_normal((2, n, 1)) * 3)).astype(np.float32)
    x[1, 32:64] = 0
    weight, add_weight = rng.standard_normal((2, COLS)).astype(np.float32)
    for given in ({}, {"weight": weight}, {"weight": weight, "add": (other, add_weight)}):
        for nth in (1, 2, 4):
            want, got = (normed(isa, x, nth=nth, floats=floats, **given) for floats in (True, False))
            for name in ("tiles", "x_out"):
                np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("isa", ISAS)
def test_norm_of_chosen_rows(isa: str) -> None:
    x = np.random.default_rng(2).standard_normal((20, COLS)).astype(np.float32)
    whole = normed(isa, x)
    for rows in ([19], [0, 3, 4], list(range(1, 20, 2))):
        part = normed(isa, x, out_rows=rows, nth=2)
        for name in ("q", "scales", "h"):
            np.testing.assert_array_equal(part[name], whole[name][rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("floats", [True, False])
def test_quantization_of_special_blocks(isa: str, floats: bool) -> None:
    x = np.zeros((8, COLS), np.float32)
    x[1, :32] = np.linspace(-1, 1, 32)
    x[1, 32] = 127  # an exact scale of 1 ...
    x[1, 33:39] = 0.5, 1.5, 2.5, -0.5, -1.5, 63.5  # ... and ties, which go to even
    x[2, 64:] = 1e-36
    x[3, 40] = 3e38
    x[4, 5] = 1e-38  # 127 over it is more than a float holds
    x[5, 95] = -1
    got = normed(isa, x, floats=floats)
    assert (got["q"][0] == 0).all()
    assert (got["scales"][0] == 0).all()
    assert got["q"][1, 32:39].tolist() == [127, 0, 2, 2, 0, -2, 64]
    assert got["scales"][1, 1] == 1
    assert (got["q"][2, 64:] == 127).all()
    assert got["q"][3, 40] == 127
    assert got["scales"][3, 1] == pytest.approx(3e38 / 127, rel=1e-6)
    assert 0 <= got["scales"][4].max() <= 1e-38 / 126  # whatever the bytes are, they stand for nothing much
    assert np.isfinite(got["scales"][4]).all()
    assert got["q"][5, 95] == -127


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("n", "floats"), [(2, True), (8, False)])
def test_a_value_that_is_not_finite_makes_its_block_nan(isa: str, bad: float, n: int, floats: bool) -> None:
    """Wherever it stands; the other blocks of an unnormalized row stay as they are."""
    for i in range(COLS):
        x = np.ones((n, COLS), np.float32)
        x[1, i] = bad
        got = normed(isa, x, floats=floats)
        assert np.isnan(got["scales"][1]).tolist() == [i // 32 == b for b in range(3)]
        assert np.isfinite(got["scales"][0]).all()
    with_norm = normed(isa, x, weight=np.ones(COLS, np.float32), floats=floats)
    assert np.isnan(with_norm["scales"][1]).any()
    assert np.isfinite(with_norm["h" if floats else "scales"][0]).all()
