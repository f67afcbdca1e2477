"""What a program is made of: operands, packed matrices, steps. Pure data; nothing here computes.

An operand is a place: a word that the linker turns into an address or offset. Numbers are written as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "KV", "Bias", "Buffer", "File", "Matrix", "Norm", "Operand", "Packed", "PageStride", "Part", "Program", "Rope",
    "Scratch", "Step", "Thread", "Yarn",
]  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Rows of one tensor. With pair_heads > 0 each head's rotated rows go from neighbouring pairs to half-split order.

    A tensor of three dimensions (the experts of a layer) counts as its matrices one below the other.
    """

    tensor: str
    n_rows: int
    pair_heads: int = 0
    pair_dim: int = 0  # how many leading rows of a head are rotated
    first: int = 0  # the row of the tensor that it begins with
    bias: str = ""  # tensor of what is added to each row of the tensor, from row 0 on


@dataclass(frozen=True)
class Matrix:
    """Tensors packed as one matrix: stacked, or (alternate) 16 rows of the first, 16 of the second, and so on."""

    parts: tuple[Part, ...]
    cols: int
    format: str  # lower-case format name: picks the pack and matmul kernels
    alternate: bool = False

    @property
    def groups(self) -> int:
        """Groups of 16 rows."""
        if self.alternate:
            return sum(-(-part.n_rows // 16) for part in self.parts)
        return -(-sum(part.n_rows for part in self.parts) // 16)

    @property
    def label(self) -> str:
        """A short name for listings."""
        return "+".join(part.tensor.removesuffix(".weight") for part in self.parts)


@dataclass(frozen=True)
class Packed:
    """One stream of a packed matrix: "quants" or "scales"."""

    matrix: Matrix
    stream: str


@dataclass(frozen=True)
class Bias:
    """What a packed matrix adds to its rows: float32 (groups * 16,) in packed order, 0 for padding and parts without."""

    matrix: Matrix


@dataclass(frozen=True)
class Norm:
    """A float32 copy of a small tensor."""

    tensor: str
    transposed: bool = False  # of two dimensions: columns first


@dataclass(frozen=True)
class File:
    """A tensor's bytes in the mapped file."""

    tensor: str


@dataclass(frozen=True)
class Yarn:
    """Between these numbers of turns within n_ctx_orig positions, YaRN goes over from undivided to divided angles."""

    n_ctx_orig: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Rope:
    """A table of cosines and sines (n_ctx, rope_dim) for a base frequency, positions divided by `divisor`; see `rotary`."""

    base: float
    rope_dim: int
    divisor: float = 1.0
    factors: str = ""  # tensor of per-frequency divisors
    long_factors: str = ""  # the tensor that takes its place in contexts of more than n_ctx_short positions
    n_ctx_short: int = 0
    yarn: Yarn | None = None
    magnitude: float = 1.0  # of cosines and sines, so that of a score is its square
    temperature: float = (
        0.0  # queries grow by 1 + temperature ln(1 + floor(position / temperature_n_ctx)); 0: they do not
    )
    temperature_n_ctx: int = 1

    def factors_at(self, n_ctx: int) -> str:
        """The tensor of divisors for a context of n_ctx positions, "" for none."""
        return self.long_factors if self.long_factors and n_ctx > self.n_ctx_short else self.factors


@dataclass(frozen=True)
class KV:
    """The first page of a layer's K and V in the pool of its group."""

    group: int
    index: int  # the layer's number within its group


@dataclass(frozen=True)
class PageStride:
    """Bytes from a KV page of a layer to the next one of the same layer."""

    group: int


@dataclass(frozen=True)
class Scratch:
    """A lane's buffer: float32 (rows, cols) or activation tiles, at an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Thread:
    """An offset in each thread's private memory."""

    name: str


Operand: TypeAlias = "int | float | Packed | Bias | Norm | File | Rope | KV | PageStride | Scratch | Thread"


@dataclass(frozen=True)
class Step:
    """One kernel call. `sync` asks for a barrier after it."""

    kind: str
    variant: str  # the weight format, or ""
    fields: Mapping[str, Operand]
    name: str  # for people
    sync: bool = False

    @property
    def kernel(self) -> str:
        """The kernel's name in the library."""
        return f"{self.kind}.{self.variant}" if self.variant else self.kind


@dataclass(frozen=True)
class Buffer:
    """A scratch buffer's size: bytes per token row, or per tile of 8 tokens."""

    row_bytes: int
    per_tile: bool = False
    rows: str = "tokens"  # "tokens" or "out": how many rows it needs


@dataclass(frozen=True)
class Program:
    """What one forward computes, in order; the same weights serve every program of a model."""

    phase: str  # "decode": one token; "batch": any number
    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]
    thread_bytes: Mapping[str, int]  # private memory regions by name
    partial_bytes: int  # decode: bytes of partial attention results per block of 256 positions
    logits: Scratch = field(default=Scratch("logits"))

    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels it calls."""
        return tuple(dict.fromkeys(step.kernel for step in self.steps))

    def matrices(self) -> tuple[Matrix, ...]:
        """The packed matrices, in the order of first use."""
        found = (o.matrix for step in self.steps for o in step.fields.values() if isinstance(o, Packed))
        return tuple(dict.fromkeys(found))

    def listing(self) -> str:
        """The program for people: number, barrier mark, kernel, what it makes from what."""
        lines = []
        for i, step in enumerate(self.steps):
            lines.append(f"{i:03d}{'*' if step.sync else ' '} {step.kernel:<18} {step.name}")
        return "\n".join(lines)
