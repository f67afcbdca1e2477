"""TEXT -> TEXT: a loaded model that any number of threads and tasks may ask. Knows no file and no name.

Every call becomes a stream of the scheduler; what is returned is its reader's end.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .engine.types import Engine
from .errors import EngineError, SettingError, TemplateError
from .generate.params import SamplingParams, merged
from .generate.reasoning import Splitter, choose_reasoning
from .generate.tools import SamplerTools
from .model.messages import check_messages
from .model.tool_list import check_tools
from .profile.threads import ThreadChoice
from .schedule.admission import level_of
from .schedule.generation import AsyncGeneration, Generation
from .schedule.late import LateGeneration, SummaryWanted, no_summary
from .schedule.options import ScheduleSettings
from .schedule.overflow import Fitted, check_policy, fit, fit_ids, head
from .schedule.prefix_cache import PrefixCache
from .schedule.prompt import check_prompt
from .schedule.run import Run
from .schedule.scheduler import Scheduler
from .schedule.score import score
from .schedule.stream import Stream
from .schedule.summary import Summary
from .schedule.turns import Summarise

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .generate.params import SamplingArgs
    from .model.config import ModelConfig
    from .model.template import ChatTemplate
    from .model.tokenizer import Tokenizer

__all__ = ["LLM"]

_A = TypeVar("_A", Generation, AsyncGeneration)


class LLM:
    """A loaded model: text or messages in, a stream of chunks out.

    Any number of threads and tasks may ask at once: each call is a stream of its own, they are answered together, and
    each answer is the same as if it were made alone. What a prompt shares with an earlier one is not evaluated again
    (`reset` forgets them). Close it, or use it in a with-statement, to give memory and threads back.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        threads: ThreadChoice | None = None,
        schedule: ScheduleSettings | None = None,
        prefix: PrefixCache | None = None,
        overflow: str = "error",
        seed: int | None = None,
        load_s: float | None = None,
        compile_s: float | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        check_policy(overflow)
        self.tokenizer = tokenizer
        self.template = template  # the file's chat template, None when it has none
        self.threads = threads
        self.overflow = overflow
        self.load_s = load_s  # seconds that loading took, without compiling
        self.compile_s = compile_s  # seconds that compiling or loading kernels took
        self._engine = engine
        self._prefix = prefix
        self.scheduler = Scheduler(engine, schedule, prefix=prefix)
        self._answers: weakref.WeakSet[Generation | AsyncGeneration] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._tools = SamplerTools(tokenizer)
        self._seeds = np.random.default_rng(seed)
        self._summary = Summary(self._ask_briefly, engine.n_ctx)
        self._heads: set[int] = set()  # hashes of the system texts that the prefix cache was told of
        self._on_close = engine.close if on_close is None else on_close
        self._closed = False
        weakref.finalize(self, self.scheduler.abandon).atexit = False

    @property
    def config(self) -> ModelConfig:
        """What the file says about the model."""
        return self._engine.config

    @property
    def engine(self) -> Any:
        """The engine that computes, for measurements; its interface may change."""
        return self._engine

    @property
    def n_ctx(self) -> int:
        """The context in tokens: prompt and answer together."""
        return self._engine.n_ctx

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """The cache of prompts' beginnings; None for an engine whose KV cache has no pages to share."""
        return self._prefix

    def generate(
        self,
        prompt: str | Sequence[int] | NDArray[np.integer[Any]],
        *,
        params: SamplingParams | None = None,
        priority: str = "interactive",
        overflow: str | None = None,
        **sampling: Unpack[SamplingArgs],
    ) -> Generation:
        """Continue a prompt; iterate over the result for its chunks.

        A string is encoded as the file asks (begin token, control tokens are read as such); a list of token ids is
        taken as it is. `sampling` are fields of SamplingParams (max_tokens, temperature, top_k, top_p, min_p, stop,
        seed, json_schema, ...); the default temperature is 0.8 and without max_tokens the answer runs to its end or the
        context's. With json_schema, regex or grammar the answer is what they allow (a finish reason "length" says that
        it was cut before its end).
        priority is "voice", "interactive" or "background"; overflow "error" or "shift" (default: as loaded).

        Raises SettingError, MissingExtraError, ContextOverflowError and BusyError at once; NumericError and EngineError
        while chunks are read.
        """
        return self._complete(Generation, prompt, params, sampling, priority, overflow)

    def agenerate(
        self,
        prompt: str | Sequence[int] | NDArray[np.integer[Any]],
        *,
        params: SamplingParams | None = None,
        priority: str = "interactive",
        overflow: str | None = None,
        **sampling: Unpack[SamplingArgs],
    ) -> AsyncGeneration:
        """`generate` for `async for`."""
        return self._complete(AsyncGeneration, prompt, params, sampling, priority, overflow)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        params: SamplingParams | None = None,
        priority: str = "interactive",
        overflow: str | None = None,
        thinking: bool | None = None,
        think_budget: int | None = None,
        **sampling: Unpack[SamplingArgs],
    ) -> Generation:
        """Answer a conversation: [{"role": "user", "content": "..."}, ...]; iterate over the result for its chunks.

        The file's chat template makes the prompt; text in a message that looks like a control token stays text.
        tools are functions that the model may call, as in the OpenAI API: [{"type": "function", "function": {"name": ...,
        "description": ..., "parameters": {...}}}]. A call comes in the answer's text, as the model writes it; its result
        goes back as a message with the role "tool".
        `sampling` and priority as for `generate`; overflow may also be "drop-oldest-turns" or "summarise". A model that
        thinks aloud gives `reasoning` chunks first: thinking switches that on or off (None: as the template has it), and
        think_budget ends it after so many tokens. json_schema, regex and grammar hold for the answer, not for the thinking
        before it; a model that may think by itself, and whose mark for that is ordinary text and no token, does not
        think with them unless its template opens the thinking. Raises what `generate` raises, TemplateError when the
        file has no usable template, and SettingError for thinking=True where it knows none and for tools that it would
        not show the model.
        """
        return self._answer(Generation, messages, tools, params, sampling, priority, overflow, thinking, think_budget)

    def achat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        params: SamplingParams | None = None,
        priority: str = "interactive",
        overflow: str | None = None,
        thinking: bool | None = None,
        think_budget: int | None = None,
        **sampling: Unpack[SamplingArgs],
    ) -> AsyncGeneration:
        """`chat` for `async for`. Where overflow "summarise" needs a summary, it is written when the answer is first read."""
        of = (messages, tools, params, sampling, priority, overflow, thinking, think_budget)
        try:
            return self._answer(AsyncGeneration, *of, summarise=no_summary)
        except SummaryWanted:
            return LateGeneration(lambda: self._answer(AsyncGeneration, *of), self._answers.add)

    def check_sampling(self, params: SamplingParams | None = None, **sampling: Unpack[SamplingArgs]) -> SamplingParams:
        """The parameters that `generate` and `chat` would sample with, without asking anything.

        Raises what they raise for these: SettingError, a broken json_schema, regex or grammar included, and
        MissingExtraError.
        """
        chosen = merged(params, sampling)
        self._tools.grammar(chosen)
        return chosen

    def _complete(
        self,
        kind: type[_A],
        prompt: Any,
        params: SamplingParams | None,
        sampling: Any,
        priority: str,
        policy: str | None,
    ) -> _A:
        accepted = time.perf_counter()
        self._check_open()
        chosen = merged(params, sampling)
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt)
        elif isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)):
            raise SettingError(f"prompt is {type(prompt).__name__}; wanted a string or a list of token ids")
        if policy is None:
            policy = self.overflow if self.overflow == "shift" else "error"  # a plain prompt has no turns
        if policy == "error":
            return self._start(kind, prompt, chosen, priority, accepted, None)
        check_prompt(prompt, self._engine.n_vocab, len(prompt) + 1)
        n_head = int(len(prompt) > 0 and int(prompt[0]) == getattr(self.tokenizer, "bos_id", None))
        fitted = fit_ids(prompt, self.n_ctx, policy=policy, max_tokens=chosen.max_tokens, n_head=n_head)
        return self._start(kind, fitted.ids, chosen, priority, accepted, fitted)

    def _answer(
        self,
        kind: type[_A],
        messages: Any,
        tools: Any,
        params: SamplingParams | None,
        sampling: Any,
        priority: str,
        policy: str | None,
        thinking: bool | None,
        think_budget: int | None,
        summarise: Summarise | None = None,
    ) -> _A:
        accepted = time.perf_counter()
        self._check_open()
        chosen = merged(params, sampling)
        checked, tools = check_messages(messages), check_tools(tools)
        if self.template is None:
            raise TemplateError(
                "this model file has no chat template: it is not made for chat; use plain completion instead "
                "(llm.generate(prompt), or `edgeinfer run` without --chat)"
            )
        reasoning, policy = choose_reasoning(self.template.thinking, thinking, think_budget), policy or self.overflow
        encode = partial(self.template.encode, **reasoning.variables)
        if tools is not None:
            if not self.template.takes_tools:
                raise SettingError(
                    "tools are given, but this model's chat template has no place for them: it would never see them; "
                    "leave tools out, or use a model that was trained to call tools"
                )
            encode = partial(encode, tools=tools)
        asked = summarise or self._summary
        fitted = fit(checked, encode, self.n_ctx, policy=policy, max_tokens=chosen.max_tokens, summarise=asked)
        splitter = reasoning.splitter(fitted.ids)
        answer = self._start(kind, fitted.ids, chosen, priority, accepted, fitted, splitter)
        self._pin_head(checked, encode, fitted.ids, repr(tools) if tools else "")
        return answer

    def _ask_briefly(self, messages: list[dict[str, Any]], n_tokens: int) -> str:
        return self.chat(messages, temperature=0, max_tokens=n_tokens, overflow="error", thinking=False).text()

    def _pin_head(self, messages: list[dict[str, Any]], encode: Any, ids: list[int], tools: str = "") -> None:
        """Tell the prefix cache that a conversation's system text will come again, once each."""
        if self._prefix is None or messages[0]["role"] not in ("system", "developer"):
            return
        key = hash((messages[0]["content"], tools))
        if key not in self._heads:
            if len(self._heads) > 1000:
                self._heads.clear()
            self._heads.add(key)
            self._prefix.pin(ids[: head(messages, encode, ids)])

    def _start(
        self,
        kind: type[_A],
        prompt: Any,
        params: SamplingParams,
        priority: str,
        accepted: float,
        fitted: Fitted | None,
        splitter: Splitter | None = None,
    ) -> _A:
        level = level_of(priority)
        with self._lock:
            self._check_open()
            if params.seed is None:
                params = params.seeded(int(self._seeds.integers(1 << 32)))
        engine = self._engine
        stream = Stream(
            prompt, params, Run(accepted), self.tokenizer, n_vocab=engine.n_vocab, n_ctx=engine.n_ctx, level=level,
            fitted=fitted, splitter=splitter, tools=self._tools,
        )  # fmt: skip
        self.scheduler.submit(stream)
        answer = kind(
            stream, self.scheduler, seed=params.seed, load_s=self.load_s, compile_s=self.compile_s, owner=self
        )
        with self._lock:
            self._answers.add(answer)
        return answer

    def logits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """The logits after each of the token ids, (len(ids), n_vocab) float32, from an empty context.

        Raises SettingError for an id outside the vocabulary, ContextOverflowError above n_ctx, MemoryLimitError.
        """
        self._check_open()
        return score(ids, self.scheduler, n_vocab=self._engine.n_vocab, n_ctx=self.n_ctx, owner=self)

    def stats(self) -> dict[str, Any]:
        """Figures of the streams, the forwards, how the cores are shared and why, and the prefix cache."""
        return self.scheduler.stats()

    def reset(self) -> None:
        """Forget earlier prompts and answers, so that the next prompt is evaluated from its first token."""
        self._check_open()
        self.scheduler.reset()

    def close(self) -> None:
        """End the answers that are being made and give memory and threads back. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            answers = list(self._answers)
        for answer in answers:
            answer.cancel()
        self.scheduler.close()
        for answer in answers:
            answer.drop()
        if not self.scheduler.forked:
            if self._prefix is not None:
                self._prefix.close()
            self._on_close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("this model was closed; load it again to use it")
