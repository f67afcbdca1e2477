"""`python -m tests.cli.echo ARGUMENTS`: the edgeinfer command with a model that needs no weights.

It answers "echo: " and the last message. What the message holds changes that: "forever" has no end, "slow" takes its
time for each token, "blank" answers nothing, "rude" sends control characters, "bad" gives logits that are not numbers,
"ponder" makes it think first, and "opinion" think until it is stopped.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import numpy as np

from edgeinfer.errors import TemplateError
from edgeinfer.load import LLM
from tests.fakes import EOS, N_VOCAB, ByteTokenizer, ScriptedEngine, ToyTemplate
from tests.thinkers import spelled

__all__ = ["echo_llm", "install"]

_ASK, _TELL = b"\nassistant: ", b"user: "


def _reply(message: bytes) -> bytes:
    if b"blank" in message:
        return b""
    if b"rude" in message:
        return b"a\x1b[2Jb\x07c"
    if b"opinion" in message:
        return b"<think>" + b"hmm. " * 40 + b"</think>echo"
    if b"ponder" in message:
        return b"<think>\nhm\x1b[2J, hm\n</think>\n\necho: " + message
    return b"echo: " + message


def _next(history: tuple[int, ...]) -> Any:
    data = bytes(token for token in history if token < 256)
    head, chat, answer = data.rpartition(_ASK)
    message = head.rpartition(_TELL)[2]
    if not chat:  # plain completion: the prompt ends where the first "|" of the answer begins
        message, _, answer = data.partition(b"|")
        if b"|" not in data:
            return ord("|")
    if b"slow" in message:
        time.sleep(0.02)
    if b"bad" in message and len(answer) == 3:
        return np.full(N_VOCAB, np.nan, np.float32)
    if b"forever" in message:
        return b"on and "[len(answer) % 7]
    reply = _reply(message)
    return reply[len(answer)] if len(answer) < len(reply) else EOS


def echo_llm(template: bool = True, n_ctx: int = 2000, **more: Any) -> LLM:
    """A model that echoes."""
    tokenizer = ByteTokenizer()
    toy: Any = ToyTemplate(tokenizer) if template else None
    if toy:
        toy.thinking = spelled(tokenizer=tokenizer)
    engine: Any = ScriptedEngine(_next, n_ctx=n_ctx)
    any_tokenizer: Any = tokenizer
    return LLM(engine, any_tokenizer, toy, seed=1, **more)


def install(patch: Any = setattr) -> list[dict[str, Any]]:
    """Put the echo in place of `edgeinfer.load`; return the list of what it is called with."""
    calls: list[dict[str, Any]] = []

    def load(name: str, *, n_ctx: int | None = None, progress: Any = None, **more: Any) -> LLM:
        calls.append({"name": name, "n_ctx": n_ctx, **more})
        if progress:
            progress("compiling kernels")
        if "broken" in name:
            raise TemplateError("the template\nis broken")
        return echo_llm("plain" not in name, n_ctx or 2000, overflow=more.get("overflow", "error"))

    patch(importlib.import_module("edgeinfer.load"), "load", load)
    return calls


if __name__ == "__main__":
    from edgeinfer.cli.main import main

    install()
    sys.exit(main())
