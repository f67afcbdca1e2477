"""Questions about a row of logits on every instruction set: top k with ties, argmax, finiteness, soft cap."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.engine.logits import NativeLogits
from edgeinfer.errors import SettingError
from edgeinfer.plan.fields import SCAN_BLOCK, SCAN_WORDS
from tests.kernels.harness import ISAS, Buffer, kernels_of

SIZES = (1, 2, 15, 16, 17, 31, 100, 1000, 4099)


def shown(isa: str, rows: NDArray[np.float32], nth: int = 1) -> NativeLogits:
    """Rows as the logits of a forward on nth threads."""
    n, cols = rows.shape
    kernels = kernels_of(isa)
    words = -(-cols // SCAN_BLOCK) * SCAN_WORDS
    x, out, best = Buffer.of(rows), Buffer(n * words * 4), Buffer(n * 12)
    fields = {"x": x.address, "x_stride": cols * 4, "cols": cols, "out": out.address, "out_stride": words * 4}
    kernels.call("scan", "", fields, n=n + 2, n_out=n, nth=nth)
    fields = {
        "found": out.address, "found_stride": words * 4, "blocks": words // SCAN_WORDS, "out": best.address, "out_stride": 12,
    }  # fmt: skip
    kernels.call("scan_merge", "", fields, n=n + 2, n_out=n, nth=nth)
    for buffer in (x, out, best):
        buffer.check()
    shown_rows = x.bytes.view(np.float32).reshape(n, cols)
    return NativeLogits(kernels.library, cols).show(shown_rows, n, best.bytes.view(np.float32).reshape(n, 3))


def ranked(row: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids by value descending, equal ones by id ascending."""
    return np.lexsort((np.arange(len(row)), -row))[:k]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", SIZES)
def test_top_k(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = {
        "distinct": rng.standard_normal(n),
        "many ties": rng.integers(0, 4, n),
        "all equal": np.full(n, -3.5),
        "ascending": np.arange(n),
        "descending": -np.arange(n),
        "masked": np.where(rng.random(n) < 0.7, -np.inf, rng.integers(0, 3, n)),
        "zeros of both signs": np.where(rng.random(n) < 0.5, -0.0, 0.0),
    }
    logits = shown(isa, np.array(list(rows.values()), np.float32))
    for i, name in enumerate(rows):
        row = logits.row(i)
        for k in sorted({1, 2, min(n, 40), n, n + 5}):
            ids, values = logits.top(i, k)
            want = ranked(row, min(k, n))
            assert ids.tolist() == want.tolist(), f"{name}, {k}"
            np.testing.assert_array_equal(values, row[want])
        assert logits.argmax(i) == want[0] == int(np.argmax(row)), name


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite_sees_every_place(isa: str, bad: float) -> None:
    for n in (1, 16, 37):
        row = np.random.default_rng(n).standard_normal((1, n)).astype(np.float32) * 1e38
        logits = shown(isa, row)
        assert logits.finite(0)
        assert logits.finite(-1)
        for i in range(n):
            row[0, i], kept = bad, row[0, i]
            assert not shown(isa, row).finite(0)
            row[0, i] = kept


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [4095, 4096, 4097, 12_288, 50_001])
def test_the_largest_of_many_on_any_number_of_threads(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((5, n)).astype(np.float32)
    rows[1] = np.round(rows[1])  # many of the largest: the first counts
    rows[2, :] = -np.inf
    rows[3, n - 1] = 100
    rows[4] = -7.0
    for nth in (1, 2, 3, 7):
        logits = shown(isa, rows, nth)
        assert [logits.argmax(i) for i in range(5)] == rows.argmax(axis=1).tolist()
        assert [logits.finite(i) for i in range(5)] == [True, True, False, True, True]
    for at in (0, 4000, n - 1):
        rows[0, at] = np.nan
        logits = shown(isa, rows, 2)
        assert not logits.finite(0)
        assert 0 <= logits.argmax(0) < n
        rows[0, at] = 0.0


@pytest.mark.parametrize("isa", ISAS)
def test_only_the_named_row_counts(isa: str) -> None:
    rows = np.zeros((3, 20), np.float32)
    rows[1, 19] = np.nan
    rows[2, 4:6] = 2
    logits = shown(isa, rows)
    assert [logits.finite(i) for i in range(3)] == [True, False, True]
    assert logits.argmax(-1) == 4
    for i in (3, -4):
        with pytest.raises(SettingError, match=f"row {i} of the logits was asked for; the last forward gave 3"):
            logits.row(i)


@pytest.mark.parametrize("isa", ISAS)
def test_soft_cap(isa: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 112)).astype(np.float32) * 40
    x[0, :4] = 0, 1e30, -1e30, np.nan
    for nth in (1, 3):
        buffer = Buffer.of(x)
        fields = {"x": buffer.address, "x_stride": 448, "cols": 100, "cap": 30.0}
        kernels_of(isa).call("softcap", "", fields, n=9, n_out=3, nth=nth)
        buffer.check()
        got = buffer.bytes.view(np.float32).reshape(4, 112)
        want = 30 * np.tanh(x.astype(np.float64) / 30)
        assert (np.abs(got[1:3, :100] - want[1:3, :100]) < 1e-5).all()
        assert got[0, :3].tolist() == [0, 30, -30]
        assert np.isnan(got[0, 3])
        np.testing.assert_array_equal(got[3], x[3])  # a row that nobody asked for
