"""What a caller holds while an answer is made: an iterator over its chunks, plain or asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any

from ..errors import EngineError
from ..generate.chunk import Chunk
from ..metrics import Timings
from .overflow import Dropped
from .scheduler import Scheduler
from .stream import Stream

__all__ = ["AsyncGeneration", "Generation"]


class _Answer:
    """What both iterators share: the reader's end of a stream."""

    _rest: str | None = None  # what `text` gave

    def __init__(
        self,
        stream: Stream,
        scheduler: Scheduler,
        *,
        seed: int | None = None,
        load_s: float | None = None,
        compile_s: float | None = None,
        owner: object = None,
    ) -> None:
        self.seed = seed  # what the sampler's random generator was started with
        self._stream, self._scheduler = stream, scheduler
        self._once = (load_s, compile_s)
        self._owner = owner  # the model must not be closed for want of a reference while it answers
        self._reason: str | None = None  # how the answer ended, as far as it was read
        self._cancelled = False
        self._unread = False  # chunks were left out after a cancel
        self._thoughts: list[str] = []

    def _read(self, item: Chunk | BaseException | None) -> Chunk | None:
        """The chunk to hand out for an item of the queue; None when the item is left out. Raises the stream's error."""
        stream = self._stream
        if self._reason is not None:
            stream.out.put(None)  # for another thread that may be waiting, too
            raise StopIteration
        if isinstance(item, BaseException):
            self._finish("error")
            raise item
        if item is None:
            self._finish("cancelled")
            raise StopIteration
        if self._cancelled and item.finish_reason != "cancelled":
            self._unread = True
            if item.finish_reason is None:
                return None
            item = Chunk("", None, "cancelled")
        if item.finish_reason is not None:
            self._finish(item.finish_reason)
            if self._unread:
                item = Chunk("", None, "cancelled")  # the text it holds belongs behind what was left out
        if item.reasoning and item.text:
            self._thoughts.append(item.text)
        return item

    def _finish(self, reason: str) -> None:
        self._reason = reason
        self._stream.out.on_put = None
        self._stream.out.put(None)
        self._owner = None

    @property
    def finish_reason(self) -> str | None:
        """How the answer ended: "stop", "length", "cancelled", or "error" when it raised; None before its end is read."""
        return self._reason

    @property
    def stopped_by(self) -> int | str | None:
        """The end token or the stop string that ended the answer with "stop"."""
        return self._stream.run.stopped_by

    @property
    def reasoning(self) -> str:
        """What the model thought aloud before its answer, as far as it was read; "" when it did not."""
        return "".join(self._thoughts)

    @property
    def limited_by(self) -> str | None:
        """What ended the answer with "length": "max_tokens", as was asked for, or "context", which was full."""
        return self._stream.run.limited_by

    @property
    def n_prompt(self) -> int:
        """How many tokens the prompt has."""
        return self._stream.n_prompt

    @property
    def timings(self) -> Timings:
        """The figures of this answer so far."""
        return self._stream.run.timings(*self._once)

    @property
    def dropped(self) -> Dropped | None:
        """What was left out so that prompt and answer fit the context; None when nothing was."""
        return self._stream.run.dropped

    @property
    def divergence(self) -> Any:
        """Where the prompt left a cached one late (the token, and what either has there); None when it did not."""
        return self._stream.run.divergence

    def cancel(self) -> None:
        """Ask the answer to end at once: its next chunk is its last. Never waits for the model; any thread may call it."""
        self._cancelled = True
        self._scheduler.cancel(self._stream)

    def drop(self) -> None:
        """End the answer and let go of it, without waiting for the model."""
        self._leave()

    def _leave(self, wait: bool = False) -> None:
        """End the answer; with `wait`, do not return before the model has let go of it: a step, at most a chunk."""
        if self._reason is not None:
            return
        scheduler, out = self._scheduler, self._stream.out
        self._reason = "cancelled"
        out.on_put = None
        scheduler.cancel(self._stream)
        if wait and not scheduler.here and not scheduler.forked:
            while (item := out.get()) is not None and not isinstance(item, BaseException) and not item.finish_reason:
                pass
        out.put(None)  # for another thread that waits for a chunk
        self._owner = None

    def __del__(self) -> None:
        if getattr(self, "_reason", "") is None:
            self._leave()


