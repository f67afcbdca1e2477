"""What the NumPy twins see of an engine: the tokens of a call, and places read as arrays. Must not know addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .program import File, Matrix, Operand, Step

__all__ = [
    "Array",
    "Call",
    "Floats",
    "Memory",
    "Outputs",
    "Quantized",
    "number",
    "rms_normalized",
    "silu",
    "softcapped",
]

Array = NDArray[Any]
Floats = NDArray[np.floating[Any]]
Outputs = Mapping[str, Array]  # by name: "x", "x_out", "q", "scales", "out", "y", "k", "v", "m", "l", "o"


@dataclass(frozen=True)
class Call:
    """The tokens of one forward, all int64."""

    ids: Array  # (n,)
    positions: Array  # (n,)
    slots: Array  # (n,) sequence slots
    out_rows: Array  # (n_out,) rows that want logits

    @property
    def n(self) -> int:
        """Tokens in the call."""
        return len(self.ids)


@dataclass(frozen=True)
class Quantized:
    """Rows of int8 activations."""

    q: Array  # int8 (rows, cols)
    scales: Array  # float32 (rows, cols / 32)


class Memory(Protocol):
    """Places of a running program, read as arrays that the caller may keep."""

    def floats(self, place: Operand, rows: int, stride: int, cols: int) -> Array:
        """The float32 rows (rows, cols) that start `stride` bytes apart at a place."""

    def quantized(self, place: Operand, rows: int, tile_bytes: int, cols: int) -> Quantized:
        """The int8 activations (rows, cols) at a place; tiles are tile_bytes apart."""

    def matrix(self, matrix: Matrix) -> Array:
        """The dequantized rows (groups * 16, cols) of a packed matrix, in packed order, zeros for padding."""

    def vector(self, norm: Operand) -> Array:
        """A small tensor's float32 values, transposed where the operand says so."""

    def bias(self, bias: Operand) -> Array:
        """What a packed matrix adds to its rows (groups * 16,), in packed order."""

    def ring(self, kv: Operand, slot: int, positions: Array, ring: int, cols: int) -> Array:
        """What a short convolution keeps (n, cols) of some of the last positions of a sequence's pages."""

    def table(self, table: File, ids: Array) -> Array:
        """The dequantized rows (n, cols) of the token table."""

    def rotation(self, rope: Operand, positions: Array) -> Array:
        """The rotary table's rows (n, rope_dim): cosines, then sines."""

    def cache(self, kv: Operand, slot: int, n: int, n_kv: int, head_dim: int) -> tuple[Array, Array]:
        """Keys and values, each (n, n_kv, head_dim), of the first n positions of a sequence in one layer."""

    def partials(self, place: Operand, n_kv: int, blocks: int, group: int, head_dim: int) -> Array:
        """The decode phase's partial sums (n_kv, blocks, group, 16 + head_dim): m, l, 14 unused, then o."""


def number(step: Step, name: str) -> Any:
    """A field that is a plain number."""
    value = step.fields[name]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{step.name}: field {name!r} is {value!r}; wanted a number")
    return value


def rms_normalized(x: Floats, weight: Array, eps: float) -> Floats:
    """x * weight / sqrt(mean(x^2) + eps) over the last axis, in float64."""
    wide = x.astype(np.float64)
    result: Floats = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps) * weight.astype(np.float64)
    return result


def silu(x: Floats) -> Floats:
    """x / (1 + e^-x)."""
    y: Floats = x / (1.0 + np.exp(np.minimum(-x, 80.0)))
    return y


def softcapped(x: Array, cap: float) -> Floats:
    """cap tanh(x / cap), in float64."""
    result: Floats = cap * np.tanh(x.astype(np.float64) / cap)
    return result
