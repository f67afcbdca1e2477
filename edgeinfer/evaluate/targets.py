"""What the load generator can drive: a model loaded in this process, or a llama.cpp server over HTTP.

Both are asked for the same token ids and the most likely token each time, past end tokens, and both hand tokens out as
they come. The HTTP side parses each event and does no more, to cost as little as it can of the cores it shares.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from ..errors import BusyError, EngineError, SettingError
from ..generate.chunk import Chunk
from ..metrics import Timings
from .workload import Request

__all__ = ["HttpTarget", "LLMTarget", "word_ids"]


class Answer(Protocol):
    """An answer in the making, as `LLM.generate` returns it."""

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks."""

    def cancel(self) -> None:
        """Ask for the end."""

    @property
    def timings(self) -> Timings:
        """The figures so far."""


class _LLMStream:
    """A request that a loaded model works on."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[int]:
        return (chunk.token for chunk in self._answer if chunk.token is not None)

    def cancel(self) -> None:
        self._answer.cancel()

    def figures(self) -> dict[str, float | None]:
        timings = self._answer.timings
        return {
            "wait_s": timings.queue_s,
            "prefill_s": timings.prefill_s,
            "decode_s": timings.decode_s,
            "n_reused": timings.n_reused,
        }


class LLMTarget:
    """A loaded model, asked through its `generate` from as many threads as there are requests in flight."""

    def __init__(self, generate: Callable[..., Answer], name: str = "edgeinfer") -> None:
        self.name = name
        self._generate = generate

    def start(self, request: Request) -> _LLMStream:
        """Begin an answer."""
        return _LLMStream(
            self._generate(list(request.prompt), max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
        )


class _HttpStream:
    """A request that a llama.cpp server works on; a cancel closes the connection, which the server notices."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        sock: socket.socket,
        n_wanted: int,
    ) -> None:
        self._connection, self._response, self._n_wanted, self._socket = connection, response, n_wanted, sock
        self._last: dict[str, Any] = {}
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[int]:
        n_out = 0
        try:
            for event in self._events():
                if event.get("stop"):
                    self._last = event
                tokens = event.get("tokens") or ([-1] if event.get("content") else [])
                n_out += len(tokens)
                yield from tokens
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            # What a connection raises that another thread has shut down, or that broke.
            if not self._cancelled.is_set():
                raise EngineError(f"the connection to the server broke: {error}") from error
        finally:
            self._connection.close()
        if not self._last and not self._cancelled.is_set():
            raise EngineError("the server ended the connection before the answer was complete")
        # Tokens that end in half a character are sent with no event of their own; they must not go uncounted.
        missing = min(int(self._last.get("tokens_predicted", 0)), self._n_wanted) - n_out
        yield from [-1] * missing

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._response:
            if line.startswith(b"data: {"):
                event: dict[str, Any] = json.loads(line[6:])
                yield event
            elif line.startswith(b"error:"):
                raise EngineError(f"the server answered: {line[6:].decode('utf-8', 'replace').strip()}")

    def cancel(self) -> None:
        self._cancelled.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def figures(self) -> dict[str, float | None]:
        timings: dict[str, float] = self._last.get("timings", {})
        if not timings:
            return {}
        return {
            "prefill_s": timings.get("prompt_ms", 0.0) / 1e3 or None,
            "decode_s": timings.get("predicted_ms", 0.0) / 1e3 or None,
            "n_reused": timings.get("cache_n"),
        }


class HttpTarget:
    """A llama.cpp server at an address such as http://127.0.0.1:8080, streamed from its /completion endpoint."""

    # The cheapest greedy sampling there is: without a chain of samplers, and without reuse of earlier prompts.
    OPTIONS: ClassVar[dict[str, Any]] = {
        "stream": True,
        "temperature": 0.0,
        "top_k": 1,
        "samplers": ["top_k"],
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }

    def __init__(self, address: str, name: str = "llama.cpp server", timeout_s: float = 600.0) -> None:
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname:
            raise SettingError(f"{address!r} is not the address of a server; wanted one such as http://127.0.0.1:8080")
        self.name = name
        self._host, self._port, self._path = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._timeout_s = timeout_s

    def start(self, request: Request) -> _HttpStream:
        """Send a request; its answer is read by iterating."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        body = json.dumps({"prompt": list(request.prompt), "n_predict": request.max_tokens, **self.OPTIONS})
        try:
            connection.request("POST", f"{self._path}/completion", body, {"Content-Type": "application/json"})
            sock: socket.socket = connection.sock  # which the connection forgets when its answer ends with it
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise EngineError(f"the server at {self._host}:{self._port} does not answer: {error}") from error
        if response.status != 200:
            said = response.read().decode("utf-8", "replace").strip()[:300]
            connection.close()
            if response.status in (429, 503):
                raise BusyError(f"the server is busy: {said}")
            raise EngineError(f"the server refused the request with status {response.status}: {said}")
        return _HttpStream(connection, response, sock, request.max_tokens)


class Pieces(Protocol):
    """What is needed of a tokenizer to choose words."""

    @property
    def n_vocab(self) -> int:
        """How many ids there are."""

    def piece(self, token_id: int) -> bytes:
        """The bytes of an id."""


def word_ids(tokenizer: Pieces, most: int | None = None) -> list[int]:
    """The ids whose piece is a blank and ASCII letters: random rows of them are text that any model can go on with.

    Raises SettingError when the vocabulary has fewer than 16 of them; `most` stops after so many.
    """
    found: list[int] = []
    for token in range(tokenizer.n_vocab):
        piece = tokenizer.piece(token)
        if piece[:1] == b" " and piece[1:].isalpha():
            found.append(token)
            if len(found) == most:
                break
    if len(found) < 16:
        raise SettingError(f"the vocabulary has {len(found)} words to make prompts of; wanted at least 16")
    return found
