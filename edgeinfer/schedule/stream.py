"""One request on its way through the engine: its tokens, and what turns logits into text.

    waiting -> reading (its prompt is evaluated in chunks) -> writing (a token a step) -> over

A stream belongs to the scheduler while it runs; its reader only takes chunks out of `out` and may set `cancelled`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..engine.types import Logits
from ..generate.answer_grammar import AnswerGrammar
from ..generate.chunk import Chunk
from ..generate.params import SamplingParams
from ..generate.reasoning import Splitter
from ..generate.sampler import Sampler
from ..generate.stop import StopStrings
from ..generate.tools import SamplerTools
from .overflow import Fitted
from .prompt import check_prompt
from .run import Outbox, Run

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Stream", "TextStream", "Vocabulary"]


class TextStream(Protocol):
    """Turns the ids of one answer into text, complete characters only."""

    def push(self, token_id: int, /) -> str:
        """Take the next id; return the text that became complete."""

    def flush(self) -> str:
        """The ids have ended: return what is left."""


class Vocabulary(Protocol):
    """What a stream needs of a tokenizer."""

    @property
    def n_vocab(self) -> int:
        """How many ids are tokens."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end an answer."""

    def stream(self, after: int | None = None) -> TextStream:
        """A new detokenizer for text behind the token `after`."""


