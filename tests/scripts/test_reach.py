"""The measurements of the concurrency table, on a model whose every forward takes a known time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import reach_concurrency
import reach_streams
from reach_concurrency import Reach, Scale, rescaled

from edgeinfer.load import LLM
from edgeinfer.schedule.prefix_cache import PrefixCache
from tests.fakes import ByteTokenizer, PagedCache, ScriptedEngine

POOL = range(97, 123)


@contextmanager
def model(step_s: float = 0.002, row_s: float = 0.0, **settings: Any) -> Iterator[LLM]:
    """A forward takes step_s, and row_s for each of its tokens."""
    kv: Any = PagedCache(4000)
    engine: Any = ScriptedEngine(n_ctx=1024, kv=kv)
    engine.before = lambda batch: time.sleep(step_s + row_s * len(batch))
    tokenizer: Any = ByteTokenizer()
    with LLM(engine, tokenizer, None, prefix=PrefixCache(kv), **settings) as llm:
        yield llm


def test_streams_that_write_together_share_steps() -> None:
    with model(step_s=0.01) as llm:
        one = reach_streams.tokens_together(llm, POOL, 1, 24, 1)
        four = reach_streams.tokens_together(llm, POOL, 4, 24, 2)
    assert 40 < one < 105  # a token in 10 ms at best
    assert four > 2.5 * one


def test_the_longest_gap_sees_a_prompt_that_is_read_whole() -> None:
    with model(step_s=0.005, row_s=0.0005, schedule=_whole()) as llm:
        gaps = reach_streams.longest_gap(llm, POOL, 400, 1, n_alone=16)
    assert 0.005 < gaps.usual < 0.05
    assert gaps.read_s > 0.2
    assert gaps.longest > 0.2  # 400 rows at 0.5 ms: the running stream stood still


def _whole() -> Any:
    import edgeinfer

    return edgeinfer.ScheduleSettings(sharing="whole")


@pytest.mark.parametrize("in_prefill", [True, False])
def test_a_cancel_lasts_until_the_forward_that_runs_is_over(in_prefill: bool) -> None:
    with model(step_s=0.02, row_s=0.001) as llm:
        times = reach_streams.cancel_times(llm, POOL, 4, 300, in_prefill, 1)
        whole = llm.generate([97] * 10, max_tokens=3, ignore_eos=True, temperature=0.0).text()
        assert len(whole) > 0  # and the model goes on
    assert len(times) == 4
    assert all(0.0 < seconds < 1.0 for seconds in times)


def test_the_watch_knows_when_the_engine_rests() -> None:
    with model(step_s=0.05) as llm, reach_streams.watching(llm) as watch:
        reader = reach_streams.Reader(llm, [97] * 10, 4)
        reader.wait_for(1)
        reader.finish()
        rest = watch.idle_since()
        assert reader.times[0] < rest <= time.perf_counter() - 0.03
        assert watch.running == 0
        assert llm._engine.forward is not watch._forward
    assert llm._engine.forward is not None


SMALL = Scale(4, 2, (4, 40), 4, 2, 1, 200, 1024, 1, 12, 1, 64, 2, 2, 200, 0.0)


def test_rows_say_what_was_seen_and_whether_it_is_enough(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(reach_concurrency, "vocabulary", lambda path: (list(POOL), None))
    monkeypatch.setattr(reach_concurrency, "word_ids", lambda tokenizer: list(POOL))
    monkeypatch.setattr(Reach, "_open", _open)
    reach = Reach(Path("model.gguf"), SMALL, 2, False, 0)
    reach.load()
    reach.batch()
    rows = {row.what: row for row in reach.rows}
    assert len(rows) == 5
    (together,) = [row for what, row in rows.items() if "together" in what]
    assert together.seen.endswith("x")
    out = capsys.readouterr().out
    assert out.count("\n") == 5
    assert "| at most 0.25x unsplit's |" in out
    assert [len(c["runs"]) for c in reach.raw["load"]] == [2, 2]


@contextmanager
def _open(self: Reach, n_ctx: int, **options: Any) -> Iterator[LLM]:
    with model() as llm:
        yield llm


def test_a_row_that_is_missed_is_told(capsys: Any) -> None:
    reach = Reach(Path("model.gguf"), SMALL, 2, False, 0)
    reach.row("what", "bar", "seen", False)
    reach.row("what", "bar", "seen", None)
    assert capsys.readouterr().out == "| what | bar | seen | NO |\n| what | bar | seen | - |\n"


def test_any_number_of_the_scale_can_be_changed() -> None:
    scale = rescaled(Scale(), ["requests=7", "lengths=4:9", "soak-minutes=0.5"])
    assert (scale.requests, scale.lengths, scale.soak_minutes, scale.runs) == (7, (4, 9), 0.5, 10)
    with pytest.raises(ValueError, match="no 'requets' in the scale"):
        rescaled(Scale(), ["requets=7"])
    with pytest.raises(ValueError, match="invalid literal"):
        rescaled(Scale(), ["requests=many"])
