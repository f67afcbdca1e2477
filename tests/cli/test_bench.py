"""`edgeinfer bench` on the echoing model: its tables, its JSON, what it refuses, and Ctrl-C."""

from __future__ import annotations

import functools
import itertools
import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import NumericError
from edgeinfer.evaluate.single_stream import Measured
from edgeinfer.load import LLM
from edgeinfer.profile.threads import ThreadChoice
from edgeinfer.profile.tuned import find_tuned
from edgeinfer.settings import settings

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
        (("--vs", "unsplit"), 2, "--vs is 'unsplit'; wanted llamacpp, or --concurrency N with it"),
        (("--concurrency", "1", "--depth", "64"), 2, "--depth goes without --concurrency"),
        (("--concurrency", "1", "--profile"), 2, "--profile goes without --concurrency"),
        (("--concurrency", "1", "-t", "1,2"), 2, "--threads takes one number with --concurrency"),
        (("--pp", "8,x"), 2, "'8,x' is not a list of whole numbers such as 128 or 32,128,512"),
        (("--tg", "-4"), 2, "is not a list of whole numbers"),
        (("-t", "0"), 2, "--threads is 0; wanted at least 1"),
        (("--pp", "0", "--tg", "0"), 2, "leave nothing to measure"),
        (("--tune-threads", "--profile"), 2, "--profile goes without --tune-threads"),
        (("--tune-threads", "-t", "2"), 2, "--threads goes without --tune-threads"),
        (("--tune-threads", "--pp", "8,16"), 2, "--pp takes one number with --tune-threads"),
        (("--tune-threads", "--tg", "1"), 2, "wants at least 1 repeat"),
        (("--plot", "x.gif"), 2, "wanted a name that ends in .png"),
        (("--plot", "no/such/folder/x.png"), 2, "there is no folder 'no/such/folder'"),
        (("--batch", "0"), 2, "--batch wants numbers of tokens, at least 1 each"),
        (("--concurrency", "0"), 2, "--concurrency is 0; wanted at least 1"),
        (("--concurrency", "1", "--runs", "0"), 2, "--runs is 0; wanted at least 1"),
        (("--concurrency", "1", "--arrivals", "often"), 2, "wanted closed, poisson:RATE"),
        (("--concurrency", "1", "--prompt-tokens", "few"), 2, "--prompt-tokens is 'few'; wanted MIN:MAX"),
        (("--concurrency", "1", "--prompt-tokens", "9:3"), 2, "cannot be made"),
        (("--concurrency", "1", "--vs", "vllm"), 2, "wanted unsplit, llamacpp or the http:// address"),
        (("--concurrency", "1", "--no-split", "--vs", "unsplit"), 2, "leave one of them out"),
        (("--concurrency", "1", "--n-ctx", "100"), 2, "the longest request is 2176 tokens"),
        (("--seed", "-1"), 2, "--seed is -1"),
        (("--repeats", "0"), 2, "--repeats is 0 and leaves nothing to measure"),
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
    rows = {line.split()[0]: line.split()[-1] for line in done.out.splitlines()[2:]}
    assert rows == {"pp20": "2", "tg4": "1"}  # of five repeats


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


def test_lengths_depths_and_threads_each_have_a_row(edgeinfer: Any) -> None:
    options = ("--pp", "8,16", "--tg", "4", "--depth", "0,32", "--repeats", "1", "-t", "1,2", "-q")
    done = edgeinfer("bench", edgeinfer.model, *options)
    assert [call["n_threads"] for call in edgeinfer.calls] == [1, 2]
    assert {call["prefix_cache"] for call in edgeinfer.calls} == {False}  # nothing is written to disk meanwhile
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[2][:2] == ["threads", "median"]
    names = ["pp8", "pp16", "tg4", "pp8 @ d32", "pp16 @ d32", "tg4 @ d32"]
    assert [" ".join(line[: 3 if "@" in line else 1]) for line in lines[3:]] == names * 2
    assert edgeinfer.calls[0]["n_ctx"] == 128  # 32 held, 32 of a prompt, 4 out


def test_figures_of_a_grid_as_json(edgeinfer: Any) -> None:
    options = ("--pp", "8", "--tg", "4", "--depth", "0,32", "--repeats", "2", "--json", "-q")
    document = json.loads(edgeinfer("bench", edgeinfer.model, *options).out)
    whats = [row["what"] for row in document["results"]]
    assert whats[:2] == ["pp8", "pp8 TTFT"]
    assert {"pp8 @ d32", "tg4 @ d32", "tg4 @ d32 TPOT"} < set(whats)
    assert document["verify"] == document["profile"] == []


def test_the_verify_curve(edgeinfer: Any) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--pp", "0", "--tg", "0", "--batch", "1,4", "--repeats", "1", "-q")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()[1:]]
    assert lines[0][:2] == ["step", "of"]
    assert [line[0] for line in lines[1:]] == ["1", "4"]
    assert float(lines[1][-1]) == 1.0


class Rival:
    """Stands for llama.cpp: reads and writes at once."""

    made: list[tuple[str, int, int]] = []  # noqa: RUF012

    def __init__(self, path: Any, n_ctx: int, n_threads: int) -> None:
        self.made.append((str(path), n_ctx, n_threads))

    def reset(self) -> None: ...

    def close(self) -> None: ...

    def rewind(self, n: int) -> bool:
        return True

    def read(self, ids: Any, n_past: int) -> None: ...

    def greedy(self, ids: Any, n_past: int = 0) -> Any:
        return itertools.repeat(1)

    def decode(self, ids: Any, n_past: int, every: bool) -> Any:
        return np.zeros((len(ids), 4), np.float32)


