"""Budgets of the ARM kernels' loops in cycles, by llvm-mca on their cross-compiled code."""

from __future__ import annotations

import functools

import arm_cycles
import pytest
from arm_cycles import BUDGETS, KEPT_PART, PEAK_PART, block_loops, loops_of, measure

from .test_assembly import assembly


@functools.cache
def found() -> dict[str, float]:
    try:
        return measure(assembly()["aarch64/dotprod"])
    except RuntimeError as error:
        pytest.skip(f"this test needs llvm-mca 17 or newer: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS)
def test_decode_keeps_its_budget(name: str) -> None:
    assert 2.0 < found()[name] <= BUDGETS[name]  # two sdot a cycle: 32 weights of 16 rows cannot take less than one


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS)
def test_a_prefill_tile_keeps_its_part_of_the_peak(name: str) -> None:
    assert KEPT_PART[name] <= found()[f"{name} prefill tile"] < 1.0


# For every 8 sdot there are a conversion, a product of scales and two multiply-adds: 8 of 12 vector instructions.
Q4_K = pytest.param(
    "q4_k", marks=pytest.mark.xfail(reason="0.666: scales and minima bound the tile at 0.667", strict=True)
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q4_0", Q4_K, "q8_0"])
def test_a_prefill_tile_comes_near_the_peak(name: str) -> None:
    assert found()[f"{name} prefill tile"] >= PEAK_PART


CODE = """
kernel:
.LBB0_1:
\tmov\tv0.16b, v1.16b
.LBB0_2:
\tldr\tq5, [x1]
\tsdot\tv0.4s, v5.16b, v6.16b
\tsdot\tv1.4s, v5.16b, v6.16b
\tsdot\tv2.4s, v5.16b, v6.16b
\tsdot\tv3.4s, v5.16b, v6.16b
\tb.ne\t.LBB0_2
\tscvtf\tv0.4s, v0.4s
\tcbnz\tx3, .LBB0_1
\tb\t.LBB0_9
.LBB0_4:
\tadd\tx1, x1, #1
\tb.ne\t.LBB0_4
.LBB0_9:
\tret
"""


def test_loops_are_cut_out_of_code() -> None:
    (loop,) = block_loops(CODE)
    assert [len(part) for part in (loop.before, loop.inner, loop.after)] == [1, 6, 2]
    assert (loop.sdots, loop.tokens(32), loop.packed) == (4, 1, False)
    assert len(loop.block(32)) == 1 + 8 * 6 + 2


UNROLLED = """
kernel:
.LBB0_1:
\tmov\tx1, x2
.LBB0_2:
""" + "\tldr\tq5, [x1]\n" * 8 + "".join(f"\tsdot\tv{i}.4s, v5.16b, v6.4b[0]\n" for i in range(8)) * 8 + """
\tb.ne\t.LBB0_2
\tstr\tq0, [x1]
\tcbnz\tx3, .LBB0_1
\tret
"""  # fmt: skip


def test_of_unrolled_quads_only_the_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    (loop,) = block_loops(UNROLLED)
    assert (loop.sdots, loop.tokens(32), len(loop.block(64))) == (64, 2, 8 + 64 + 1)
    monkeypatch.setattr(arm_cycles, "cycles", lambda mca, block: float(len(block)))
    decode, tile = loops_of(CODE + UNROLLED.replace("LBB0", "LBB1"), [])
    assert decode == (1 + 8 * 6 + 2) / 16
    assert tile == 64 / 2 / (8 + 64 + 1)


def test_cycles_are_those_of_a_whole_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_cycles, "cycles", lambda mca, block: float(len(block)))
    decode, tile = loops_of(CODE, [])
    assert decode == (1 + 8 * 6 + 2) / 16  # eight quads make a block of 32
    assert tile == 0.0
    with pytest.raises(RuntimeError, match="no loop of one token"):
        loops_of("\tret\n", [])
