"""What a model computes does not depend on how its file is laid out: padding, shards, GGUF version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.engine.open import ids_of, open_engine, run
from tests.shards import split
from tests.tiny import build_tiny


@pytest.mark.parametrize("layout", ["padding at its end", "version 2", "shards"])
def test_the_layout_of_a_file_does_not_change_its_logits(tmp_path: Path, layout: str) -> None:
    """Cases A2 and A5."""
    whole = build_tiny(tmp_path / "whole.gguf", types={"default": "Q4_0", "token_embd": "Q8_0"})
    raw, other = bytearray(whole.read_bytes()), tmp_path / "other.gguf"
    if layout == "shards":
        other = split(whole, tmp_path / "shards", 5)[1]
    elif layout == "version 2":
        raw[4] = 2
        other.write_bytes(raw)
    else:
        other.write_bytes(raw + bytes(20))
    with open_engine(whole) as engine:
        wanted = run(engine, ids_of(40))
    with open_engine(other) as engine:
        assert np.array_equal(run(engine, ids_of(40)), wanted)
