"""The composition root: a name or path and some settings -> everything from file to text, in one object.

`load` never downloads: a name that is not on this disk ends in an error that names the `edgeinfer pull` command. The
engine, and with it numba, is imported when a model is loaded and not before.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .engine.types import Batch, Engine
from .errors import ContextOverflowError, EngineError, MemoryLimitError, SettingError, TemplateError
from .generate.params import SamplingParams
from .profile.threads import ThreadChoice, choose_threads
from .schedule.generation import Gate, Generation
from .schedule.session import Run, Session, check_ids
from .settings import Settings
from .settings import settings as read_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .generate.params import SamplingArgs
    from .model.config import ModelConfig
    from .model.template import ChatTemplate
    from .model.tokenizer import Tokenizer

__all__ = ["LLM", "load"]

_DEFAULT_N_CTX = 4096  # the KV cache of a model's whole trained window would often not fit in memory
_LOGITS_BYTES = 64 << 20  # rows of logits that `LLM.logits` asks for in one forward


def load(
    name_or_path: str | Path,
    *,
    n_ctx: int | None = None,
    n_batch: int = 512,
    n_threads: int | None = None,
    seed: int | None = None,
    progress: Callable[[str], None] | None = None,
    settings: Settings | None = None,
) -> LLM:
    """Load a GGUF model by path, or by the name of one that was pulled, and return it ready to answer.

    n_ctx is the context in tokens (default: what the model was trained with, at most 4096), n_batch the most tokens of
    one prefill step, n_threads the threads to compute with (default: EDGEINFER_THREADS, else the cores this process may
    use), seed makes the answers of this object repeatable in their order, progress is given lines of text while kernels
    are compiled.

    Raises NotFoundError, ModelFileError, UnsupportedModelError, SettingError, MemoryLimitError, EngineError.

    >>> with edgeinfer.load("smollm2-135m") as llm:  # doctest: +SKIP
    ...     print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text())
    """
    from . import store
    from .model.config import ModelConfig
    from .model.gguf import GGUFFile
    from .model.template import ChatTemplate
    from .model.tokenizer import Tokenizer
    from .model.weights import Weights

    started = time.perf_counter()
    settings = settings or read_settings()
    n_batch = _at_least_one("n_batch", n_batch)
    if seed is not None:
        seed = SamplingParams(seed=seed).seed
    threads = choose_threads(n_threads, settings)
    with ExitStack() as opened:
        file = opened.enter_context(GGUFFile.open(store.resolve(name_or_path, settings)))
        config = ModelConfig.from_gguf(file)
        window = choose_n_ctx(n_ctx, config.n_ctx_train)
        tokenizer = Tokenizer.from_gguf(file)
        template = ChatTemplate.from_gguf(file, tokenizer)
        weights = Weights(file, config)
        opened.callback(weights.close)

        from .engine.native import NativeEngine

        engine = NativeEngine(weights, n_ctx=window, n_batch=n_batch, n_threads=threads.n_threads, progress=progress)
        opened.callback(engine.close)
        compile_s = getattr(engine, "compile_s", None)
        return LLM(
            engine,
            tokenizer,
            template,
            threads=threads,
            seed=seed,
            load_s=time.perf_counter() - started - (compile_s or 0.0),
            compile_s=compile_s,
            on_close=opened.pop_all().close,
        )


def choose_n_ctx(asked: int | None, n_ctx_train: int) -> int:
    """The context: `asked`, else the trained one up to 4096. Raises SettingError above the trained one."""
    if asked is None:
        return min(n_ctx_train, _DEFAULT_N_CTX)
    n_ctx = _at_least_one("n_ctx", asked)
    if n_ctx > n_ctx_train:
        raise SettingError(
            f"n_ctx is {n_ctx}, but the model was trained with {n_ctx_train} positions and answers nonsense beyond; "
            f"wanted at most {n_ctx_train}"
        )
    return n_ctx


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise SettingError(f"{name} is {value!r}; wanted a whole number, at least 1")
    return int(value)


class LLM:
    """A loaded model: text or messages in, a stream of chunks out.

    One answer at a time: a second thread that asks for one waits for the end of the first. The tokens of the last
    conversation stay in the KV cache, and what the next prompt shares with them is not evaluated again (`reset` forgets
    them). Close it, or use it in a with-statement, to give memory and threads back.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        threads: ThreadChoice | None = None,
        seed: int | None = None,
        load_s: float | None = None,
        compile_s: float | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template  # the file's chat template, None when it has none
        self.threads = threads
        self.load_s = load_s  # seconds that loading took, without compiling
        self.compile_s = compile_s  # seconds that compiling or loading kernels took
        self._engine = engine
        self._session = Session(engine, tokenizer)
        self._gate = Gate()
        self._answers: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._answers_lock = threading.Lock()
        self._seeds = np.random.default_rng(seed)
        self._on_close = engine.close if on_close is None else on_close
        self._closed = False

    @property
    def config(self) -> ModelConfig:
        """What the file says about the model."""
        return self._engine.config

    @property
    def n_ctx(self) -> int:
        """The context in tokens: prompt and answer together."""
        return self._engine.n_ctx

    def generate(
        self,
        prompt: str | Sequence[int] | NDArray[np.integer[Any]],
        *,
        params: SamplingParams | None = None,
        **sampling: Unpack[SamplingArgs],
    ) -> Generation:
        """Continue a prompt; iterate over the result for its chunks.

        A string is encoded as the file asks (begin token, control tokens are read as such); a list of token ids is
        taken as it is. `sampling` are fields of SamplingParams (max_tokens, temperature, top_k, top_p, min_p, stop,
        seed, ...); the default temperature is 0.8 and without max_tokens the answer runs to its end or the context's.

        Raises SettingError and ContextOverflowError at once; NumericError and EngineError while chunks are read.
        """
        accepted = time.perf_counter()
        self._check_open()
        chosen = _params(params, sampling)
        if isinstance(prompt, str):
            return self._start(self.tokenizer.encode(prompt), chosen, accepted)
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)):
            raise SettingError(f"prompt is {type(prompt).__name__}; wanted a string or a list of token ids")
        return self._start(prompt, chosen, accepted)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        params: SamplingParams | None = None,
        **sampling: Unpack[SamplingArgs],
    ) -> Generation:
        """Answer a conversation: [{"role": "user", "content": "..."}, ...]; iterate over the result for its chunks.

        The file's chat template makes the prompt; text in a message that looks like a control token stays text.
        `sampling` as for `generate`. Raises what `generate` raises, and TemplateError when the file has no usable
        template.
        """
        accepted = time.perf_counter()
        self._check_open()
        chosen = _params(params, sampling)
        checked = check_messages(messages)
        if self.template is None:
            raise TemplateError(
                "this model file has no chat template: it is not made for chat; use plain completion instead "
                "(llm.generate(prompt), or `edgeinfer run` without --chat)"
            )
        return self._start(self.template.encode(checked), chosen, accepted)

    def logits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """The logits after each of the token ids, (len(ids), n_vocab) float32, from an empty context.

        Raises SettingError for an id outside the vocabulary, ContextOverflowError above n_ctx, MemoryLimitError.
        """
        self._check_open()
        n_vocab, n_ctx, n = self._engine.n_vocab, self.n_ctx, len(ids)
        if n:
            check_ids(ids, n_vocab)
        if n > n_ctx:
            raise ContextOverflowError(
                f"{n} token ids were given and the context holds {n_ctx}; give fewer or load with a larger n_ctx"
            )
        try:
            rows = np.empty((n, n_vocab), np.float32)
        except MemoryError:
            raise MemoryLimitError(
                f"the logits of {n} tokens are {n * n_vocab * 4} bytes, more than there is; give fewer ids"
            ) from None
        turn = object()
        self._gate.enter(turn)
        try:
            self._check_open()
            try:
                self._fill(rows, ids)
            except ContextOverflowError:
                if not self._session.ids:
                    raise
                self._session.reset()  # the pool of pages may hold no more than one full context
                self._fill(rows, ids)
        finally:
            self._gate.leave(turn)
        return rows

    def _fill(self, rows: NDArray[np.float32], ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Evaluate ids in a sequence of their own and write the logits after each to rows (len(ids), n_vocab)."""
        most = min(self._engine.n_batch, getattr(self._engine, "n_out", self._engine.n_batch))
        n_piece = min(most, max(1, _LOGITS_BYTES // (4 * self._engine.n_vocab)))
        seq = self._engine.kv.open()
        try:
            for first in range(0, len(ids), n_piece):
                piece = [int(token) for token in ids[first : first + n_piece]]
                logits = self._engine.forward(Batch.of(seq, piece, first, "all"), "prefill")
                for i in range(len(piece)):
                    rows[first + i] = logits.row(i)
        finally:
            self._engine.kv.close(seq)

    def reset(self) -> None:
        """Forget the last conversation, so that the next prompt is evaluated from its first token."""
        self._check_open()
        turn = object()
        self._gate.enter(turn)
        try:
            self._session.reset()
        finally:
            self._gate.leave(turn)

    def close(self) -> None:
        """End the answers that are being made and give memory and threads back. Closing twice is fine."""
        with self._answers_lock:
            if self._closed:
                return
            self._closed = True
            answers = list(self._answers)
        for answer in answers:
            answer.close()
        turn = object()
        self._gate.enter(turn)
        try:
            self._session.reset()
            self._on_close()
        finally:
            self._gate.leave(turn)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("this model was closed; load it again to use it")

    def _start(self, prompt: Any, params: SamplingParams, accepted: float) -> Generation:
        self._session.check(prompt)
        if params.seed is None:
            params = dataclasses.replace(params, seed=int(self._seeds.integers(1 << 32)))
        run = Run(accepted, n_prompt=len(prompt))
        chunks = self._session.answer(prompt, params, run)
        answer = Generation(chunks, run, self._gate, seed=params.seed, load_s=self.load_s, compile_s=self.compile_s)
        with self._answers_lock:
            self._check_open()
            self._answers.add(answer)
        return answer


def _params(params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
    """`params`, or the defaults, with `sampling` on top. Raises SettingError for an unknown name or a bad value."""
    known = [field.name for field in dataclasses.fields(SamplingParams)]
    for name in sampling:
        if name not in known:
            raise SettingError(f"there is no sampling parameter {name!r}; wanted one of {', '.join(known)}")
    return dataclasses.replace(params or SamplingParams(), **sampling)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as a list of dicts. Raises SettingError naming the message and the field that cannot be used."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise SettingError(f"messages is {type(messages).__name__}; wanted a list of {{'role': ..., 'content': ...}}")
    if not messages:
        raise SettingError("messages is empty; wanted at least one {'role': ..., 'content': ...}")
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise SettingError(f"messages[{i}] is {type(message).__name__}; wanted {{'role': ..., 'content': ...}}")
        for name in ("role", "content"):
            if name not in message:
                raise SettingError(f"messages[{i}] has no {name!r}; wanted {{'role': ..., 'content': ...}}")
            if not isinstance(message[name], str):
                raise SettingError(f"messages[{i}][{name!r}] is {type(message[name]).__name__}; wanted a string")
        if not message["role"]:
            raise SettingError(f"messages[{i}]['role'] is empty; wanted a role such as 'user'")
        checked.append(dict(message))
    return checked
