"""The native engine: batches through linked programs on a standing team of threads; weights packed once, KV in pages."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from ..arch import ARCHS, Family
from ..errors import EngineError, SettingError, UnsupportedModelError
from ..model.config import ModelConfig
from ..model.weights import Weights, unsupported_reason
from ..plan.builder import Builder, TensorFacts
from ..plan.checker import check_program
from ..plan.program import File, Norm, Operand, Program, Rope
from ..runtime.arena import Arena
from ..runtime.isa import choose
from ..runtime.layout import RUN_WORDS
from ..runtime.library import KernelLibrary
from ..runtime.pool import KERNELS as POOL_KERNELS
from ..runtime.pool import MAX_THREADS, ThreadPool
from ..settings import Settings, settings
from .kv import PagedKV
from .lane import Addresses, Lane, barrier_state
from .logits import LOGITS_KERNELS, NativeLogits
from .packer import PackedWeights, pack_kernels
from .types import Batch

__all__ = ["N_OUT", "NativeEngine", "build_programs"]

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


def family_of(config: ModelConfig) -> Family:
    """The description of the model's family. Raises UnsupportedModelError for one that is not known or not computed."""
    family = ARCHS.get(config.arch)
    if family is None:
        raise UnsupportedModelError(
            f"the native engine does not run the architecture {config.arch!r}; it runs: {', '.join(sorted(ARCHS))}"
        )
    family.check(config)
    return family


def build_programs(weights: Weights, family: Family) -> dict[str, Program]:
    """The decode and the batch program of a model, checked. Raises UnsupportedModelError naming the tensor."""

    def facts(name: str) -> TensorFacts:
        info = weights.tensor(name)
        reason = unsupported_reason(info)
        if reason is not None:
            raise UnsupportedModelError(f"{weights.file.path}: tensor {name!r} is {reason}")
        return TensorFacts(info.type_name.lower(), info.shape)

    programs = {}
    for phase in PHASES:
        builder = Builder(weights.config, phase, facts, weights.has)
        family.build(builder)
        programs[phase] = check_program(builder.program())
    return programs


