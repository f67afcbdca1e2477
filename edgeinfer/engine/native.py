"""The native engine: batches through linked programs on a standing team of threads; weights packed once, KV in pages."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import numpy as np

from ..arch import Family, family_of
from ..errors import EngineError, SettingError, UnsupportedModelError
from ..model.gguf import GGUFFile
from ..model.weights import Weights, unsupported_reason
from ..plan.builder import Builder, TensorFacts
from ..plan.checker import check_program
from ..plan.packing import KV_TYPES, kv_page_bytes
from ..plan.program import Bias, File, Norm, Operand, Program, Rope
from ..plan.rotary import frequencies, rotary_rows
from ..runtime.arena import Arena, aligned
from ..runtime.isa import choose
from ..runtime.layout import NEVER_STOP, RUN_WORDS, STATE_BARRIER, STATE_STOP_AT, STATE_WORDS
from ..runtime.library import KernelLibrary
from ..runtime.pool import KERNELS as POOL_KERNELS
from ..runtime.pool import MAX_THREADS, ThreadPool
from ..settings import Settings, settings
from .kv import PagedKV
from .lane import Addresses, Lane
from .logits import LOGITS_KERNELS, NativeLogits
from .pace import Pace
from .packer import PackedWeights, pack_kernels
from .types import Batch, ForwardStopped

__all__ = ["N_OUT", "NativeEngine", "build_programs", "family_of"]

LANES = ("prefill", "decode")
N_OUT = 64  # rows of logits that one forward may give
PHASES = ("decode", "batch")
_libraries: dict[str, KernelLibrary] = {}
_libraries_lock = threading.Lock()


def kernel_library(options: Settings) -> KernelLibrary:
    """The process's kernels for the chosen instruction set."""
    isa = choose(options.isa)
    key = f"{isa.name}@{options.cache}"
    with _libraries_lock:
        if key not in _libraries:
            _libraries[key] = KernelLibrary(isa, options.cache)
        return _libraries[key]


def build_programs(weights: Weights, family: Family, kv_type: str = "f16") -> dict[str, Program]:
    """The decode and the batch program of a model, checked. Raises UnsupportedModelError naming the tensor."""

    def facts(name: str) -> TensorFacts:
        info = weights.tensor(name)
        reason = unsupported_reason(info)
        if reason is not None:
            raise UnsupportedModelError(f"{weights.file.path}: tensor {name!r} is {reason}")
        return TensorFacts(info.type_name.lower(), info.shape)

    programs = {}
    for phase in PHASES:
        builder = Builder(weights.config, phase, facts, weights.has, kv_type)
        family.build(builder)
        programs[phase] = check_program(builder.program())
    return programs


