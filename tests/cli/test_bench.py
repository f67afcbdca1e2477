"""`edgeinfer bench` on the echoing model: its tables, its JSON, what it refuses, and Ctrl-C."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import pytest

from edgeinfer.errors import NumericError
from edgeinfer.evaluate.single_stream import Measured
from edgeinfer.load import LLM

SMALL = ("--requests", "5", "--prompt-tokens", "4:20", "--max-tokens", "3")


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The echoing model's ids are bytes, of which none is a word."""
    monkeypatch.setattr("edgeinfer.evaluate.targets.word_ids", lambda tokenizer: list(range(97, 123)))
    monkeypatch.setattr("edgeinfer.cli.bench_targets.vocabulary", lambda model: (list(range(97, 123)), None))


def test_one_stream_has_a_table(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--pp", "20", "--tg", "4", "--repeats", "2")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("warm-up ")
    assert lines[0].endswith("n_ctx 64")
    assert lines[1].split() == ["median", "least", "most", "unit", "n"]
    assert [line.split()[0] for line in lines[2:]] == ["pp20", "pp20", "tg4", "tg4", "tg4"]
    assert lines[2].split()[-2:] == ["tok/s", "2"]


def test_one_stream_as_json(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--pp", "20", "--tg", "1", "--repeats", "2", "--json", "-t", "2", "-q")
    document = json.loads(done.out)
    assert edgeinfer.calls[0]["n_threads"] == 2
    assert (document["mode"], document["settings"]["repeats"], document["interrupted"]) == ("single", 2, False)
    by_name = {row["what"]: row for row in document["results"]}
    assert by_name["pp20"]["n"] == 2
    assert by_name["pp20"]["median"] > 0
    assert by_name["tg1"]["median"] is None  # one token has no interval: null, neither 0 nor infinity
    assert by_name["tg1"]["values"] == [None, None]
    assert {"load_s", "compile_s"} <= document["settings"].keys()


def test_a_table_shows_a_dash_for_what_is_not_defined(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--pp", "0", "--tg", "1", "--repeats", "1", "-q")
    assert done.out.splitlines()[2].split() == ["tg1", "-", "-", "-", "tok/s", "0"]


def test_many_streams(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *SMALL)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("edgeinfer: 5 done of 5 requests in ")
    assert [line.split("  ")[1].strip() for line in lines[2:5]] == ["TTFT", "gap between tokens", "TPOT"]
    assert "tok/s" in lines[5]
    (call,) = edgeinfer.calls
    assert (call["n_ctx"], call["n_kv"], call["max_streams"], call["split"]) == (64, 128, 2, True)


def test_many_streams_as_json_beside_unsplit(edgeinfer: Any) -> None:
    options = ("--vs", "unsplit", "--runs", "2", "--seed", "7", "--json")
    done = edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *SMALL, *options)
    document = json.loads(done.out)
    assert [call["split"] for call in edgeinfer.calls] == [True, False, False, True]  # turn by turn
    assert document["settings"] == {
        "concurrency": 2,
        "requests": 5,
        "prompt_tokens": [4, 20],
        "max_tokens": 3,
        "arrivals": "closed",
        "shared_prefix": 0,
        "n_ctx": 64,
        "seed": 7,
        "runs": 2,
    }
    split, unsplit = document["targets"]
    assert (split["name"], unsplit["name"]) == ("edgeinfer", "edgeinfer unsplit")
    assert (split["settings"]["split"], unsplit["settings"]["split"]) == (True, False)
    for run in split["runs"] + unsplit["runs"]:
        assert (run["n_done"], run["n_out_tokens"], run["n_failed"]) == (5, 15, 0)
        assert run["itl_s"]["n"] == 10
        assert run["ttft_s"]["p99"] >= run["ttft_s"]["p50"] > 0
    assert len(split["warm_up_s"]) == 2


def test_a_comparison_ends_with_ratios(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *SMALL, "--vs", "unsplit", "--runs", "2")
    assert "p99 gap over 2 runs: " in done.out
    assert done.out.splitlines()[-1].startswith("edgeinfer against edgeinfer unsplit: p99 gap ")


def test_arrivals_at_a_stated_rate(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *SMALL, "--arrivals", "poisson:200", "--json")
    document = json.loads(done.out)
    assert document["settings"]["arrivals"] == "poisson:200"
    assert document["targets"][0]["runs"][0]["n_done"] == 5


def test_a_given_context_is_kept(edgeinfer: Any) -> None:
    assert edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *SMALL, "--n-ctx", "100").code == 0
    assert edgeinfer.calls[0]["n_ctx"] == 100


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--concurrency", "2", "--pp", "5"), 2, "--pp goes without --concurrency"),
        (("--requests", "5"), 2, "--requests goes with --concurrency"),
        (("--no-split",), 2, "--no-split goes with --concurrency"),
        (("--vs", "unsplit"), 2, "--vs goes with --concurrency"),
        (("--concurrency", "0"), 2, "--concurrency is 0; wanted at least 1"),
        (("--concurrency", "1", "--runs", "0"), 2, "--runs is 0; wanted at least 1"),
        (("--concurrency", "1", "--arrivals", "often"), 2, "wanted closed, poisson:RATE"),
        (("--concurrency", "1", "--prompt-tokens", "few"), 2, "--prompt-tokens is 'few'; wanted MIN:MAX"),
        (("--concurrency", "1", "--prompt-tokens", "9:3"), 2, "cannot be made"),
        (("--concurrency", "1", "--vs", "vllm"), 2, "wanted unsplit, llamacpp or the http:// address"),
        (("--concurrency", "1", "--no-split", "--vs", "unsplit"), 2, "leave one of them out"),
        (("--concurrency", "1", "--n-ctx", "100"), 2, "the longest request is 2176 tokens"),
        (("--seed", "-1"), 2, "--seed is -1"),
        (("--repeats", "0"), 2, "leave nothing to measure"),
        (("--pp", "600", "--n-ctx", "600"), 2, "the longest request is 601 tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    edgeinfer: Any, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = edgeinfer("bench", edgeinfer.model, *arguments)
    assert (done.code, done.out) == (code, "")
    assert sentence in done.err


def test_requests_that_fail_are_told_and_end_with_1(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.cli.bench_targets.vocabulary", lambda model: ([*b"bad"] * 9, None))

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise NumericError("step 3 gave logits that are not finite")

    monkeypatch.setattr(LLM, "generate", broken)
    done = edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *SMALL)
    assert done.code == 1
    assert "5 failed" in done.out
    assert done.err.count("a request ended with: step 3 gave logits that are not finite") == 1


def test_an_interrupt_shows_what_was_measured_and_ends_with_130(
    edgeinfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, interrupts = threading.Thread.join, itertools.count()

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        if thread.name.startswith("load-") and next(interrupts) == 12:  # the warm-up is over
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    options = ("--requests", "100000", "--prompt-tokens", "4:20", "--max-tokens", "3", "--json", "-q")
    done = edgeinfer("bench", edgeinfer.model, "--concurrency", "2", *options)
    document = json.loads(done.out)
    assert (done.code, document["interrupted"]) == (130, True)
    (run,) = document["targets"][0]["runs"]
    assert 0 < run["n_done"] < 100000
    assert run["interrupted"]


def test_an_interrupt_of_one_stream_shows_what_was_measured(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, calls = LLM.generate, itertools.count()

    def interrupted(self: LLM, *args: Any, **more: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return generate(self, *args, **more)

    monkeypatch.setattr(LLM, "generate", interrupted)
    done = edgeinfer("bench", edgeinfer.model, "--pp", "20", "--tg", "4")
    assert done.code == 130
    assert done.out.splitlines()[2].split()[-1] == "1"  # of five repeats


def test_throttling_is_mentioned(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = ["the CPU clock fell from 2400 to 1500 MHz while this was measured"]
    monkeypatch.setattr("edgeinfer.profile.throttle.ThrottleWatch.notes", lambda watch: notes)
    done = edgeinfer("bench", edgeinfer.model, "--pp", "8", "--tg", "2", "--repeats", "1", "--json", "-q")
    assert json.loads(done.out)["notes"] == notes
    assert done.err == f"note: {notes[0]}\n"


def test_a_slow_load_is_not_decoding(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause while loading changes no figure of prefill and decode: they are measured around forwards."""

    class Slow(LLM):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **{**more, "load_s": 5.0, "compile_s": 60.0})

    monkeypatch.setattr("tests.cli.echo.LLM", Slow)
    done = edgeinfer("bench", edgeinfer.model, "--pp", "8", "--tg", "3", "--repeats", "1", "-q")
    assert done.out.startswith("loaded in 5.00 s, compiled in 60.00 s, warm-up ")
    document = json.loads(edgeinfer("bench", edgeinfer.model, "--pp", "8", "--tg", "3", "--json", "-q").out)
    assert document["settings"]["load_s"] == 5.0
    ttft = next(row for row in document["results"] if row["what"] == "pp8 TTFT")
    assert ttft["most"] < 5000


def test_numbers_are_short() -> None:
    from edgeinfer.cli.bench_view import _number

    assert [_number(value) for value in (None, 0.1234, 12.34, 1234.5)] == ["-", "0.12", "12.3", "1,234"]
    assert Measured("x", "ms", (None, 2.0, 4.0)).spread.median == 3.0
