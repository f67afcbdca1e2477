"""llama.cpp, through llama-cpp-python's low-level calls: the yardstick of the comparisons beside this file."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LlamaCpp", "machine"]


class LlamaCpp:
    """One model in llama.cpp, on the CPU, with `n_threads` for prompt and answer alike and its default f16 KV cache."""

    def __init__(self, path: Path, n_ctx: int, n_threads: int, n_batch: int = 512) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._llama: Any = llama_cpp.Llama(
            str(path),
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            logits_all=False,
            verbose=False,
        )
        self._context = self._llama._ctx.ctx
        self._batch = llama_cpp.llama_batch_init(n_batch, 0, 1)
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
            raise SystemExit(f"llama_decode ended with {status}")
        rows = n if every else 1
        pointer = ctypes.cast(self._api.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (rows, self.n_vocab))

    def logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """The logits of every position of a text, yielded batch by batch (rows, n_vocab)."""
        self.reset()
        for start in range(0, len(ids), self.n_batch):
            yield self.decode(ids[start : start + self.n_batch], start, every=True)

    def greedy(self, ids: Sequence[int]) -> Iterator[int]:
        """The most likely tokens after a prompt, one by one and without end; an end token does not stop it."""
        self.reset()
        for start in range(0, len(ids), self.n_batch):
            rows = self.decode(ids[start : start + self.n_batch], start, every=False)
        n_past = len(ids)
        while True:
            token = int(rows[-1].argmax())
            yield token
            rows = self.decode([token], n_past, every=False)
            n_past += 1


def machine() -> str:
    """One line about this machine and the llama.cpp build: CPU, cores, versions, instruction sets."""
    import llama_cpp
    import numba

    import edgeinfer

    cpu = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    info = llama_cpp.llama_print_system_info().decode()
    sets = [part.split("=")[0].strip() for part in info.split("|") if part.strip().endswith("= 1")]
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} CPUs; edgeinfer {edgeinfer.__version__}, numba {numba.__version__}; "
        f"llama-cpp-python {llama_cpp.__version__} ({', '.join(sets)})"
    )
