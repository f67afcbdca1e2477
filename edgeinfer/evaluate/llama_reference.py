"""llama.cpp, through llama-cpp-python's low-level calls: the yardstick that speed and exactness are compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, MissingExtraError, ModelFileError

__all__ = ["INSTALL", "LlamaCpp", "build"]

# Built from source for this CPU: a rival that was built for any CPU would be no yardstick.
INSTALL = 'CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python "llama-cpp-python>=0.3.16"'


def _api() -> Any:
    try:
        import llama_cpp
    except ImportError as error:
        raise MissingExtraError(
            f"to compare with llama.cpp, llama-cpp-python must be installed; run: {INSTALL}"
        ) from error
    return llama_cpp


class LlamaCpp:
    """One model in llama.cpp, on the CPU, with `n_threads` for prompt and answer alike and its default f16 KV cache.

    Raises MissingExtraError with the pip command, ModelFileError when llama.cpp does not take the file.
    """

    def __init__(self, path: Path, n_ctx: int, n_threads: int, n_batch: int = 512) -> None:
        self._api = _api()
        try:
            self._llama: Any = self._api.Llama(
                str(path),
                n_ctx=n_ctx,
                n_batch=n_batch,
                n_ubatch=n_batch,
                n_threads=n_threads,
                n_threads_batch=n_threads,
                logits_all=False,
                verbose=False,
            )
        except ValueError as error:
            raise ModelFileError(f"llama.cpp cannot load {path}: {error}") from error
        self._context = self._llama._ctx.ctx
        self._batch = self._api.llama_batch_init(n_batch, 0, 1)
        self.n_batch = n_batch
        self.n_vocab: int = self._llama.n_vocab()

    def close(self) -> None:
        """Free the model."""
        self._api.llama_batch_free(self._batch)
        self._llama.close()

    def encode(self, text: str) -> list[int]:
        """Token ids, with the begin token where the file asks for it and control tokens read."""
        ids: list[int] = self._llama.tokenize(text.encode(), add_bos=True, special=True)
        return ids

    def reset(self) -> None:
        """Forget every token."""
        self._llama._ctx.kv_cache_clear()

    def rewind(self, n_past: int) -> bool:
        """Forget the tokens from position n_past on; False when this model's cache cannot be cut there."""
        return bool(self._llama._ctx.kv_cache_seq_rm(0, n_past, -1))

    def decode(self, ids: Sequence[int], n_past: int, every: bool) -> NDArray[np.float32]:
        """Evaluate at most n_batch tokens at n_past; return the logits of each of them, or of the last (rows, n_vocab).

        The array is a view that is valid until the next call.
        """
        batch, n = self._batch, len(ids)
        batch.n_tokens = n
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = n_past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = every or i == n - 1
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise EngineError(f"llama_decode ended with {status}")
        rows = n if every else 1
        pointer = ctypes.cast(self._api.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (rows, self.n_vocab))

    def read(self, ids: Sequence[int], n_past: int) -> NDArray[np.float32]:
        """Evaluate any number of tokens at n_past; return the logits of the last one (1, n_vocab), a view."""
        for start in range(0, len(ids), self.n_batch):
            rows = self.decode(ids[start : start + self.n_batch], n_past + start, every=False)
        return rows

    def logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """The logits of every position of a text, yielded batch by batch (rows, n_vocab)."""
        self.reset()
        for start in range(0, len(ids), self.n_batch):
            yield self.decode(ids[start : start + self.n_batch], start, every=True)

    def greedy(self, ids: Sequence[int], n_past: int = 0) -> Iterator[int]:
        """The most likely tokens after n_past tokens that it holds and `ids`, one by one and without end.

        An end token does not stop it. With n_past 0 it forgets what it held.
        """
        if n_past == 0:
            self.reset()
        rows = self.read(ids, n_past)
        n_past += len(ids)
        while True:
            token = int(rows[-1].argmax())
            yield token
            rows = self.decode([token], n_past, every=False)
            n_past += 1


def build() -> str:
    """The version of llama-cpp-python and the instruction sets that it was built with."""
    api = _api()
    info = api.llama_print_system_info().decode()
    sets = [part.split("=")[0].strip() for part in info.split("|") if part.strip().endswith("= 1")]
    return f"llama-cpp-python {api.__version__} ({', '.join(sets)})"