class Generation(_Answer, Iterator[Chunk]):
    """An answer in the making: iterate over it for its chunks.

    The answer is made whether or not it is read, and waits for its reader in a queue. `cancel()` may be called from any
    thread: the answer then ends with a chunk whose finish reason is "cancelled", and chunks that were not read by then
    are left out. `close()`, leaving a with-statement, or dropping the iterator ends it at once and without a chunk.
    The figures are in `timings`, complete when the answer has ended.

    >>> with llm.generate("Once upon a time", max_tokens=20) as answer:  # doctest: +SKIP
    ...     for chunk in answer:
    ...         print(chunk.text, end="", flush=True)
    >>> answer.finish_reason, answer.timings.decode_tok_s  # doctest: +SKIP
    ('length', 301.5)
    """

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Chunk:
        if self._reason is not None:
            raise StopIteration
        if self._scheduler.forked:
            raise EngineError("this process was forked from the one that makes this answer; ask again there")
        chunk = None
        try:
            while chunk is None:
                chunk = self._read(self._stream.out.get())
        except BaseException as error:
            if not isinstance(error, StopIteration):  # Ctrl-C while it waits, or the answer's own error
                self._leave()
            raise
        return chunk

    def text(self) -> str:
        """Read the rest of the answer and return its text in one piece, without the thinking (see `reasoning`).

        Asked again it returns the same.
        """
        if self._rest is None:
            self._rest = "".join(chunk.text for chunk in self if not chunk.reasoning)
        return self._rest

    def close(self) -> None:
        """End the answer now. Waits for the step that the model is making, at most; any thread may call it."""
        self._leave(wait=True)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncGeneration(_Answer, AsyncIterator[Chunk]):
    """A `Generation` for `async for`; waiting for a chunk does not block the event loop.

    A task that is cancelled while it waits ends the answer, as it would end an asynchronous generator.

    >>> async with llm.agenerate("Once upon a time", max_tokens=20) as answer:  # doctest: +SKIP
    ...     async for chunk in answer:
    ...         print(chunk.text, end="", flush=True)
    """

    _ready: asyncio.Event | None = None

    def __aiter__(self) -> AsyncGeneration:
        return self

    async def __anext__(self) -> Chunk:
        if self._reason is not None:
            raise StopAsyncIteration
        if self._scheduler.forked:
            raise EngineError("this process was forked from the one that makes this answer; ask again there")
        try:
            chunk = None
            while chunk is None:
                chunk = self._read(await self._item())
            return chunk
        except StopIteration:
            raise StopAsyncIteration from None
        except BaseException:
            self._leave()
            raise

    async def _item(self) -> Chunk | BaseException | None:
        out = self._stream.out
        if self._ready is None:
            loop, ready = asyncio.get_running_loop(), asyncio.Event()
            self._ready = ready

            def tell() -> None:
                try:
                    loop.call_soon_threadsafe(ready.set)
                except RuntimeError:
                    pass  # the loop is closed: nobody reads any more

            out.on_put = tell
        while True:
            self._ready.clear()
            found, item = out.poll()
            if found:
                return item
            await self._ready.wait()

    async def text(self) -> str:
        """Read the rest of the answer and return its text in one piece, without the thinking (see `reasoning`).

        Asked again it returns the same.
        """
        if self._rest is None:
            self._rest = "".join([chunk.text async for chunk in self if not chunk.reasoning])
        return self._rest

    async def aclose(self) -> None:
        """End the answer and let go of it; does not wait for the model."""
        self._leave()

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
