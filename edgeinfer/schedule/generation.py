"""The iterator that a caller holds while an answer is made, and the gate that lets in one answer at a time."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from types import TracebackType

from ..errors import EngineError
from ..generate.chunk import Chunk
from ..metrics import Timings
from .session import Run

__all__ = ["Gate", "Generation"]


class Gate:
    """Lets one answer at a time through; others wait for its end.

    A thread that stopped reading one answer half-way and starts another would wait for itself: when nobody else moves
    the first answer on for PATIENCE_S, that is refused.
    """

    PATIENCE_S = 1.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: object | None = None
        self._thread = 0  # the thread that last moved the owner on
        self._inside = False  # whether it is at it now
        self._moves = 0

    def enter(self, owner: object, run: Run | None = None) -> bool:
        """Wait for the turn of `owner` (an object of its own) and take it; False when its run was cancelled meanwhile.

        Raises EngineError when only this very thread could end the answer that is in the way.
        """
        me = threading.get_ident()
        with self._changed:
            while self._owner is not None and self._owner is not owner:
                if run is not None and run.cancelled:
                    return False
                mine, moves = self._thread == me, self._moves
                if mine and (self._inside or not self._changed.wait(self.PATIENCE_S)) and moves == self._moves:
                    raise EngineError(
                        "this thread is in the middle of another answer of the same model; read it to its end or "
                        "close() it first, or load the model twice"
                    )
                if not mine:
                    self._changed.wait()
            self._owner, self._thread, self._inside = owner, me, True
            self._moves += 1
            self._changed.notify_all()
            return True

    def pause(self, owner: object) -> None:
        """The owner keeps its turn but is not at work: its reader looks at a chunk."""
        with self._changed:
            if self._owner is owner:
                self._inside = False

    def leave(self, owner: object) -> None:
        """Give the turn back; nothing happens if it is not the owner's."""
        with self._changed:
            if self._owner is owner:
                self._owner, self._inside = None, False
                self._changed.notify_all()

    def wake(self) -> None:
        """Make those who wait look again whether they were cancelled."""
        with self._changed:
            self._changed.notify_all()


class Generation(Iterator[Chunk]):
    """An answer in the making: iterate over it for its chunks.

    Nothing runs before the first chunk is asked for. `cancel()` may be called from any thread: the answer then ends
    with a chunk whose finish reason is "cancelled". `close()`, leaving a with-statement, or dropping the iterator ends
    it at once and without a chunk. The figures are in `timings`, complete when the answer has ended.

    >>> with llm.generate("Once upon a time", max_tokens=20) as answer:  # doctest: +SKIP
    ...     for chunk in answer:
    ...         print(chunk.text, end="", flush=True)
    >>> answer.finish_reason, answer.timings.decode_tok_s  # doctest: +SKIP
    ('length', 301.5)
    """

    def __init__(
        self,
        chunks: Generator[Chunk, None, None],
        run: Run,
        gate: Gate,
        *,
        seed: int | None = None,
        load_s: float | None = None,
        compile_s: float | None = None,
    ) -> None:
        self.seed = seed  # what the sampler's random generator was started with
        self._chunks = chunks
        self._run = run
        self._gate = gate
        self._token = object()
        self._step = threading.RLock()  # one thread at a time moves the answer on
        self._done = False
        self._at_work = False
        self._once = (load_s, compile_s)

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Chunk:
        with self._step:
            if self._done:
                raise StopIteration
            try:
                if not self._gate.enter(self._token, self._run):
                    self._end("cancelled")
                    return Chunk("", None, "cancelled")
                self._at_work = True
                try:
                    chunk = next(self._chunks)
                finally:
                    self._at_work = False
            except BaseException as error:
                self._end("error" if isinstance(error, Exception) else "cancelled")
                raise
            if chunk.finish_reason is not None:
                self._end(chunk.finish_reason)
            else:
                self._gate.pause(self._token)
            return chunk

    def _end(self, reason: str) -> None:
        if self._done or self._at_work:
            return  # at work: close() came from inside the answer's own step (a signal handler), which sees `cancelled`
        self._done = True
        run = self._run
        try:
            self._chunks.close()
        finally:
            if run.finish_reason is None:
                run.finish_reason = reason
            if run.ended is None:
                run.ended = run.clock()
            self._gate.leave(self._token)

    @property
    def finish_reason(self) -> str | None:
        """How the answer ended: "stop", "length", "cancelled", or "error" when it raised; None before its end."""
        return self._run.finish_reason

    @property
    def stopped_by(self) -> int | str | None:
        """The end token or the stop string that ended the answer with "stop"."""
        return self._run.stopped_by

    @property
    def n_prompt(self) -> int:
        """How many tokens the prompt has."""
        return self._run.n_prompt

    @property
    def timings(self) -> Timings:
        """The figures of this answer so far."""
        return self._run.timings(*self._once)

    def text(self) -> str:
        """Read the rest of the answer and return its text in one piece."""
        return "".join(chunk.text for chunk in self)

    def cancel(self) -> None:
        """Ask the answer to end at the next token or piece of the prompt. Never waits; any thread may call it."""
        self._run.cancelled = True
        self._gate.wake()

    def close(self) -> None:
        """End the answer now and release what it holds. A step that another thread is making is waited for."""
        self._run.cancelled = True
        self._gate.wake()
        if self._done:
            return
        with self._step:
            self._end("cancelled")

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.close()
