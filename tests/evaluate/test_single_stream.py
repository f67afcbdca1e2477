"""pp and tg: what counts, what stands beside it, what is not defined, and what an interrupt leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from edgeinfer.errors import EngineError, SettingError
from edgeinfer.evaluate import single_stream
from edgeinfer.evaluate.sides import Llama, Ours, SideRun
from edgeinfer.evaluate.single_stream import Case, SingleStream, cases_of, measure_single
from edgeinfer.generate.chunk import Chunk
from edgeinfer.metrics import Timings

POOL = range(1000)


class Toy:
    """A side whose prompt takes `read_s` a token and whose tokens take `write_s` each."""

    def __init__(self, name: str = "toy", read_s: float = 0.01, write_s: float = 0.5) -> None:
        self.name, self.read_s, self.write_s = name, read_s, write_s
        self.asked: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.interrupt_at = -1
        self.log: list[str] = []

    def run(self, prefix: Sequence[int], prompt: Sequence[int], n_out: int) -> SideRun:
        if len(self.asked) == self.interrupt_at:
            raise KeyboardInterrupt
        self.asked.append((tuple(prefix), tuple(prompt), n_out))
        self.log.append(self.name)
        timings = Timings(
            len(prompt), 0, len(prompt), n_out, ttft_s=0.25, t_first=1.0, t_last=1.0 + self.write_s * (n_out - 1)
        )
        return SideRun(len(prompt), n_out, self.read_s * len(prompt), self.write_s * (n_out - 1), timings)


class ToyLimits:
    """A machine that reads 1000 bytes and does 4000 operations a second; a token reads n_past bytes and has 10 products."""

    def bandwidth(self) -> float:
        return 1000.0

    def peak(self) -> float:
        return 4000.0

    def mbu(self, tok_s: float, n_past: float, bandwidth: float) -> float:
        return n_past * tok_s / bandwidth

    def of_peak(self, tok_s: float, peak: float) -> float:
        return 2 * 10 * tok_s / peak


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_stream, "_REST_S", 0.0)


def measure(side: Toy | None = None, cases: Sequence[Case] | None = None, **more: Any) -> SingleStream:
    settings: dict[str, Any] = {"repeats": 3, **more}
    return measure_single(side or Toy(), POOL, cases_of([512], [128]) if cases is None else cases, **settings)


def test_rates_are_those_of_their_formulas() -> None:
    rows = {row.what: row for row in measure().rows()}
    assert rows["pp512"].spread.median == pytest.approx(100.0)  # 512 tokens in 5.12 s
    assert rows["tg128"].spread.median == pytest.approx(2.0)  # 127 tokens in 63.5 s
    assert rows["pp512 TTFT"].spread.median == pytest.approx(250.0)
    assert rows["tg128 TPOT"].spread.median == pytest.approx(500.0)
    assert all(row.spread.n == 3 for row in rows.values() if row.what != "tg128 longest gap")


def test_the_first_round_is_a_warm_up_and_no_prompt_comes_twice() -> None:
    side = Toy()
    result = measure(side)
    assert len(side.asked) == 2 * 4
    assert len({prompt for _, prompt, _ in side.asked}) == len(side.asked)
    assert [n_out for _, _, n_out in side.asked[:2]] == [1, 128]
    assert result.warm_up_s is not None


def test_every_length_at_every_depth_has_a_row() -> None:
    cases = cases_of([32, 0, 64], [16], [0, 256])
    assert [case.label for case in cases] == ["pp32", "pp64", "tg16", "pp32 @ d256", "pp64 @ d256", "tg16 @ d256"]
    side = Toy()
    result = measure(side, cases, bos=7)
    assert [row.what for row in result.rates()] == [case.label for case in cases]
    held = {prefix for prefix, _, _ in side.asked}
    assert sorted(map(len, held)) == [0, 256]  # one prefix, the same in every round
    for prefix, prompt, _ in side.asked:
        assert (prefix or prompt)[0] == 7  # a text begins with it


def test_a_rival_takes_turns_and_gives_a_ratio() -> None:
    ours, theirs = Toy("a", 0.01, 0.1), Toy("b", 0.02, 0.4)
    theirs.log = ours.log
    result = measure(ours, cases_of([64], []), rival=theirs)
    assert "".join(ours.log) == "baabbaab"
    (row,) = result.rates()
    assert row.ratio == pytest.approx(2.0)
    assert [asked[:2] for asked in ours.asked] == [asked[:2] for asked in theirs.asked]  # the same prompts
    document = row.as_dict()
    assert document["ratio"] == row.ratio
    assert document["llamacpp"]["median"] == pytest.approx(50.0)
    json.dumps(document, allow_nan=False)


def test_limits_stand_beside_each_figure() -> None:
    rows = {row.what: row for row in measure(limits=ToyLimits()).rates()}
    assert (rows["pp512"].limit, rows["tg128"].limit) == ("of peak", "MBU")
    assert rows["pp512"].fraction == pytest.approx(20 * 100.0 / 4000)
    assert rows["tg128"].fraction == pytest.approx((32 + 64) * 2.0 / 1000)
    assert rows["tg128"].as_dict()["mbu"] == rows["tg128"].fraction
    assert rows["pp512"].as_dict()["int8_ops_s"] == 4000.0


def test_a_single_token_has_no_rate() -> None:
    assert SideRun(32, 1, 0.1, 0.0).decode_tok_s is None
    assert SideRun(0, 1, 0.1, 0.0).prefill_tok_s is None
    assert measure(cases=cases_of([], [1])).rates()[0].spread.median is None


def test_an_interrupt_keeps_whole_measurements() -> None:
    side = Toy()
    side.interrupt_at = 5  # in the third round
    result = measure(side)
    assert result.interrupted
    assert [row.spread.n for row in result.rates()] == [2, 1]


@pytest.mark.parametrize(
    ("prompts", "outs", "depths", "sentence"),
    [
        ([0], [0], [0], "leave nothing to measure"),
        ([], [], [], "leave nothing to measure"),
        ([-1], [8], [0], "below 0"),
        ([8], [8], [-64], "below 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    prompts: list[int], outs: list[int], depths: list[int], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        cases_of(prompts, outs, depths)
    with pytest.raises(SettingError, match="0 repeats"):
        measure(repeats=0)


def test_one_prompt_token_more_is_read_when_there_is_a_depth() -> None:
    """The warm-up round fills the cache of the prefix, so that no measured run reads it."""
    side = Toy()
    measure(side, cases_of([16], [], [128]), repeats=1)
    assert [(len(p), len(q)) for p, q, _ in side.asked] == [(128, 1), (128, 16), (128, 16)]


# ---- the sides ----------------------------------------------------------------------------------------------------------


class Answer:
    def __init__(self, n: int) -> None:
        self.n, self.timings = n, Timings(5, 2, 3, n)
        self.cancelled = False

    def __iter__(self) -> Any:
        for i in range(self.n):
            yield Chunk("x", i, None)
        yield Chunk("", None, "length")

    def cancel(self) -> None:
        self.cancelled = True


def test_ours_asks_generate_for_greedy_tokens_and_counts_what_was_read() -> None:
    calls: list[Any] = []

    def generate(prompt: list[int], **more: Any) -> Answer:
        calls.append((prompt, more))
        return Answer(more["max_tokens"])

    run = Ours(generate).run((1, 2), (3,), 4)
    assert calls == [([1, 2, 3], {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True})]
    assert (run.n_read, run.n_out) == (3, 4)  # of five prompt tokens two were found in a cache
    with pytest.raises(EngineError, match="without a token"):
        Ours(lambda prompt, **more: Answer(0)).run((), (1,), 1)


class FakeLlama:
    """Notes what it is asked; holds what it read."""

    def __init__(self, cuts: bool = True) -> None:
        self.cuts, self.log = cuts, []  # type: ignore[var-annotated]

    def reset(self) -> None:
        self.log.append("reset")

    def rewind(self, n: int) -> bool:
        self.log.append(("rewind", n))
        return self.cuts

    def read(self, ids: Sequence[int], n_past: int) -> None:
        self.log.append(("read", tuple(ids), n_past))

    def greedy(self, ids: Sequence[int], n_past: int = 0) -> Any:
        self.log.append(("greedy", tuple(ids), n_past))
        while True:
            yield 1


def test_llama_keeps_a_prefix_from_run_to_run() -> None:
    fake: Any = FakeLlama()
    side = Llama(fake)
    assert side.run((1, 2), (3,), 2).n_read == 1
    side.run((1, 2), (4,), 1)
    side.run((), (5,), 1)
    assert fake.log == [
        "reset", ("read", (1, 2), 0), ("greedy", (3,), 2),
        ("rewind", 2), ("greedy", (4,), 2),
        "reset", ("greedy", (5,), 0),
    ]  # fmt: skip


def test_llama_reads_a_prefix_again_where_its_cache_cannot_be_cut() -> None:
    fake: Any = FakeLlama(cuts=False)
    side = Llama(fake)
    side.run((1, 2), (3,), 1)
    side.run((1, 2), (4,), 1)
    assert fake.log[3:6] == [("rewind", 2), "reset", ("read", (1, 2), 0)]