class Stream:
    """A prompt and its answer. Raises SettingError and ContextOverflowError for a prompt that cannot be answered."""

    def __init__(
        self,
        prompt: Sequence[int] | NDArray[np.integer[Any]],
        params: SamplingParams,
        run: Run,
        vocabulary: Vocabulary,
        *,
        n_vocab: int,
        n_ctx: int,
        level: int = 1,
        fitted: Fitted | None = None,
        splitter: Splitter | None = None,
        tools: SamplerTools | None = None,
    ) -> None:
        """`fitted` says how far the answer goes, and how it goes on when the context is full; else it ends there.

        `splitter` tells thinking from the answer; stop strings are looked for in the answer only. `tools` are what
        samplers and grammars need of the vocabulary. A grammar holds for the answer, not for the thinking before it.
        """
        check_prompt(prompt, n_vocab, n_ctx)
        self.tokens = [int(token) for token in prompt]  # prompt and answer so far, all of which the sequence is to hold
        self.n_prompt = run.n_prompt = len(self.tokens)
        room = n_ctx - self.n_prompt
        self.n_most = room if params.max_tokens is None else min(room, params.max_tokens)  # tokens of the answer
        self._fitted = fitted
        if fitted is not None:
            self.n_most, run.dropped = fitted.n_most, fitted.dropped
        self.params, self.run, self.level, self.n_ctx = params, run, level, n_ctx
        end_ids = vocabulary.end_ids
        self._end_ids = frozenset() if params.ignore_eos else end_ids
        grammar = None if tools is None else tools.grammar(params)
        if grammar is not None and splitter is not None and tools is not None:
            self._waking = AnswerGrammar(grammar, splitter, end_ids, tools.piece)
        self._sampler = Sampler(
            params,
            n_vocab=n_vocab,
            n_tokens=vocabulary.n_vocab,
            banned=[token for token in end_ids if token < n_vocab] if params.ignore_eos else (),
            history=self.tokens,
            breakers=None if tools is None else tools.breakers(params),
            grammar=self._waking or grammar,
        )
        self._text = vocabulary.stream(after=self.tokens[-1])
        self._stops = StopStrings(params.stop)
        self._splitter = splitter
        self._thoughts = ""  # thinking that is still to be handed out
        self._start()

    def _start(self) -> None:
        self.out = Outbox()
        self.answer: list[int] = []
        self._n_fixed = self.n_prompt  # tokens before those that are evaluated one by one
        self.moved = False  # its context was full: it goes on from other tokens, in another sequence
        self.place = (0.0, 0)  # in the line of those who wait, and among those whose prompts are read
        self.session: Session | None = None  # its sequence, while it has one
        self.reserved = 0  # pages
        self.held_since: float | None = None  # clock reading since which its last rows wait for company
        self.was_held = False  # or was looked at for that: once only
        self.in_flight = False  # a running forward holds some of its tokens
        self.cancelled = False  # set from anywhere; looked at between forwards
        self.doom: BaseException | None = None  # an error that ends it as soon as it is at rest
        self.evicted = False  # is to give its pages to a stream of higher priority
        self.over = False

    _splitter: Splitter | None = None
    _thoughts = ""
    _waking: AnswerGrammar | None = None  # a grammar for the answer behind the thinking
    reuses = True  # takes what the cache has of its prompt, and leaves it what it made
    wants_all_rows = False

    @property
    def n_held(self) -> int:
        """How many of its tokens the sequence holds."""
        return 0 if self.session is None else len(self.session.ids)

    @property
    def n_todo(self) -> int:
        """How many of its tokens are still to be evaluated."""
        return len(self.tokens) - self.n_held

    @property
    def writes(self) -> bool:
        """Whether all that is left to evaluate is the last token of its answer."""
        return self.n_todo == 1 and len(self.tokens) > self._n_fixed

    @property
    def n_longest(self) -> int:
        """How many tokens its sequence may come to hold."""
        return min(self.n_ctx, len(self.tokens) + self.n_most - len(self.answer))

    def evaluated(self, logits: Logits, row: int, n: int, started: float, seconds: float) -> Chunk | None:
        """Take note that n more tokens were evaluated, whose rows of logits begin at `row`; return the chunk they gave.

        The forward began at the clock reading `started` and took `seconds`. Raises NumericError naming the step.
        """
        run = self.run
        step = n == 1 and len(self.tokens) > self._n_fixed  # of the answer, not part of a prompt
        if not step:
            run.prefill_s += seconds
            run.n_prefill += n
        if self.n_todo:
            return None
        n_out = len(run.times)
        chunk = self._next(logits, row)
        if step and len(run.times) > n_out:
            run.decode_s += run.times[-1] - started
        return chunk

    def _next(self, logits: Logits, row: int) -> Chunk:
        """Choose the next token from a row of logits and say what can be shown of it."""
        run, stops = self.run, self._stops
        forced = None if self._splitter is None else self._splitter.force()
        token = self._sampler.sample(logits, row, len(run.times)) if forced is None else forced
        if self._splitter is not None and self._waking is not None and forced is None and self._waking.refuses(token):
            self._splitter.close()
            closing = self._splitter.force()
            token = token if closing is None else closing
        if token in self._end_ids:
            run.stopped_by = token
            return self._last(self._rest() + stops.flush(), None, "stop")
        run.times.append(run.clock())
        self._sampler.accept(token)
        self.tokens.append(token)
        self.answer.append(token)
        shown = self._read(token, self._text.push(token))
        whole = self._sampler.complete
        full = whole or len(self.answer) >= self.n_most or (len(self.tokens) >= self.n_ctx and not self._go_on())
        if stops.matched is None and full:
            shown += self._rest()  # half a character is shown as such, and may end a stop string
        if stops.matched is not None:
            run.stopped_by = stops.matched
            return self._last(shown, token, "stop")
        if full:
            if not whole:
                run.limited_by = "max_tokens" if len(self.answer) == self.params.max_tokens else "context"
            return self._last(shown + stops.flush(), token, "stop" if whole else "length")
        chunk = self._chunk(shown, token)
        if chunk.text and run.shown is None:
            run.shown = run.clock()
        return chunk

    def _read(self, token: int | None, text: str) -> str:
        """What of the answer became certain with a token's text; thinking is put aside for the next chunk."""
        if self._splitter is not None:
            thoughts, text = self._splitter.push(token, text)
            self._thoughts += thoughts
            if self._waking is not None and token is not None:
                self._waking.look(text)
        return self._stops.push(text)

    def _rest(self) -> str:
        """What of the answer was held back, now that no token follows."""
        shown = self._read(None, self._text.flush())
        if self._splitter is not None:
            thoughts, text = self._splitter.flush()
            self._thoughts += thoughts
            shown += self._stops.push(text)
        return shown

    def _chunk(self, shown: str, token: int | None, reason: str | None = None) -> Chunk:
        """The chunk of a token. Thinking that came with the answer, or with the end, goes out before, by itself."""
        thoughts, self._thoughts = self._thoughts, ""
        if thoughts and (shown or reason):
            self.out.put(Chunk(thoughts, None, reasoning=True))
        elif thoughts:
            return Chunk(thoughts, token, reasoning=True)
        thinks = self._splitter is not None and self._splitter.thinking and not shown and reason is None
        return Chunk(shown, token, reason, reasoning=thinks)

    def _go_on(self) -> bool:
        """The context is full: make room by the request's policy; False when that is to end there."""
        shift = self._fitted.shift if self._fitted is not None else None
        fitted = shift(self.answer) if shift is not None else None
        if fitted is None or not len(self.answer) < fitted.n_most:
            return False
        self._fitted, self.run.dropped = fitted, fitted.dropped
        self.tokens, self._n_fixed, self.moved = list(fitted.ids), len(fitted.ids) - 1, True
        return True

    def _last(self, text: str, token: int | None, reason: str) -> Chunk:
        """End the stream; its last chunk."""
        self._end(reason)
        if (text or self._thoughts) and self.run.shown is None:
            self.run.shown = self.run.ended
        return self._chunk(text, token, reason)

    def _end(self, reason: str) -> None:
        self.over = True
        self.run.ended = self.run.clock()
        self.run.finish_reason = reason

    def cancel_chunk(self) -> Chunk:
        """End the stream as cancelled; the chunk that says so, with the text that was held back."""
        return self._last(self._rest() + self._stops.flush(), None, "cancelled")

    def fail(self, error: BaseException) -> BaseException:
        """End the stream with an error; the error that its reader is to get."""
        if not self.over:
            self._end("error")
        return _twin(error)


def _twin(error: BaseException) -> BaseException:
    """A copy of an error for one more reader, with the error itself as its cause."""
    try:
        twin = copy.copy(error)
    except Exception:
        return error
    if type(twin) is not type(error):
        return error
    twin.__cause__ = error
    return twin
