"""Weights into memory, once: every matrix of a program packed natively by all threads, its mapped pages given back.

Large tensors go in slabs, so that a tensor is never resident twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..formats import by_name
from ..model.weights import Weights
from ..plan.packing import packed_bytes, row_order
from ..plan.program import Bias, Matrix, Norm, Program
from ..runtime.arena import Arena, aligned
from ..runtime.layout import STEP_FIELDS, STEP_KERNEL, STEP_WORDS
from ..runtime.library import KernelLibrary

__all__ = ["PackedWeights", "pack_kernels", "vector_of"]

SLAB = 16 << 20  # bytes of a tensor that are resident at a time
PAGE = 4096


def pack_kernels(matrices: Sequence[Matrix]) -> list[str]:
    """The names of the pack kernels that the matrices need."""
    return list(dict.fromkeys(f"pack.{matrix.format}" for matrix in matrices))


def vector_of(weights: Weights, operand: Norm | Bias) -> NDArray[np.float32]:
    """The float32 values (n,) that a norm or bias operand stands for."""
    if isinstance(operand, Norm):
        values = weights.float32(operand.tensor)
        return np.ascontiguousarray(values.T if operand.transposed else values).reshape(-1)
    which, rows = row_order(operand.matrix)
    found = np.zeros(len(rows), np.float32)
    for i, part in enumerate(operand.matrix.parts):
        if part.bias:
            found[which == i] = weights.float32(part.bias)[rows[which == i]]
    return found


class PackedWeights:
    """All packed matrices and small float32 tensors of a model, at fixed addresses. `run(step)` runs a step on all threads."""

    def __init__(
        self, weights: Weights, programs: Sequence[Program], vectors: Sequence[Norm | Bias], library: KernelLibrary,
        run: Callable[[int], None], progress: Callable[[str], None] | None = None,
    ):  # fmt: skip
        self._run = run
        matrices = list(dict.fromkeys(m for program in programs for m in program.matrices()))
        sizes = {m: packed_bytes(m) for m in matrices}
        arrays = {operand: vector_of(weights, operand) for operand in vectors}
        total = sum(-(-n // 64) * 64 for pair in sizes.values() for n in pair)
        total += sum(-(-a.nbytes // 64) * 64 for a in arrays.values())
        self.arena = Arena(total + 4096, "the weights")
        self.addresses: dict[Matrix, tuple[int, int]] = {}
        self.vectors: dict[Norm | Bias, int] = {}
        for operand, array in arrays.items():
            at = self.vectors[operand] = self.arena.take(array.nbytes)
            self.arena.view(at, array.nbytes)[:] = array.view(np.uint8)
        kernels = library.addresses(pack_kernels(matrices))
        done = 0
        for matrix in matrices:
            quants, scales = sizes[matrix]
            place = self.addresses[matrix] = (self.arena.take(quants), self.arena.take(scales))
            self._pack(weights, matrix, place, kernels[f"pack.{matrix.format}"])
            done += quants + scales
            if progress:
                progress(f"packing weights: {done / 2**20:.0f}/{total / 2**20:.0f} MiB")

    @property
    def n_bytes(self) -> int:
        """Bytes that the packed weights take."""
        return self.arena.n_bytes

    def _pack(self, weights: Weights, matrix: Matrix, place: tuple[int, int], kernel: int) -> None:
        row_bytes = by_name(matrix.format).n_bytes(matrix.cols)
        starts = np.array([weights.address(part.tensor) for part in matrix.parts], np.int64)
        which, rows = row_order(matrix)
        addresses = aligned(len(rows))
        addresses[:] = np.where(which < 0, 0, starts[np.maximum(which, 0)] + rows * row_bytes)
        step = aligned(STEP_WORDS)
        step[STEP_KERNEL] = kernel
        per_slab = max(16, SLAB // max(1, row_bytes * 16))
        quants, scales = (n // matrix.groups for n in packed_bytes(matrix))
        for g in range(0, matrix.groups, per_slab):
            n = min(per_slab, matrix.groups - g)
            step[STEP_FIELDS : STEP_FIELDS + 5] = (
                int(addresses.ctypes.data) + g * 128, place[0] + g * quants, place[1] + g * scales, matrix.cols // 32, n,
            )  # fmt: skip
            self._run(int(step.ctypes.data))
            if n < matrix.groups:
                self._release_rows(
                    weights, matrix, which[g * 16 : (g + n) * 16], rows[g * 16 : (g + n) * 16], row_bytes
                )
        for part in matrix.parts:
            weights.release(part.tensor)

    def _release_rows(
        self, weights: Weights, matrix: Matrix, which: np.ndarray, rows: np.ndarray, row_bytes: int
    ) -> None:
        """Give back the pages of the rows of one slab."""
        for i, part in enumerate(matrix.parts):
            mine = rows[which == i]
            if len(mine):
                start, n = int(mine.min()), int(mine.max() - mine.min()) + 1
                weights.file.release(part.tensor, start * row_bytes, n * row_bytes)

    def close(self) -> None:
        """Forget the addresses; the memory goes with the last reference."""
        self.addresses.clear()
        self.vectors.clear()