class NativeEngine:
    """One loaded model on the CPU.

    n_ctx: most positions of a sequence. n_batch: most tokens of one forward. Logits do not depend on n_threads, n_batch, on
    how a prompt is cut, or on what shares a batch. Raises UnsupportedModelError, MemoryLimitError, EngineError.
    """

    def __init__(
        self, weights: Weights, *, n_ctx: int, n_batch: int = 512, n_threads: int = 1, kv_type: str = "f16",
        n_kv: int | None = None, n_seq: int = 64, progress: Callable[[str], None] | None = None,
        options: Settings | None = None, phase_threads: Mapping[str, int] | None = None,
    ):  # fmt: skip
        """kv_type is "f16", "q8_0" or "q4_0"; n_kv the positions of the page pool (default: twice n_ctx, so that a second
        full sequence may live beside a conversation; untouched pages take no memory); n_seq the most open sequences;
        phase_threads the most threads of a forward of one token ("decode") and of several ("batch"), where less."""
        if n_ctx < 1 or n_batch < 1 or n_seq < 1:
            raise SettingError(f"n_ctx, n_batch and n_seq must be at least 1, not {n_ctx}, {n_batch} and {n_seq}")
        if not 1 <= n_threads <= MAX_THREADS:
            raise SettingError(f"threads must be between 1 and {MAX_THREADS}, not {n_threads}")
        if kv_type not in KV_TYPES:
            raise SettingError(f"the KV type is {kv_type!r}; wanted one of {', '.join(KV_TYPES)}")
        n_kv = 2 * n_ctx if n_kv is None else n_kv
        if n_kv < n_ctx:
            raise SettingError(f"n_kv is {n_kv}; wanted at least one context of {n_ctx}")
        self.config = config = weights.config
        self.n_ctx, self.n_threads, self.kv_type = n_ctx, n_threads, kv_type
        self.phase_threads = {phase: min(n_threads, (phase_threads or {}).get(phase, n_threads)) for phase in PHASES}
        self.n_batch = n_batch = min(n_batch, n_ctx)
        self.n_vocab = config.n_tokens or config.n_vocab  # padding rows of the table have no token
        self.n_out = min(N_OUT, n_batch)
        self._weights = weights
        family = family_of(config)
        self.programs = build_programs(weights, family, kv_type)
        self.library = kernel_library(options or settings())
        names = self._kernel_names()
        started = time.perf_counter()
        missing = self.library.missing(names)
        kernels = self.library.addresses(names, progress)
        self.compile_s = time.perf_counter() - started if missing else 0.0  # of compiling kernels, once a machine
        self._pool = ThreadPool.shared(self.library)
        self._packed = self._pack(progress)
        page_bytes = kv_page_bytes(kv_type, config.n_head_kv, config.head_dim)
        layout = f"{self.library.isa.name} {kv_type} heads {config.n_head_kv}x{config.head_dim}"
        # Which of two sets of rotary factors turned the stored keys depends on n_ctx.
        used = {o.factors_at(n_ctx) for o in self._operands() if isinstance(o, Rope) and o.long_factors}
        layout += "".join(f" by {name}" for name in sorted(used))
        self.kv = PagedKV(family.groups(config), page_bytes, n_ctx, n_kv, n_seq, layout)
        self._ropes, self._rope_arena = self._rope_tables()
        tables = dict.fromkeys(o.tensor for o in self._operands() if isinstance(o, File))
        files = {name: weights.address(name) for name in tables}
        self._where = Addresses(kernels, self._packed.addresses, self._packed.vectors, files, self._ropes, self.kv)
        self._lanes = {
            name: Lane(name, self.programs, self._where, self._pool, n_batch, self.n_out, n_threads, n_ctx)
            for name in LANES
        }
        self._logits = {name: NativeLogits(self.library, self.n_vocab) for name in LANES}
        self._paces = {name: Pace() for name in LANES}
        self._locks = {name: threading.Lock() for name in LANES}
        self._running = 0  # threads that calls use now
        self._running_lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    # ---- loading ----------------------------------------------------------------------------------------------------

    def _pack(self, progress: Callable[[str], None] | None) -> PackedWeights:
        """The weights in the layout that the kernels read, packed by all threads."""
        barrier = self._pool.take_barrier(self.n_threads)
        state = aligned(STATE_WORDS)
        state[STATE_BARRIER] = barrier.ctypes.data
        state[STATE_STOP_AT] = NEVER_STOP
        team = self._pool.team(self.n_threads)
        try:
            return PackedWeights(
                self._weights,
                list(self.programs.values()),
                self._vectors(),
                self.library,
                lambda step: team.run(step, 1, int(state.ctypes.data), self.n_threads),
                progress,
            )
        finally:
            self._pool.give_barrier(self.n_threads, barrier)

    def _kernel_names(self) -> list[str]:
        matrices = [m for program in self.programs.values() for m in program.matrices()]
        steps = [name for program in self.programs.values() for name in program.kernels()]
        # Long compilations first, so that the compiling processes finish together.
        steps.sort(key=lambda name: (not name.startswith("attention"), not name.startswith("matmul"), name))
        return [*dict.fromkeys(steps), *pack_kernels(matrices), *POOL_KERNELS, *LOGITS_KERNELS]

    def _operands(self) -> Iterator[Operand]:
        """Every operand of every step."""
        for program in self.programs.values():
            for step in program.steps:
                yield from step.fields.values()

    def _vectors(self) -> list[Norm | Bias]:
        return list(dict.fromkeys(o for o in self._operands() if isinstance(o, (Norm, Bias))))

    def _rope_tables(self) -> tuple[dict[Rope, int], Arena]:
        """The tables that the programs name, for every position of a context."""
        distinct = list(dict.fromkeys(o for o in self._operands() if isinstance(o, Rope)))
        arena = Arena(sum(self.n_ctx * r.rope_dim * 4 + 64 for r in distinct), "the rotary tables")
        tables = {}
        for rope in distinct:
            name, half = rope.factors_at(self.n_ctx), rope.rope_dim // 2
            factors = self._weights.float32(name) if name else None
            if factors is not None and factors.shape != (half,):
                raise UnsupportedModelError(f"tensor {name!r} has shape {factors.shape}; wanted ({half},)")
            angles = frequencies(rope, factors)
            n_bytes = self.n_ctx * rope.rope_dim * 4
            at = tables[rope] = arena.take(n_bytes)
            view = arena.view(at, n_bytes).view(np.float32).reshape(self.n_ctx, rope.rope_dim)
            for start in range(0, self.n_ctx, 4096):
                positions = np.arange(start, min(start + 4096, self.n_ctx))
                view[start : start + 4096] = rotary_rows(rope, angles, positions)
        return tables, arena

    # ---- forward ----------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, lane: str = "decode", n_threads: int = 0) -> NativeLogits:
        """Evaluate a batch; the answer's rows are those that want logits, valid until the lane's next forward.

        Beside other busy programs fewer threads are used where that is faster (`pace`).

        The two lanes may run at once, on different sequences. n_threads limits this call (0: all that are not in use by
        the other lane, at least one). Raises SettingError (a batch that is malformed or too long), ContextOverflowError
        (no room; the sequences are as before), EngineError (closed), ForwardStopped (`stop`; the sequences are as before).
        """
        if lane not in LANES:
            raise SettingError(f"there is no lane {lane!r}; wanted one of {', '.join(LANES)}")
        if self._pid != os.getpid():  # before the lock, which the fork may have copied while it was held
            raise EngineError("this process was forked from one with a loaded model; load the model again here")
        with self._locks[lane]:
            if self._closed:
                raise EngineError("the engine is closed")
            with self._running_lock:
                most = self.phase_threads["decode" if len(batch) == 1 else "batch"]
                most = max(1, min(n_threads or most, most, self.n_threads - self._running))
                n = self._paces[lane].threads(most)
                self._running += n
            try:
                return self._forward(batch, lane, most, n)
            finally:
                with self._running_lock:
                    self._running -= n

    def stop(self, lane: str) -> None:
        """Make the forward that runs in a lane end at once, with ForwardStopped; nothing happens when none runs."""
        here = self._lanes.get(lane)
        if here is not None:
            here.stop()

    def _forward(self, batch: Batch, lane: str, most: int, n_threads: int) -> NativeLogits:
        here = self._lanes[lane]
        n = len(batch)
        runs = self._runs(batch)
        out = batch.wants_logits.nonzero()[0]
        if len(out) > self.n_out:
            raise SettingError(f"{len(out)} rows of logits were asked for in one forward; at most {self.n_out}")
        phase = "decode" if n == 1 else "batch"
        program = here.linked[phase]
        grown: list[int] = []
        try:
            for seq, _position, count, _row in runs:
                self.kv.grow(seq, count)
                grown.append(seq)
            here.ids[:n] = batch.token_ids
            here.positions[:n] = batch.positions
            here.slots[:n] = batch.seq_ids
            here.out_rows[: len(out)] = out
            here.runs[: len(runs) * RUN_WORDS] = [word for run in runs for word in run]
            here.set_call(n, len(out), len(runs), n_threads)
            waited, started, used = here.waited_s(n_threads), time.perf_counter(), time.thread_time()
            here.team.run(int(program.ctypes.data), len(self.programs[phase].steps), here.state_address, n_threads)
            if here.stopped:
                raise ForwardStopped
            seconds, used = time.perf_counter() - started, time.thread_time() - used
            self._paces[lane].note(most, n, seconds, here.waited_s(n_threads) - waited, seconds - used)
        except BaseException:
            # No room, stopped, or Ctrl-C: the sequences are as before, and hold no page that nothing was counted in.
            for seq in grown:
                self.kv.trim(seq)
            raise
        for seq, _position, count, _row in runs:
            self.kv.advance(seq, count)
        rows, best = here.answers[phase]
        return self._logits[lane].show(rows, len(out), best)

    def _runs(self, batch: Batch) -> list[tuple[int, int, int, int]]:
        """(sequence, first position, count, first row) of each run of the batch, checked against the KV cache."""
        n = len(batch)
        if not 1 <= n <= self.n_batch:
            raise SettingError(f"a forward takes between 1 and {self.n_batch} tokens, not {n}")
        ids, seqs, positions = batch.token_ids.tolist(), batch.seq_ids.tolist(), batch.positions.tolist()
        if min(ids) < 0 or max(ids) >= self.n_vocab:
            bad = next(t for t in ids if not 0 <= t < self.n_vocab)
            raise SettingError(f"token id {bad} is outside the vocabulary of {self.n_vocab}")
        runs = []
        seen: set[int] = set()
        start = 0
        while start < n:
            seq, position = seqs[start], positions[start]
            stop = start + 1
            while stop < n and seqs[stop] == seq:
                stop += 1
            if seq in seen:
                raise SettingError(f"the tokens of sequence {seq} are not side by side in the batch")
            seen.add(seq)
            if position != self.kv.n_past(seq):
                raise SettingError(
                    f"sequence {seq} holds {self.kv.n_past(seq)} positions; the batch goes on at {position}"
                )
            if stop - start > 1 and positions[start:stop] != [*range(position, position + stop - start)]:
                raise SettingError(f"the positions of sequence {seq} are not consecutive")
            runs.append((seq, position, stop - start, start))
            start = stop
        return runs

    # ---- end --------------------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, int]:
        """Bytes reserved, by purpose; what was never touched is not resident."""
        return {
            "weights": self._packed.n_bytes,
            "kv": sum(pool.arena.n_bytes for pool in self.kv.pools),
            "scratch": sum(lane.arena.n_bytes for lane in self._lanes.values()),
            "rope": self._rope_arena.n_bytes,
        }

    def packed_memory(self) -> tuple[int, int]:
        """(address, bytes) of the packed weights, for who measures how fast this memory can be read."""
        return self._packed.arena.address, self._packed.arena.n_bytes

    @property
    def weights_file(self) -> GGUFFile:
        """The model file."""
        return self._weights.file

    def close(self) -> None:
        """Give memory back when the running forwards have ended; later calls raise EngineError. Twice is fine."""
        with ExitStack() as held:
            for lock in self._locks.values():
                held.enter_context(lock)
            if self._closed:
                return
            self._closed = True
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()
            self._logits.clear()
            self._packed.close()
            self._weights.close()