@pytest.fixture
def _rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.evaluate.llama_reference.LlamaCpp", Rival)
    monkeypatch.setattr("edgeinfer.evaluate.llama_reference.build", lambda: "a stand-in")
    monkeypatch.setattr("edgeinfer.evaluate.single_stream._REST_S", 0.0)
    Rival.made.clear()


@pytest.mark.usefixtures("_rival")
def test_beside_llama_cpp(edgeinfer: Any) -> None:
    options = ("--pp", "8", "--tg", "4", "--batch", "2", "--repeats", "1", "--vs", "llamacpp", "-q")
    done = edgeinfer("bench", edgeinfer.model, *options)
    assert Rival.made == [(edgeinfer.model, 192, 1)]
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[1][-2:] == ["llama.cpp", "ratio"]
    assert [line[0] for line in lines[2:4]] == ["pp8", "tg4"]
    assert 0 <= float(lines[2][-1].replace(",", "")) < 1  # it takes no time at all
    document = json.loads(edgeinfer("bench", edgeinfer.model, *options, "--json").out)
    assert document["results"][0]["llamacpp"]["median"] > 0
    assert document["verify"][1]["llamacpp_seconds"] is not None


def test_llama_cpp_that_is_not_installed_is_named_with_the_command(
    edgeinfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    done = edgeinfer("bench", edgeinfer.model, "--vs", "llamacpp")
    assert (done.code, done.out) == (12, "")
    assert 'run: CMAKE_ARGS="-DGGML_NATIVE=ON" pip install' in done.err
    assert edgeinfer.calls == []  # before anything is loaded


def test_matplotlib_that_is_not_installed_is_named_with_the_command(
    edgeinfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = edgeinfer("bench", edgeinfer.model, "--plot", "x.png")
    assert (done.code, done.out) == (12, "")
    assert "pip install 'edgeinfer[plot]'" in done.err


@pytest.mark.usefixtures("_rival")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_plot_is_a_picture(edgeinfer: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "bench.png"
    options = (
        "--pp",
        "8",
        "--tg",
        "4",
        "--batch",
        "2",
        "--repeats",
        "1",
        "--vs",
        "llamacpp",
        "-q",
        "--plot",
        str(file),
    )
    done = edgeinfer("bench", edgeinfer.model, *options)
    assert done.code == 0
    assert f"the plot is in {file}" in done.err
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["--profile", "--tune-threads"])
def test_what_needs_our_engine_says_so(edgeinfer: Any, flag: str) -> None:
    done = edgeinfer("bench", edgeinfer.model, "--pp", "8", "--tg", "4", "--repeats", "1", flag, "-q")
    assert done.code == 2
    assert "needs the native engine" in done.err


class Tunable:
    """What the sweep looks at of a native engine."""

    phase_threads = {"decode": 2, "batch": 2}  # noqa: RUF012
    library = types.SimpleNamespace(folder=Path("kernels-of-today"))


@pytest.mark.parametrize(("busy", "kept"), [(3.0, True), (80.0, False)])
def test_tuned_threads_are_kept_when_the_machine_was_quiet(
    edgeinfer: Any, monkeypatch: pytest.MonkeyPatch, busy: float, kept: bool
) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: busy)
    monkeypatch.setattr(LLM, "engine", Tunable())
    monkeypatch.setattr("edgeinfer.store.resolve", lambda name, settings: Path(name))
    options = ("--tune-threads", "--pp", "8", "--tg", "4", "--repeats", "1", "-q")
    done = edgeinfer("bench", edgeinfer.model, *options)
    assert done.code == 0
    assert done.out.splitlines()[0].split() == ["threads", "prefill", "tok/s", "decode", "tok/s"]
    assert done.out.count("*") == 2
    document = json.loads(edgeinfer("bench", edgeinfer.model, *options, "--json").out)
    assert (document["kept_in"] is not None) is kept
    assert document["counts"][0] == 1
    found = find_tuned(settings(), Path(edgeinfer.model), "kernels-of-today")
    assert (found is not None) is kept
    if found is None:
        assert "nothing was kept: other programs used 80 % of the CPUs" in done.err
    else:
        assert (found.n_prefill, found.n_decode) == (document["best"]["prefill"], document["best"]["decode"])


def test_a_capped_thread_count_is_said(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = ThreadChoice(1, "asked for: 8", note="8 threads were asked for, but this is small: computing with 1")
    monkeypatch.setattr("tests.cli.echo.LLM", functools.partial(LLM, threads=choice))
    done = edgeinfer("run", edgeinfer.model, "-p", "hi", "-t", "8")
    assert f"note: {choice.note}" in done.err
    bench = edgeinfer("bench", edgeinfer.model, "--pp", "8", "--tg", "0", "--repeats", "1", "-q")
    assert "1 threads (asked for: 8)" in bench.out


def test_numbers_are_short() -> None:
    from edgeinfer.cli.bench_view import _number

    assert [_number(value) for value in (None, 0.1234, 12.34, 1234.5)] == ["-", "0.12", "12.3", "1,234"]
    assert Measured("x", "ms", (None, 2.0, 4.0)).spread.median == 3.0
