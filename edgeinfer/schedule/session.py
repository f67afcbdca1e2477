"""One conversation over an engine: which tokens its sequence holds, and the loop that adds an answer to them.

    prompt ids -> keep the common prefix -> prefill in pieces of n_batch -> sample, show, decode, sample, ... -> end

Whatever ends an answer (limit, stop, cancel, a reader that walks away, an error in mid-forward), the session afterwards
knows exactly which tokens the KV cache holds. Sees an engine and a tokenizer's stream; knows no file and no template.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..engine.types import Batch, Engine, Logits
from ..errors import ContextOverflowError, EdgeInferError, SettingError
from ..generate.chunk import Chunk
from ..generate.params import SamplingParams
from ..generate.sampler import Sampler
from ..generate.stop import StopStrings
from ..metrics import Timings

__all__ = ["Run", "Session", "TextStream", "Vocabulary"]


class TextStream(Protocol):
    """Turns the ids of one answer into text, complete characters only."""

    def push(self, token_id: int, /) -> str:
        """Take the next id; return the text that became complete."""

    def flush(self) -> str:
        """The ids have ended: return what is left."""


class Vocabulary(Protocol):
    """What a session needs of a tokenizer."""

    @property
    def n_vocab(self) -> int:
        """How many ids are tokens."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end an answer."""

    def stream(self, after: int | None = None) -> TextStream:
        """A new detokenizer for text behind the token `after`."""


@dataclass
class Run:
    """What one answer measures and leaves behind; filled while it runs."""

    accepted: float  # clock reading when the request came in
    clock: Callable[[], float] = time.perf_counter
    cancelled: bool = False  # set from anywhere; looked at between steps and between pieces of the prompt
    finish_reason: str | None = None
    stopped_by: int | str | None = None  # the end token or the stop string that ended it
    n_prompt: int = 0
    n_reused: int = 0
    n_prefill: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    shown: float | None = None  # clock reading of the first text out
    ended: float | None = None
    times: list[float] = field(default_factory=list)  # clock reading of each token of the answer

    def timings(self, load_s: float | None = None, compile_s: float | None = None) -> Timings:
        """The figures so far."""
        n_out = len(self.times)
        return Timings(
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_prefill=self.n_prefill,
            n_out=n_out,
            ttft_s=None if self.shown is None else self.shown - self.accepted,
            prefill_s=self.prefill_s if self.n_prefill else None,
            decode_s=self.decode_s if n_out > 1 else None,
            t_first=self.times[0] if self.times else None,
            t_last=self.times[-1] if self.times else None,
            total_s=None if self.ended is None else self.ended - self.accepted,
            itl_s=tuple(late - early for early, late in itertools.pairwise(self.times)),
            load_s=load_s,
            compile_s=compile_s,
        )


