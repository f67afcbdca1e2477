from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import (
    ContextOverflowError,
    EngineError,
    ModelFileError,
    NotFoundError,
    NumericError,
    SettingError,
    TemplateError,
    UnsupportedModelError,
)
from edgeinfer.load import LLM, choose_n_ctx
from edgeinfer.profile.threads import Cores
from edgeinfer.profile.tuned import Tuned, keep_tuned
from edgeinfer.settings import settings as read_settings
from tests.fakes import BOS, EOT, N_VOCAB, ByteTokenizer, ScriptedEngine, ToyTemplate, hashed
from tests.tiny import build_tiny


def model(
    engine: ScriptedEngine | None = None, *, template: Any = "toy", seed: int | None = None, **settings: Any
) -> LLM:
    """An LLM over a scripted engine."""
    tokenizer: Any = ByteTokenizer()
    engine = engine or ScriptedEngine(n_ctx=256)
    chosen = ToyTemplate(tokenizer) if template == "toy" else template
    return LLM(engine, tokenizer, chosen, seed=seed, **settings)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# generate


def test_generate_takes_text_or_ids() -> None:
    llm = model()
    by_text = llm.generate("Hello", max_tokens=5, temperature=0).text()
    assert by_text == llm.generate(list(b"Hello"), max_tokens=5, temperature=0).text()
    assert (
        by_text == llm.generate(np.frombuffer(b"Hello", np.uint8).astype(np.int32), max_tokens=5, temperature=0).text()
    )
    assert len(by_text) > 0


def test_chunks_join_to_the_text_and_the_last_one_says_why() -> None:
    llm = model(ScriptedEngine.says([*b"Hi!", EOT], after=5))
    answer = llm.generate("Hello", temperature=0)
    assert [(chunk.text, chunk.token, chunk.finish_reason, chunk.from_draft) for chunk in answer] == [
        ("H", 72, None, False),
        ("i", 105, None, False),
        ("!", 33, None, False),
        ("", None, "stop", False),
    ]
    assert answer.timings.n_out == 3
    assert answer.timings.tpot_s is not None


def test_sampling_parameters_reach_the_sampler() -> None:
    llm = model()
    params = edgeinfer.SamplingParams(temperature=0, max_tokens=4)
    greedy = llm.generate("Hello", params=params).text()
    assert greedy == llm.generate("Hello", temperature=0, max_tokens=4).text()
    assert greedy.startswith(llm.generate("Hello", params=params, max_tokens=2).text())
    first = next(llm.generate("Hello", params=params)).token
    assert first is not None
    others = list(llm.generate("Hello", params=params, logit_bias={first: -np.inf}))
    assert others[0].token != first
    with pytest.raises(SettingError, match="no sampling parameter 'temprature'"):
        llm.generate("Hello", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(SettingError, match="top_p is 7"):
        llm.generate("Hello", top_p=7)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", SettingError, "no token"),
        ([], SettingError, "no token"),
        ([1, 2, N_VOCAB], SettingError, "position 2"),
        (["a"], SettingError, "list of ints"),
        (None, SettingError, "prompt is NoneType"),
        (7, SettingError, "prompt is int"),
        (b"bytes", SettingError, "prompt is bytes"),
        ("x" * 256, ContextOverflowError, "256 tokens"),
    ],
)
def test_prompts_are_refused_at_once(prompt: Any, error: type[Exception], words: str) -> None:
    engine = ScriptedEngine(n_ctx=256)
    with pytest.raises(error, match=words):
        model(engine).generate(prompt)
    assert engine.calls == []


def test_seeds() -> None:
    def drawn(llm: LLM, **params: Any) -> str:
        return llm.generate("Hello", max_tokens=12, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, **params).text()

    one, other = model(seed=3), model(seed=3)
    first, second = drawn(one), drawn(one)
    assert [drawn(other), drawn(other)] == [first, second]  # repeatable in their order
    assert first != second
    assert drawn(model(), seed=8) == drawn(model(), seed=8) != drawn(model(), seed=9)
    answer = one.generate("Hello", max_tokens=12, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0)
    assert drawn(model(), seed=answer.seed) == answer.text()  # the seed that was taken is known


# chat


def test_chat_renders_the_template() -> None:
    text = b"user: Hello\nassistant: "
    engine = ScriptedEngine.says(b"Hi", after=len(text) + 1, n_ctx=64)
    assert model(engine).chat([user("Hello")], temperature=0).text() == "Hi"
    assert bytes(engine.kv.held[1][1 : len(text) + 1]) == text
    assert engine.kv.held[1][0] == BOS


