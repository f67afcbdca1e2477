"""Which file row stands where in a packed matrix, and the table of fields that plan and kernels share."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.formats import by_name
from edgeinfer.plan.fields import FIELDS, STEP_FIELDS, indices
from edgeinfer.plan.packing import PACKED_BYTES, packed_bytes, row_order
from edgeinfer.plan.program import Matrix, Part
from edgeinfer.runtime.layout import STEP_FIELDS as NATIVE_STEP_FIELDS
from edgeinfer.runtime.layout import STEP_WORDS


def test_stacked_parts_follow_each_other_and_end_in_padding() -> None:
    which, rows = row_order(Matrix((Part("a", 16), Part("b", 5)), 32, "q8_0"))
    assert which.tolist() == [0] * 16 + [1] * 5 + [-1] * 11
    assert rows.tolist() == [*range(16), *range(5), *[-1] * 11]


def test_gate_and_up_alternate_by_sixteen_each_padded() -> None:
    matrix = Matrix((Part("gate", 20), Part("up", 20)), 32, "q8_0", alternate=True)
    which, rows = row_order(matrix)
    assert matrix.groups == 4
    assert which.tolist() == [0] * 16 + [1] * 16 + [0] * 4 + [-1] * 12 + [1] * 4 + [-1] * 12
    tail = [16, 17, 18, 19, *[-1] * 12]
    assert rows.tolist() == [*range(16), *range(16), *tail, *tail]


def test_neighbouring_pairs_go_to_half_split_order_head_by_head() -> None:
    _, rows = row_order(Matrix((Part("q", 32, pair_heads=2, pair_dim=16),), 32, "q8_0"))
    head = [*range(0, 16, 2), *range(1, 16, 2)]
    assert rows.tolist() == [*head, *(16 + i for i in head)]


def test_rows_past_the_rotated_ones_stay() -> None:
    _, rows = row_order(Matrix((Part("q", 32, pair_heads=2, pair_dim=8),), 32, "q8_0"))
    head = [0, 2, 4, 6, 1, 3, 5, 7, *range(8, 16)]
    assert rows.tolist() == [*head, *(16 + i for i in head)]


def test_every_file_row_stands_exactly_once() -> None:
    matrix = Matrix((Part("q", 64, 4, 16), Part("k", 32, 2, 16), Part("v", 32)), 64, "q4_0")
    which, rows = row_order(matrix)
    assert len(rows) == matrix.groups * 16
    for i, part in enumerate(matrix.parts):
        assert sorted(rows[which == i]) == list(range(part.n_rows))


@pytest.mark.parametrize("name", PACKED_BYTES)
def test_packed_size_is_the_file_size_or_a_little_more(name: str) -> None:
    fmt = by_name(name)
    matrix = Matrix((Part("a", 32),), 512, name)
    total, file = sum(packed_bytes(matrix)), 32 * fmt.n_bytes(512)
    assert total == file if name not in ("q3_k", "q4_k", "q5_k", "iq4_xs") else file < total < 1.04 * file


def test_steps_fit_in_their_record() -> None:
    assert STEP_FIELDS == NATIVE_STEP_FIELDS
    assert all(len(fields) <= STEP_WORDS - STEP_FIELDS for fields in FIELDS.values())


@pytest.mark.parametrize("kind", FIELDS)
def test_a_kernel_finds_its_fields_in_order(kind: str) -> None:
    assert indices(kind, " ".join(FIELDS[kind])) == tuple(range(2, 2 + len(FIELDS[kind])))


def test_a_kernel_and_the_table_cannot_part() -> None:
    with pytest.raises(ValueError, match=r"step kind 'softcap' has the fields .* its kernel expects \('x_stride', 'x'"):
        indices("softcap", "x_stride x cols cap")


def test_orders_are_whole_numbers() -> None:
    which, rows = row_order(Matrix((Part("a", 7),), 32, "f32"))
    assert which.dtype == rows.dtype == np.int64
