"""The table of strings that stands in for a dict: every lookup as a dict would answer it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.string_table import StringTable
from tests import models


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=50), st.binary(max_size=6))
def test_answers_like_a_dict(strings: list[bytes], other: bytes) -> None:
    first, last = StringTable.of(strings), StringTable.of(strings, last_wins=True)
    assert len(first) == len(strings)
    assert [first[i] for i in range(len(strings))] == strings
    for string in {*strings, other} - {b""}:
        places = [i for i, s in enumerate(strings) if s == string]
        assert first.find(string) == (places[0] if places else -1)
        assert last.find(string) == (places[-1] if places else -1)
    assert first.find(b"") == -1


def test_reads_the_arrays_of_a_file() -> None:
    with GGUFFile.open(models.smollm2()) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        table = StringTable.of(tokens)
        expected = tokens.bytes_list()
    assert len(table) == len(expected) == 49152
    assert [table[i] for i in range(0, 49152, 97)] == expected[::97]
    assert all(table.find(expected[i]) == i for i in range(0, 49152, 53))
    assert table.find("Ġthe".encode()) == expected.index("Ġthe".encode())
