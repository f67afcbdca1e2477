"""An asynchronous answer whose prompt takes a while to make: a summary of dropped turns is an answer by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import EngineError
from ..generate.chunk import Chunk
from .generation import AsyncGeneration

__all__ = ["LateGeneration", "SummaryWanted", "no_summary"]

_TAKEN = ("seed", "_stream", "_scheduler", "_once", "_owner", "_thoughts")


class SummaryWanted(Exception):
    """A summary would have to be written now."""


def no_summary(messages: Sequence[Mapping[str, Any]], n_tokens: int) -> str:
    """In the place of a model that writes summaries. Raises SummaryWanted."""
    raise SummaryWanted


class LateGeneration(AsyncGeneration):
    """An `AsyncGeneration` that `make` makes in a thread, from when it is first read on; errors are raised there too.

    The event loop goes on meanwhile. Until then it has no figures; `cancel()` counts from when the prompt is made.
    """

    def __init__(self, make: Callable[[], AsyncGeneration], made: Callable[[AsyncGeneration], None]) -> None:
        """`made` is told of this answer when it has begun."""
        self._make, self._made = make, made
        self._task: asyncio.Task[AsyncGeneration] | None = None
        self._reason: str | None = None
        self._cancelled = self._unread = False

    def __getattr__(self, name: str) -> Any:
        if name in _TAKEN:
            raise EngineError("the answer has not begun, its prompt is still being made; read a chunk of it first")
        raise AttributeError(name)

    @property
    def _begun(self) -> bool:
        return "_stream" in self.__dict__

    async def __anext__(self) -> Chunk:
        if not self._begun and self._reason is None:
            try:
                await self._begin()
            except BaseException as error:
                self._leave()
                if isinstance(error, Exception):
                    self._reason = "error"
                raise
        return await super().__anext__()

    async def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._make))
        made = await asyncio.shield(self._task)
        if not self._begun:
            self.__dict__.update({name: made.__dict__[name] for name in _TAKEN})
            made._reason = "cancelled"  # its stream is this one's now
            self._made(self)
            if self._cancelled:
                self.cancel()

    def cancel(self) -> None:
        """Ask the answer to end at once: its next chunk is its last. Never waits for the model; any thread may call it."""
        self._cancelled = True
        if self._begun:
            super().cancel()

    def _leave(self, wait: bool = False) -> None:
        if self._begun:
            super()._leave(wait)
        elif self._reason is None:
            self._reason = "cancelled"
            if self._task is not None:
                self._task.add_done_callback(_drop)


def _drop(task: asyncio.Task[AsyncGeneration]) -> None:
    """Let go of what nobody waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().drop()