class NativeEngine:
    """One loaded model on the CPU.

    n_ctx: most positions of a sequence. n_batch: most tokens of one forward. Logits do not depend on n_threads, n_batch, on
    how a prompt is cut, or on what shares a batch. Raises UnsupportedModelError, MemoryLimitError, EngineError.
    """

    def __init__(
        self, weights: Weights, *, n_ctx: int, n_batch: int = 512, n_threads: int = 1,
        progress: Callable[[str], None] | None = None, options: Settings | None = None,
    ):  # fmt: skip
        if n_ctx < 1 or n_batch < 1:
            raise SettingError(f"n_ctx and n_batch must be at least 1, not {n_ctx} and {n_batch}")
        if not 1 <= n_threads <= MAX_THREADS:
            raise SettingError(f"threads must be between 1 and {MAX_THREADS}, not {n_threads}")
        options = options or settings()
        self.config = config = weights.config
        self.n_ctx, self.n_threads = n_ctx, n_threads
        self.n_batch = n_batch = min(n_batch, n_ctx)
        self.n_vocab = config.n_tokens or config.n_vocab  # padding rows of the table have no token
        self.n_out = min(N_OUT, n_batch)
        self._weights = weights
        family = family_of(config)
        self.programs = build_programs(weights, family)
        self.library = kernel_library(options)
        names = self._kernel_names()
        started = time.perf_counter()
        missing = self.library.missing(names)
        kernels = self.library.addresses(names, progress)
        self.compile_s = time.perf_counter() - started if missing else 0.0  # of compiling kernels, once a machine
        self._pool = ThreadPool.shared(self.library)
        self._team = self._pool.borrow(n_threads)
        try:
            state, self._pack_barrier = barrier_state(n_threads)
            self._packed = PackedWeights(
                weights,
                list(self.programs.values()),
                self._norms(),
                self.library,
                self._team,
                int(state.ctypes.data),
                progress,
            )
            page_bytes = Builder(config, "decode", lambda _: TensorFacts("f32", ()), weights.has).page_bytes()
            # Twice n_ctx, so that a second full sequence may live beside a conversation; untouched pages take no memory.
            self.kv = PagedKV(family.groups(config), page_bytes, n_ctx, 2 * n_ctx)
            self._ropes, self._rope_arena = self._rope_tables()
            files = {name: weights.address(name) for name in self._named(File)}
            self._where = Addresses(kernels, self._packed.addresses, self._packed.norms, files, self._ropes, self.kv)
            self._lanes = {
                name: Lane(name, self.programs, self._where, n_batch, self.n_out, n_threads, n_ctx) for name in LANES
            }
        except BaseException:
            self._team.release()
            raise
        self._logits = {name: NativeLogits(self.library, self.n_vocab) for name in LANES}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    # ---- loading ----------------------------------------------------------------------------------------------------

    def _kernel_names(self) -> list[str]:
        matrices = [m for program in self.programs.values() for m in program.matrices()]
        steps = [name for program in self.programs.values() for name in program.kernels()]
        # Long compilations first, so that the compiling processes finish together.
        steps.sort(key=lambda name: (not name.startswith("attention"), not name.startswith("matmul"), name))
        return [*dict.fromkeys(steps), *pack_kernels(matrices), *POOL_KERNELS, *LOGITS_KERNELS]

    def _named(self, kind: type[File] | type[Norm]) -> list[str]:
        found = (operand.tensor for operand in self._operands() if isinstance(operand, kind))
        return list(dict.fromkeys(found))

    def _operands(self) -> Iterator[Operand]:
        """Every operand of every step."""
        for program in self.programs.values():
            for step in program.steps:
                yield from step.fields.values()

    def _norms(self) -> list[str]:
        return self._named(Norm)

    def _rope_tables(self) -> tuple[dict[Rope, int], Arena]:
        """cos and sin of position / divisor * base^(-2i / rope_dim) (/ factor), in float64, stored as float32."""
        distinct = list(dict.fromkeys(o for o in self._operands() if isinstance(o, Rope)))
        arena = Arena(sum(self.n_ctx * r.rope_dim * 4 + 64 for r in distinct), "the rotary tables")
        tables = {}
        for rope in distinct:
            half = rope.rope_dim // 2
            frequency = rope.base ** (-np.arange(half, dtype=np.float64) * 2 / rope.rope_dim) / rope.divisor
            if rope.factors:
                factors = self._weights.float32(rope.factors).astype(np.float64)
                if factors.shape != (half,):
                    raise UnsupportedModelError(f"tensor {rope.factors!r} has shape {factors.shape}; wanted ({half},)")
                frequency = frequency / factors
            at = tables[rope] = arena.take(self.n_ctx * rope.rope_dim * 4)
            view = arena.view(at, self.n_ctx * rope.rope_dim * 4).view(np.float32).reshape(self.n_ctx, rope.rope_dim)
            for start in range(0, self.n_ctx, 4096):
                angle = np.arange(start, min(start + 4096, self.n_ctx))[:, None] * frequency
                view[start : start + 4096, :half] = np.cos(angle)
                view[start : start + 4096, half:] = np.sin(angle)
        return tables, arena

    # ---- forward ----------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, lane: str = "decode") -> NativeLogits:
        """Evaluate a batch; the answer's rows are those that want logits, valid until the lane's next forward.

        Raises SettingError (a batch that is malformed or too long), ContextOverflowError (no room; the sequences are as
        before), EngineError (closed).
        """
        if lane not in self._lanes:
            raise SettingError(f"there is no lane {lane!r}; wanted one of {', '.join(LANES)}")
        if self._pid != os.getpid():  # before the lock, which the fork may have copied while it was held
            raise EngineError("this process was forked from one with a loaded model; load the model again here")
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            return self._forward(batch, lane)

    def _forward(self, batch: Batch, lane: str) -> NativeLogits:
        here = self._lanes[lane]
        n = len(batch)
        runs = self._runs(batch)
        out = np.flatnonzero(batch.wants_logits)
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
            here.runs[: len(runs) * RUN_WORDS] = np.array(runs, np.int64).reshape(-1)
            here.set_call(n, len(out), len(runs), self.n_threads)
            self._team.run(int(program.ctypes.data), len(self.programs[phase].steps), here.state_address)
        except BaseException:
            # No room, or Ctrl-C: the sequences are as before, and hold no page that nothing was counted in.
            for seq in grown:
                self.kv.trim(seq)
            raise
        for seq, _position, count, _row in runs:
            self.kv.advance(seq, count)
        row_bytes = self.programs[phase].buffers["logits"].row_bytes
        return self._logits[lane].show(here.floats("logits", self.n_out, row_bytes), len(out))

    def _runs(self, batch: Batch) -> list[tuple[int, int, int, int]]:
        """(sequence, first position, count, first row) of each run of the batch, checked against the KV cache."""
        n = len(batch)
        if not 1 <= n <= self.n_batch:
            raise SettingError(f"a forward takes between 1 and {self.n_batch} tokens, not {n}")
        ids = batch.token_ids
        if int(ids.min()) < 0 or int(ids.max()) >= self.n_vocab:
            bad = next(int(t) for t in ids if not 0 <= t < self.n_vocab)
            raise SettingError(f"token id {bad} is outside the vocabulary of {self.n_vocab}")
        cuts = [0, *(np.flatnonzero(np.diff(batch.seq_ids)) + 1).tolist(), n]
        runs = []
        seen: set[int] = set()
        for start, stop in itertools.pairwise(cuts):
            seq, position = int(batch.seq_ids[start]), int(batch.positions[start])
            if seq in seen:
                raise SettingError(f"the tokens of sequence {seq} are not side by side in the batch")
            seen.add(seq)
            if position != self.kv.n_past(seq):
                raise SettingError(
                    f"sequence {seq} holds {self.kv.n_past(seq)} positions; the batch goes on at {position}"
                )
            if stop - start > 1 and not np.array_equal(
                batch.positions[start:stop], np.arange(position, position + stop - start)
            ):
                raise SettingError(f"the positions of sequence {seq} are not consecutive")
            runs.append((seq, position, stop - start, start))
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

    def close(self) -> None:
        """Give threads and memory back; later calls raise EngineError. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._team.release()
            self._lanes.clear()
            self._logits.clear()
            self._packed.close()
            self._weights.close()