def test_chat_reuses_what_it_shares_with_the_last_prompt() -> None:
    llm = model()
    first = llm.chat([user("Hello")], temperature=0, max_tokens=4)
    said = first.text()
    messages = [user("Hello"), {"role": "assistant", "content": said}, user("And now?")]
    warm = llm.chat(messages, temperature=0, max_tokens=4)
    text = warm.text()
    shared = len(b"user: Hello\nassistant: ") + 1
    assert warm.timings.n_reused >= shared
    assert warm.timings.n_prefill == warm.n_prompt - warm.timings.n_reused
    cold = model().chat(messages, temperature=0, max_tokens=4)
    assert (cold.text(), cold.timings.n_reused) == (text, 0)
    llm.reset()
    again = llm.chat(messages, temperature=0, max_tokens=4)
    assert (again.text(), again.timings.n_reused) == (text, 0)


def test_chat_without_a_template_names_plain_completion() -> None:
    llm = model(template=None)
    assert llm.template is None
    with pytest.raises(TemplateError, match=r"no chat template.*generate"):
        llm.chat([user("Hello")])
    assert llm.generate("Hello", max_tokens=2, temperature=0).text()


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "messages is NoneType"),
        ("Hello", "messages is str"),
        ({"role": "user"}, "messages is dict"),
        ([], "messages is empty"),
        ([user("a"), "b"], r"messages\[1\] is str"),
        ([{"content": "a"}], r"messages\[0\] has no 'role'"),
        ([{"role": "user"}], r"messages\[0\] has no 'content'"),
        ([{"role": "user", "content": None}], r"messages\[0\]\['content'\] is NoneType"),
        ([{"role": 1, "content": "a"}], r"messages\[0\]\['role'\] is int"),
        ([{"role": "", "content": "a"}], r"messages\[0\]\['role'\] is empty"),
    ],
)
def test_messages_are_checked(messages: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        model().chat(messages)


# logits


@pytest.mark.parametrize("n_batch", [1, 3, 512])
def test_logits_are_a_row_for_each_id_and_leave_no_trace(n_batch: int) -> None:
    engine = ScriptedEngine(n_ctx=64, n_batch=n_batch)
    llm = model(engine)
    before = llm.generate("Hello", max_tokens=4, temperature=0).text()
    held = dict(engine.kv.held)
    ids = [5, 6, 7, 8, 9]
    rows = llm.logits(ids)
    assert (rows.shape, rows.dtype) == ((5, N_VOCAB), np.float32)
    for i in range(5):
        assert np.array_equal(rows[i], hashed(tuple(ids[: i + 1])))
    assert engine.kv.held == held
    assert np.array_equal(llm.logits(np.array(ids)), rows)
    again = llm.generate("Hello", max_tokens=4, temperature=0)
    assert (again.text(), again.timings.n_reused) == (before, 4)


def test_logits_at_the_edges() -> None:
    llm = model(ScriptedEngine(n_ctx=64))
    assert llm.logits([]).shape == (0, N_VOCAB)
    assert llm.logits([1] * 64).shape == (64, N_VOCAB)
    with pytest.raises(ContextOverflowError, match=r"65 .* 64"):
        llm.logits([1] * 65)
    with pytest.raises(SettingError, match="position 1"):
        llm.logits([1, -1])
    with pytest.raises(SettingError, match="list of ints"):
        llm.logits("text")  # type: ignore[arg-type]


def test_logits_make_room_for_themselves() -> None:
    engine = ScriptedEngine(n_ctx=64)
    llm = model(engine)
    llm.generate([1] * 30, max_tokens=2, temperature=0).text()

    def one_context_of_pages(batch: Any) -> None:
        held = {seq: len(tokens) for seq, tokens in engine.kv.held.items()}
        held[int(batch.seq_ids[0])] += len(batch)
        if sum(-(-n // 16) for n in held.values()) > 4:
            raise ContextOverflowError("the pool is full")

    engine.before = one_context_of_pages
    assert llm.logits([1] * 16).shape == (16, N_VOCAB)
    assert llm.generate([1] * 30, max_tokens=2, temperature=0).timings.n_prompt == 30
    assert len(engine.kv.held) == 1  # there was room for both: the conversation is kept
    assert llm.logits([1] * 33).shape == (33, N_VOCAB)
    assert llm.logits([1] * 64).shape == (64, N_VOCAB)
    assert engine.kv.held == {}


def test_an_error_in_logits_closes_the_sequence() -> None:
    engine = ScriptedEngine()

    def fail(batch: Any) -> None:
        raise NumericError("no")

    engine.before = fail
    llm = model(engine)
    with pytest.raises(NumericError):
        llm.logits([1, 2])
    assert engine.kv.held == {}
    engine.before = lambda batch: None
    assert llm.logits([1, 2]).shape == (2, N_VOCAB)


# closing, and two callers at once


def test_a_closed_model_says_so() -> None:
    engine = ScriptedEngine()
    with model(engine) as llm:
        llm.generate("Hello", max_tokens=2, temperature=0).text()
        pending = llm.generate("Hello")
        half = llm.generate("Hello", temperature=0)
        next(half)
    assert engine.closed
    llm.close()
    for call in (lambda: llm.generate("a"), lambda: llm.chat([user("a")]), lambda: llm.logits([1]), llm.reset):
        with pytest.raises(EngineError, match="closed"):
            call()
    assert list(pending) == list(half) == []
    assert half.finish_reason == "cancelled"


def test_closing_ends_the_answer_of_another_thread() -> None:
    engine = ScriptedEngine(n_ctx=4096)
    engine.before = lambda batch: time.sleep(0.001)
    llm = model(engine)
    answer = llm.generate("Hello", temperature=0, ignore_eos=True)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(answer), daemon=True)
    thread.start()
    while len(seen) < 3:
        time.sleep(0.001)
    llm.close()
    thread.join(10)
    assert not thread.is_alive()
    assert engine.closed
    assert answer.finish_reason == "cancelled"


def test_threads_that_call_at_once_get_the_serial_texts() -> None:
    prompts = [f"prompt {i}" for i in range(6)]
    expected = [model().generate(prompt, temperature=0, max_tokens=15).text() for prompt in prompts]
    engine = ScriptedEngine(n_ctx=256)
    engine.before = lambda batch: time.sleep(0.0003)
    llm = model(engine)
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        if i % 2:
            assert llm.logits([1, 2, 3]).shape == (3, N_VOCAB)
        found[i] = llm.generate(prompts[i], temperature=0, max_tokens=15).text()

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [found.get(i) for i in range(6)] == expected


def test_logits_in_the_middle_of_an_answer() -> None:
    llm = model()
    answer = llm.generate("Hello", temperature=0, max_tokens=5)
    next(answer)
    assert np.array_equal(llm.logits([1])[0], hashed((1,)))
    assert len(list(answer)) == 4


def test_an_abandoned_answer_releases_the_model() -> None:
    llm = model()
    for _ in llm.generate("Hello", temperature=0):
        break
    assert llm.generate("Hello", temperature=0, max_tokens=3).timings.n_prompt == 5
    assert len(llm.generate("Hello", temperature=0, max_tokens=3).text()) == 3


# load


@pytest.mark.parametrize(
    ("asked", "trained", "n_ctx"),
    [(None, 512, 512), (None, 131072, 4096), (100, 512, 100), (512, 512, 512), (8192, 8192, 8192)],
)
def test_the_context(asked: int | None, trained: int, n_ctx: int) -> None:
    assert choose_n_ctx(asked, trained) == n_ctx


@pytest.mark.parametrize("asked", [0, -1, 1.5, "big", True])
def test_contexts_that_are_none(asked: Any) -> None:
    with pytest.raises(SettingError, match="n_ctx"):
        choose_n_ctx(asked, 512)


def test_a_context_beyond_the_trained_one_is_refused_with_both_numbers() -> None:
    with pytest.raises(SettingError, match=r"1024.*512"):
        choose_n_ctx(1024, 512)


class FakeNativeEngine(ScriptedEngine):
    """Stands for the native engine where only the composition is tested."""

    made: list[FakeNativeEngine] = []  # noqa: RUF012
    compile_s = 0.0

    def __init__(
        self, weights: Any, *, n_ctx: int, n_batch: int, n_threads: int, phase_threads: Any, progress: Any = None
    ) -> None:
        def row(history: tuple[int, ...]) -> Any:
            return hashed(history, self.n_vocab)

        super().__init__(row, n_vocab=weights.config.n_vocab, n_ctx=n_ctx, n_batch=n_batch)
        self.config, self.n_threads, self.phase_threads = weights.config, n_threads, phase_threads
        self.made.append(self)
        if progress:
            progress("compiling")


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeNativeEngine]]:
    """Put the fake in the native engine's place, on eight CPUs; the list fills with the engines that are made."""
    module: Any = types.ModuleType("edgeinfer.engine.native")
    module.NativeEngine = FakeNativeEngine
    module.kernel_library = lambda options: types.SimpleNamespace(folder=Path("kernels-of-today"))
    eight = lambda *_: Cores(tuple(range(8)), tuple(range(8)), 8, None)  # noqa: E731
    monkeypatch.setattr("edgeinfer.profile.threads.usable_cores", eight)
    monkeypatch.setattr("edgeinfer.profile.tuned.usable_cores", eight)
    monkeypatch.setitem(sys.modules, "edgeinfer.engine.native", module)
    FakeNativeEngine.made.clear()
    yield FakeNativeEngine.made
    FakeNativeEngine.made.clear()


