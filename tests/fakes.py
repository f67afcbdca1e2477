"""A scripted engine and a byte tokenizer: everything above the engine seam runs on them without weights.

    engine = ScriptedEngine.says(b"Hello", after=3)     # what it answers to a prompt of three tokens
    engine = ScriptedEngine(lambda history: logits)     # or any function of the tokens so far

The engine checks every batch as strictly as a real one would, and its KV cache knows which tokens each sequence holds.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.types import Batch
from edgeinfer.errors import ContextOverflowError, EngineError, NotFoundError, SettingError

__all__ = [
    "BOS",
    "EOM",
    "EOS",
    "EOT",
    "ByteTokenizer",
    "PagedCache",
    "RowLogits",
    "ScriptedEngine",
    "ToyTemplate",
    "hashed",
    "peak",
]

BOS, EOS, EOT, EOM = 256, 257, 258, 259
N_VOCAB = 260


def peak(token: int, n_vocab: int = N_VOCAB, height: float = 20.0) -> NDArray[np.float32]:
    """A row of logits (n_vocab,) that all but forces a token."""
    row = np.zeros(n_vocab, np.float32)
    row[token] = height
    return row


def hashed(history: tuple[int, ...], n_vocab: int = N_VOCAB) -> NDArray[np.float32]:
    """A row of logits (n_vocab,) that depends on every token so far and its place; end tokens are unlikely."""
    digest = hashlib.sha256(np.asarray(history, np.int64).tobytes()).digest()
    row = np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(0.0, 2.0, n_vocab).astype(np.float32)
    row[BOS:N_VOCAB] -= 50.0
    return row


class RowLogits:
    """Rows of logits as the engine seam hands them out."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = [np.asarray(row, np.float32) for row in rows]
        self.whole_rows_read = 0
        self.most_asked = 0

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, i: int) -> NDArray[np.float32]:
        self.whole_rows_read += 1
        return self.rows[i]

    def argmax(self, i: int) -> int:
        return int(np.argmax(self.rows[i]))

    def top(self, i: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        row = self.rows[i]
        if not 1 <= k <= len(row):
            raise SettingError(f"k is {k}")
        self.most_asked = max(self.most_asked, k)
        ids = np.lexsort((np.arange(len(row)), -row))[:k]
        return ids.astype(np.int32), row[ids]

    def finite(self, i: int) -> bool:
        return bool(np.isfinite(self.rows[i]).all())


class ScriptedCache:
    """Sequences as lists of token ids; a rewind reaches a multiple of `grain`."""

    def __init__(self, grain: int = 1) -> None:
        self.held: dict[int, list[int]] = {}
        self.grain = grain
        self.opened = 0
        self.broken = False

    def open(self) -> int:
        self.opened += 1
        self.held[self.opened] = []
        return self.opened

    def _tokens(self, seq: int) -> list[int]:
        if seq not in self.held:
            raise NotFoundError(f"no sequence {seq}")
        return self.held[seq]

    def n_past(self, seq: int) -> int:
        return len(self._tokens(seq))

    def fork(self, src: int, n: int) -> int:
        seq = self.open()
        self.held[seq] = self._tokens(src)[:n]
        return seq

    def rewind(self, seq: int, n_past: int) -> int:
        if self.broken:
            raise EngineError("the cache cannot rewind")
        tokens = self._tokens(seq)
        if n_past < len(tokens):
            del tokens[n_past - n_past % self.grain :]
        return len(tokens)

    def grow(self, seq: int, n: int) -> None:
        pass

    def close(self, seq: int) -> None:
        self._tokens(seq)
        del self.held[seq]


class PagedCache(ScriptedCache):
    """Sequences as lists of token ids on pages that are counted and shared, as the native engine's are.

    A page is the tuple of the tokens up to its end: pages of equal content are one page.
    """

    def __init__(self, n_pages: int, page_size: int = 4, n_seq: int = 64) -> None:
        super().__init__()
        self.n_pages, self.page_size, self.n_seq = n_pages, page_size, n_seq
        self.references: dict[tuple[int, ...], int] = {}  # of pages that somebody holds
        self.reclaim: Callable[[int], int] | None = None
        self.shared: dict[int, int] = {}  # whole pages of a sequence that are held by name
        self.lock = threading.RLock()

    @property
    def free_pages(self) -> int:
        own = sum(-(-len(tokens) // self.page_size) - self.shared.get(seq, 0) for seq, tokens in self.held.items())
        return self.n_pages - own - len(self.references)

    def open(self, pages: Sequence[tuple[int, ...]] = ()) -> int:
        with self.lock:
            if len(self.held) >= self.n_seq:
                raise SettingError("all sequences are open")
            seq = super().open()
            self.held[seq] = list(pages[-1]) if pages else []
            self.shared[seq] = 0
            self._share(seq, len(pages))
            return seq

    def _share(self, seq: int, n: int) -> None:
        """Let the first n whole pages of a sequence be held by name."""
        for i in range(self.shared[seq], n):
            page = tuple(self.held[seq][: (i + 1) * self.page_size])
            self.references[page] = self.references.get(page, 0) + 1
        for i in range(n, self.shared[seq]):
            self.drop([tuple(self.held[seq][: (i + 1) * self.page_size])])
        self.shared[seq] = n

    def grow(self, seq: int, n: int) -> None:
        n_past = self.n_past(seq)
        wanted = -(-(n_past + n) // self.page_size) - -(-n_past // self.page_size)
        if wanted > self.free_pages and self.reclaim is not None:
            self.reclaim(wanted - self.free_pages)
        if wanted > self.free_pages:
            raise ContextOverflowError(f"{wanted} pages wanted, {self.free_pages} free")

    def hold(self, seq: int, first: int, count: int) -> list[tuple[int, ...]]:
        with self.lock:
            n = min(first + count, self.n_past(seq) // self.page_size)
            if n > self.shared[seq]:
                self._share(seq, n)
            pages = [tuple(self.held[seq][: (i + 1) * self.page_size]) for i in range(first, n)]
            self.share(pages)
            return pages

    def share(self, pages: Sequence[tuple[int, ...]]) -> None:
        with self.lock:
            for page in pages:
                self.references[page] += 1

    def drop(self, pages: Sequence[tuple[int, ...]]) -> None:
        with self.lock:
            for page in pages:
                self.references[page] -= 1
                if not self.references[page]:
                    del self.references[page]

    def fork(self, src: int, n: int) -> int:
        with self.lock:
            if n % self.page_size and not self.free_pages:
                raise ContextOverflowError("no page to fork into")
            pages = self.hold(src, 0, n // self.page_size)
            seq = self.open(pages)
            self.drop(pages)
            self.held[seq] = self.held[src][:n]
            return seq

    def rewind(self, seq: int, n_past: int) -> int:
        with self.lock:
            self._share(seq, min(self.shared[seq], n_past // self.page_size))
            return super().rewind(seq, n_past)

    def close(self, seq: int) -> None:
        with self.lock:
            self._tokens(seq)
            self._share(seq, 0)
            del self.shared[seq]
            super().close(seq)


class ScriptedEngine:
    """An engine whose logits are a function of the tokens so far: a token id to force, or a row (n_vocab,)."""

    def __init__(
        self,
        answer: Callable[[tuple[int, ...]], Any] = hashed,
        *,
        n_vocab: int = N_VOCAB,
        n_ctx: int = 64,
        n_batch: int = 512,
        grain: int = 1,
        kv: ScriptedCache | None = None,
    ) -> None:
        self.config: Any = None
        self.kv: Any = kv or ScriptedCache(grain)
        self.n_ctx, self.n_batch, self.n_vocab = n_ctx, n_batch, n_vocab
        self.answer = answer
        self.calls: list[tuple[str, int]] = []  # (lane, tokens) of each forward
        self.before: Callable[[Batch], None] = lambda batch: None
        self.after: Callable[[Batch], None] = lambda batch: None
        self.closed = False
        self.at_work = False

    @classmethod
    def says(cls, ids: Iterable[Any], after: int, **settings: Any) -> ScriptedEngine:
        """An engine that answers a prompt of `after` tokens with ids (or rows), and then with EOS for ever."""
        script = list(ids)

        def answer(history: tuple[int, ...]) -> Any:
            place = len(history) - after
            return script[place] if 0 <= place < len(script) else EOS

        return cls(answer, **settings)

    def forward(self, batch: Batch, lane: str = "decode") -> RowLogits:
        if self.closed:
            raise EngineError("the engine was closed")
        if self.at_work:
            raise RuntimeError("two forwards at once")
        self.at_work = True
        try:
            return self._forward(batch, lane)
        finally:
            self.at_work = False

    def _forward(self, batch: Batch, lane: str) -> RowLogits:
        if not 1 <= len(batch) <= self.n_batch:
            raise SettingError(f"a batch of {len(batch)} tokens")
        seqs = [int(seq) for seq in batch.seq_ids]
        runs = [(seq, len(list(group))) for seq, group in itertools.groupby(seqs)]
        if len({seq for seq, _ in runs}) != len(runs):
            raise SettingError(f"the tokens of a sequence are not side by side: {seqs}")
        expected = []
        for seq, n in runs:
            n_past = self.kv.n_past(seq)
            expected += range(n_past, n_past + n)
            if n_past + n > self.n_ctx:
                raise ContextOverflowError(f"{n_past} + {n} > {self.n_ctx}")
        if list(batch.positions) != expected:
            raise SettingError(f"positions {batch.positions}, expected {expected}")
        self.before(batch)
        for seq, n in runs:
            self.kv.grow(seq, n)
        rows = []
        for seq, token, wanted in zip(seqs, batch.token_ids, batch.wants_logits, strict=True):
            self.kv.held[seq].append(int(token))
            if wanted:
                answer = self.answer(tuple(self.kv.held[seq]))
                rows.append(peak(answer, self.n_vocab) if isinstance(answer, (int, np.integer)) else answer)
        self.after(batch)
        self.calls.append((lane, len(batch)))
        return RowLogits(rows)

    @property
    def n_evaluated(self) -> int:
        """How many tokens were evaluated so far."""
        return sum(n for _, n in self.calls)

    def close(self) -> None:
        self.closed = True
        self.kv.held.clear()


class ByteStream:
    """Bytes to text, complete characters only."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._pieces[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class ByteTokenizer:
    """Ids 0 to 255 are bytes, then BOS, EOS, EOT, EOM, then the pieces that a test gives."""

    def __init__(self, pieces: Sequence[bytes] = (), add_bos: bool = False) -> None:
        self.pieces: dict[int, bytes] = {i: bytes([i]) for i in range(256)}
        self.pieces |= {BOS: b"<bos>", EOS: b"<eos>", EOT: b"<eot>", EOM: b"<eom>"}
        self.pieces |= {N_VOCAB + i: piece for i, piece in enumerate(pieces)}
        self.add_bos = add_bos
        self.bos_id, self.eos_id = BOS, EOS
        self.end_ids = frozenset((EOS, EOT, EOM))
        self.n_vocab = len(self.pieces)

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [BOS] * (self.add_bos and special) + list(text.encode())

    def piece(self, token_id: int, special: bool = False) -> bytes:
        return b"" if BOS <= token_id < N_VOCAB and not special else self.pieces[token_id]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    def stream(self, after: int | None = None) -> ByteStream:
        self.after = after
        return ByteStream(self.pieces)


class ToyTemplate:
    """A line a message, as in "user: hello"."""

    thinking: Any = None  # a `Thinking` where a test wants one

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return [BOS, *self.tokenizer.encode(text + "assistant: ", special=False)]