class Session:
    """The token history of one conversation and its sequence in the engine's KV cache. One answer at a time."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._seq: int | None = None
        self._ids: list[int] = []

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens that the KV cache holds, in order."""
        return tuple(self._ids)

    def check(self, prompt: Sequence[int]) -> None:
        """Raise what would keep a prompt from being answered: no token, an unknown id, no room for one more token."""
        n_ctx = self._engine.n_ctx
        if not len(prompt):
            raise SettingError("the prompt has no token; wanted at least one")
        check_ids(prompt, self._engine.n_vocab)
        if len(prompt) >= n_ctx:
            raise ContextOverflowError(
                f"the prompt is {len(prompt)} tokens and the context holds {n_ctx}, of which at least one is for the "
                "answer; shorten the prompt or load the model with a larger n_ctx"
            )

    def answer(self, prompt: Sequence[int], params: SamplingParams, run: Run) -> Generator[Chunk, None, None]:
        """Evaluate a prompt and yield its answer, a chunk a token; the last chunk has the finish reason.

        The prefix that the KV cache already holds is not evaluated again, but at least one token always is. The answer
        ends at n_ctx tokens in total. Raises what `check` raises before anything runs; NumericError naming the step;
        EngineError. Closing the generator is safe at any point.
        """
        self.check(prompt)
        prompt = [int(token) for token in prompt]
        run.n_prompt = len(prompt)
        room = self._engine.n_ctx - len(prompt)
        n_most = room if params.max_tokens is None else min(room, params.max_tokens)
        end_ids = self._vocabulary.end_ids
        sampler = Sampler(
            params,
            n_vocab=self._engine.n_vocab,
            n_tokens=self._vocabulary.n_vocab,
            banned=[token for token in end_ids if token < self._engine.n_vocab] if params.ignore_eos else (),
            history=prompt,
        )
        text = self._vocabulary.stream(after=prompt[-1])
        stops = StopStrings(params.stop)
        try:
            logits = self._prefill(prompt, run)
            if logits is None:
                yield self._last(Chunk("", None, "cancelled"), run)
                return
            started = run.clock()
            token = sampler.sample(logits, 0, 0)
            while True:
                if token in end_ids and not params.ignore_eos:
                    run.stopped_by = token
                    yield self._last(Chunk(stops.push(text.flush()) + stops.flush(), None, "stop"), run)
                    return
                now = run.clock()
                if run.times:
                    run.decode_s += now - started
                run.times.append(now)
                sampler.accept(token)
                shown = stops.push(text.push(token))
                if stops.matched is None and len(run.times) == n_most:
                    shown += stops.push(text.flush())  # half a character is shown as such, and may end a stop string
                if stops.matched is not None:
                    run.stopped_by = stops.matched
                    yield self._last(Chunk(shown, token, "stop"), run)
                    return
                if len(run.times) == n_most:
                    yield self._last(Chunk(shown + stops.flush(), token, "length"), run)
                    return
                if shown and run.shown is None:
                    run.shown = run.clock()
                yield Chunk(shown, token)
                if run.cancelled:
                    yield self._last(Chunk(stops.push(text.flush()) + stops.flush(), None, "cancelled"), run)
                    return
                started = run.clock()
                logits = self._forward([token], "last", "decode")
                token = sampler.sample(logits, 0, len(run.times))
        except GeneratorExit:
            run.finish_reason = run.finish_reason or "cancelled"
            raise
        except BaseException:
            self._settle()
            raise
        finally:
            if run.ended is None:
                run.ended = run.clock()

    def _last(self, chunk: Chunk, run: Run) -> Chunk:
        run.ended = run.clock()
        run.finish_reason = chunk.finish_reason
        if chunk.text and run.shown is None:
            run.shown = run.ended
        return chunk

    def _prefill(self, prompt: list[int], run: Run) -> Logits | None:
        """Bring the sequence to hold the prompt; return its last row of logits, None when cancelled on the way."""
        run.n_reused = self._keep(prompt)
        logits = None
        n_batch = self._engine.n_batch
        for first in range(run.n_reused, len(prompt), n_batch):
            if run.cancelled:
                return None
            piece = prompt[first : first + n_batch]
            started = run.clock()
            logits = self._forward(piece, "last" if first + n_batch >= len(prompt) else "none", "prefill")
            run.prefill_s += run.clock() - started
            run.n_prefill += len(piece)
        return None if run.cancelled else logits

    def _keep(self, prompt: list[int]) -> int:
        """Shorten the sequence to what it shares with the prompt, less the last token; return how many are kept."""
        if self._seq is None:
            self._seq = self._engine.kv.open()
        most = min(len(self._ids), len(prompt) - 1)
        n = next((i for i in range(most) if self._ids[i] != prompt[i]), most)
        self._rewind(n)
        return len(self._ids)

    def _rewind(self, n: int) -> None:
        """Shorten the sequence to n tokens, or to fewer where the cache cannot do that exactly."""
        if self._seq is None:
            self._ids = []
            return
        held = self._engine.kv.n_past(self._seq)
        del self._ids[min(n, self._engine.kv.rewind(self._seq, n) if held > n else held) :]

    def _forward(self, ids: list[int], wants: str, lane: str) -> Logits:
        """Evaluate tokens behind those that the sequence holds."""
        if self._seq is None:  # pragma: no cover - _keep opens it
            raise SettingError("the session holds no sequence")
        logits = self._engine.forward(Batch.of(self._seq, ids, len(self._ids), wants), lane)
        self._ids.extend(ids)
        return logits

    def _settle(self) -> None:
        """After an error: make the cache hold exactly what `ids` says, or nothing."""
        try:
            self._rewind(len(self._ids))
        except Exception:
            # the engine itself may be gone; a sequence that cannot be mended is given up
            self.reset()

    def reset(self) -> None:
        """Forget the conversation and give its pages back."""
        seq, self._seq, self._ids = self._seq, None, []
        if seq is not None:
            try:
                self._engine.kv.close(seq)
            except EdgeInferError:
                pass  # a closed engine has already given everything back


def check_ids(ids: Sequence[int] | NDArray[np.integer[Any]], n_vocab: int) -> None:
    """Raise SettingError naming the first of ids that is no token of a vocabulary."""
    array = np.asarray(ids)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise SettingError(
            f"token ids are an array of {array.dtype} with {array.ndim} dimensions; wanted a list of ints"
        )
    bad = np.flatnonzero((array < 0) | (array >= n_vocab))
    if len(bad):
        place = int(bad[0])
        raise SettingError(
            f"token id {int(array[place])} at position {place} is outside the vocabulary (0 to {n_vocab - 1})"
        )