def test_load_puts_everything_together(native: list[FakeNativeEngine], tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "tiny.gguf", n_ctx_train=128)
    lines: list[str] = []
    with edgeinfer.load(path, n_threads=3, n_batch=16, progress=lines.append) as llm:
        (engine,) = native
        assert (llm.n_ctx, engine.n_batch, engine.n_threads, lines) == (128, 16, 3, ["compiling"])
        assert llm.config.arch == "llama"
        assert llm.template is not None
        assert llm.tokenizer.decode(llm.tokenizer.encode("hello world")) == "hello world"
        assert llm.load_s is not None
        assert llm.logits([1, 2, 3]).shape == (3, llm.config.n_vocab)
        answer = llm.chat([user("hello")], max_tokens=5, temperature=0)
        answer.text()
        assert answer.timings.n_out > 0
        assert answer.timings.load_s == llm.load_s
    assert engine.closed


def test_the_environment_chooses_threads(
    native: list[FakeNativeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_THREADS", "5")
    edgeinfer.load(str(build_tiny(tmp_path / "tiny.gguf"))).close()
    assert native[0].n_threads == 5


def test_an_unknown_pre_tokenizer_is_refused_unless_the_user_names_one(tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.pre": "klingon"})
    with pytest.raises(UnsupportedModelError, match=r"'klingon'.*--pre NAME"):
        edgeinfer.load(path)
    with pytest.raises(SettingError, match="'romulan' is not known"):
        edgeinfer.load(path, pre="romulan")
    with edgeinfer.load(path, pre="smollm") as llm:
        assert llm.tokenizer.pre == "smollm"


def test_measured_thread_counts_are_used_when_nobody_asks(
    native: list[FakeNativeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    path = build_tiny(tmp_path / "tiny.gguf")
    tuned = Tuned(6, 3, {"6": 60.0}, {"3": 30.0}, path.name)
    keep_tuned(read_settings(), path, "kernels-of-today", tuned)
    with edgeinfer.load(path) as llm:
        assert llm.threads is not None
        assert llm.threads.reason == tuned.reason
    edgeinfer.load(path, n_threads=2).close()
    keep_tuned(read_settings(), path, "kernels-of-yesterday", tuned)
    edgeinfer.load(path).close()
    found = [(engine.n_threads, engine.phase_threads) for engine in native]
    assert found == [(n, {"batch": n, "decode": m}) for n, m in ((6, 3), (2, 2), (8, 8))]


def test_more_threads_than_can_run_at_once_are_not_used(native: list[FakeNativeEngine], tmp_path: Path) -> None:
    with edgeinfer.load(build_tiny(tmp_path / "tiny.gguf"), n_threads=64) as llm:
        assert llm.threads is not None
        assert llm.threads.note == "64 threads were asked for, but this process may run on 8 CPUs: computing with 8"
    assert native[0].n_threads == 8


def test_a_file_without_a_template(native: list[FakeNativeEngine], tmp_path: Path) -> None:
    with edgeinfer.load(build_tiny(tmp_path / "tiny.gguf", template=None)) as llm:
        with pytest.raises(TemplateError, match="no chat template"):
            llm.chat([user("hello")])
        assert llm.generate("hello", max_tokens=3, temperature=0).text() is not None


def test_a_file_with_a_broken_template(native: list[FakeNativeEngine], tmp_path: Path) -> None:
    with edgeinfer.load(build_tiny(tmp_path / "tiny.gguf", template="a\n{% if %}")) as llm:
        with pytest.raises(TemplateError, match="line 2"):
            llm.chat([user("hello")])
        assert llm.generate("hello", max_tokens=3, temperature=0).text() is not None


def test_load_never_downloads_and_names_the_command(native: list[FakeNativeEngine]) -> None:
    with pytest.raises(NotFoundError, match="edgeinfer pull smollm2-135m"):
        edgeinfer.load("smollm2-135m")
    with pytest.raises(NotFoundError):
        edgeinfer.load("no-such-model-at-all")
    assert native == []


def test_what_was_opened_is_closed_when_loading_fails(
    native: list[FakeNativeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.model.gguf import GGUFFile

    closed: list[Path] = []
    close = GGUFFile.close

    def note(self: GGUFFile) -> None:
        closed.append(self.path)
        close(self)

    monkeypatch.setattr(GGUFFile, "close", note)
    path = build_tiny(tmp_path / "tiny.gguf", n_ctx_train=64)
    with pytest.raises(SettingError, match="n_ctx"):
        edgeinfer.load(path, n_ctx=65)
    assert closed == [path]
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelFileError):
        edgeinfer.load(tmp_path / "bad.gguf")
    assert native == []


@pytest.mark.parametrize("bad", [{"n_threads": 0}, {"n_batch": 0}, {"n_ctx": -5}, {"seed": "x"}])
def test_settings_that_cannot_be_used(native: list[FakeNativeEngine], tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(bad))):
        edgeinfer.load(build_tiny(tmp_path / "tiny.gguf"), **bad)
    assert native == []
