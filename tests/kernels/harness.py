"""Single kernels called on arrays: one library per instruction set, records of words, guarded memory.

A kernel's shares are run one after the other, as threads 0 .. nth-1 of a team would: within a step no thread waits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.formats import FORMATS, Format
from edgeinfer.plan.fields import FIELDS
from edgeinfer.plan.packing import packed_bytes
from edgeinfer.plan.program import Matrix, Part
from edgeinfer.runtime.isa import available
from edgeinfer.runtime.layout import (
    STATE_IDS,
    STATE_N,
    STATE_N_OUT,
    STATE_OUT_ROWS,
    STATE_THREAD,
    STATE_THREAD_STRIDE,
    STATE_WORDS,
    STEP_FIELDS,
    STEP_WORDS,
)
from edgeinfer.runtime.library import KernelLibrary
from edgeinfer.settings import settings

__all__ = ["ISAS", "SCALES", "Buffer", "Kernels", "kernels_of", "random_rows", "tiles"]

ISAS = [isa.name for isa in available()]
THREAD_BYTES = 1 << 20
# Where each type keeps its f16 scales; MXFP4 has an exponent in its first byte.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip


class Buffer:
    """n bytes that start on a cache line; bytes 0xA5 on both sides show a kernel that writes outside."""

    GUARD = 256

    def __init__(self, n_bytes: int, fill: int = 0):
        self._raw = np.full(n_bytes + 2 * self.GUARD + 64, 0xA5, np.uint8)
        start = -self._raw.ctypes.data % 64 + self.GUARD
        self.bytes = self._raw[start : start + n_bytes]
        self.bytes[:] = fill
        self.address = int(self.bytes.ctypes.data)
        self._around = (self._raw[:start], self._raw[start + n_bytes :])

    @classmethod
    def of(cls, array: NDArray[Any]) -> Buffer:
        """A buffer with an array's bytes."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer = cls(raw.size)
        buffer.bytes[:] = raw
        return buffer

    def check(self) -> None:
        """Fail when the surroundings have changed."""
        for side in self._around:
            assert (side == 0xA5).all(), "a kernel wrote outside its buffer"


class Kernels:
    """The kernels of one instruction set, as this machine is given them or with `asks` set."""

    def __init__(self, name: str, asks: bool | None = None):
        self.isa = next(isa for isa in available() if isa.name == name)
        if asks is not None:
            self.isa = replace(self.isa, asks=asks)
        self.library = KernelLibrary(self.isa, settings().cache)
        self.thread = Buffer(4 * THREAD_BYTES)

    def call(
        self, kind: str, variant: str, fields: Mapping[str, float], *, n: int = 0, n_out: int = 0, nth: int = 1,
        ids: Buffer | None = None, out_rows: Buffer | None = None,
    ) -> None:  # fmt: skip
        """Run a step of a kind on nth threads."""
        assert set(fields) == set(FIELDS[kind])
        step, state = Buffer(STEP_WORDS * 8), Buffer(STATE_WORDS * 8)
        words = step.bytes.view(np.int64)
        for i, name in enumerate(FIELDS[kind]):
            value = fields[name]
            words[STEP_FIELDS + i] = struct.unpack(
                "<q", struct.pack("<d" if isinstance(value, float) else "<q", value)
            )[0]
        call = state.bytes.view(np.int64)
        call[STATE_N], call[STATE_N_OUT] = n, n_out
        call[STATE_IDS] = ids.address if ids else 0
        call[STATE_OUT_ROWS] = out_rows.address if out_rows else 0
        call[STATE_THREAD], call[STATE_THREAD_STRIDE] = self.thread.address, THREAD_BYTES
        run = self.library.function(f"{kind}.{variant}" if variant else kind)
        for ith in range(nth):
            run(step.address, state.address, ith, nth)
        self.thread.check()

    def pack(self, fmt: Format, raw: NDArray[np.uint8], nth: int = 1) -> tuple[Buffer, Buffer]:
        """The file rows (rows, row bytes) as packed quants and scales."""
        cols = raw.shape[1] // fmt.block_bytes * fmt.block_size
        matrix = Matrix((Part("w", len(raw)),), cols, fmt.name.lower())
        quants, scales = (Buffer(n) for n in packed_bytes(matrix))
        file = Buffer.of(raw)
        rows = np.zeros(matrix.groups * 16, np.int64)
        rows[: len(raw)] = file.address + np.arange(len(raw)) * raw.shape[1]
        addresses = Buffer.of(rows)
        fields = {
            "rows": addresses.address, "quants": quants.address, "scales": scales.address, "blocks": cols // 32,
            "groups": matrix.groups,
        }  # fmt: skip
        self.call("pack", fmt.name.lower(), fields, nth=nth)
        for buffer in (quants, scales, file):
            buffer.check()
        return quants, scales


@cache
def kernels_of(name: str) -> Kernels:
    """The kernels of an instruction set by name, all that tests use compiled at once."""
    kernels = Kernels(name)
    steps = ("embed", "matmul", "matmul_float", "pack")
    floats = ("f32", "f16", "bf16")
    quants = tuple(fmt.name.lower() for fmt in FORMATS.values() if fmt.native and fmt.name.lower() not in floats)
    names = [f"matmul.{x}" for x in reversed(quants)] + [f"matmul_float.{x}" for x in floats]
    names += [f"{step}.{x}" for step in steps if step in ("embed", "pack") for x in (*floats, *quants)]
    kernels.library.ensure([*names, "norm", "softcap", "scan", "scan_merge", "logits.top_k"])
    return kernels


def random_rows(fmt: Format, rows: int, cols: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Rows of random bytes, every bit used, the scales finite and distinct: uint8 (rows, row bytes)."""
    n = rows * cols // fmt.block_size
    if fmt.block_size == 1:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        assert fmt.quantize is not None
        return fmt.quantize(values)
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)
    if fmt.name == "MXFP4":
        blocks[:, 0] = rng.integers(116, 124, n)
    for at in SCALES[fmt.name]:
        scale = rng.uniform(0.005, 0.02, n) * rng.choice([-1, 1], n)
        blocks[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def slots_for(n: int) -> int:
    """Slots of the tiles that hold n tokens."""
    return next(slots for slots in (1, 2, 4, 8) if slots >= min(n, 8))


def tiles(q: NDArray[np.int8], scales: NDArray[np.float32], slots: int) -> tuple[Buffer, int]:
    """int8 rows (n, cols) and scales (n, cols / 32) as activation tiles of `slots` tokens, and a tile's bytes.

    Slots without a token hold other values, as after an earlier call.
    """
    n, cols = q.shape
    nb = cols // 32
    count = -(-n // slots)
    padded = np.full((count * slots, cols), 77, np.int8)
    padded[:n] = q
    factors = np.full((count * slots, nb), 1e3, np.float32)
    factors[:n] = scales
    wide = padded.astype(np.int32)
    totals = wide.reshape(-1, nb, 32).sum(2)
    sums = np.stack([(-8 * totals).astype(np.int32), (totals * factors).astype(np.float32).view(np.int32)], axis=1)
    halves = -32 * wide.reshape(-1, 2 * nb, 16).sum(2)
    pieces = []
    for t in range(count):
        rows = slice(t * slots, (t + 1) * slots)
        quads = padded[rows].reshape(slots, cols // 4, 4).transpose(1, 0, 2)
        for piece in (quads, factors[rows].T, sums[rows].transpose(2, 1, 0), halves[rows].T.astype(np.int32)):
            pieces.append(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
    buffer = Buffer.of(np.concatenate(pieces))
    return buffer, buffer.bytes.size // count
