"""What verbs are built from: buffers with their sizes, packed matrices, and steps in order. Knows no verb and no family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from .fields import MODES
from .program import Bias, Buffer, Matrix, Norm, Operand, Packed, Part, Program, Scratch, Step, Thread

__all__ = ["FLOATS", "Activations", "Draft", "Row", "TensorFacts", "rounded", "tile_bytes"]

FLOATS = ("f32", "f16", "bf16")


def tile_bytes(cols: int, slots: int = 8) -> int:
    """Bytes of an activation tile: int8 values, scales, sums of both kinds and half sums (see kernels/layout)."""
    return (cols + cols // 32 * 20) * slots


def rounded(n: int, to: int = 64) -> int:
    """n, or the next multiple of `to`."""
    return -(-n // to) * to


@dataclass(frozen=True)
class Row:
    """A float32 buffer (rows, cols) and a column to start at."""

    buffer: str
    cols: int
    row_bytes: int
    start: int = 0

    def place(self) -> Scratch:
        """The operand that stands for its first value."""
        return Scratch(self.buffer, self.start * 4)

    def part(self, start: int, cols: int) -> Row:
        """Some of its columns."""
        return replace(self, start=self.start + start, cols=cols)


@dataclass(frozen=True)
class Activations:
    """A normalized row in the forms that its readers want: int8 tiles and float32."""

    cols: int
    rows: str  # "tokens" or "out"


@dataclass(frozen=True)
class TensorFacts:
    """What the builder must know of a tensor: its format's name in lower case and its shape, rows first."""

    format: str
    shape: tuple[int, ...]


class Draft:
    """A program in the making, for one phase. `facts(name)` describes a tensor or raises, `has(name)` says if it exists."""

    def __init__(
        self,
        config: ModelConfig,
        phase: str,
        facts: Callable[[str], TensorFacts],
        has: Callable[[str], bool],
        kv_type: str = "f16",
    ):
        if kv_type != "f16" and config.head_dim % 32:
            raise UnsupportedModelError(
                f"KV type {kv_type} needs a head size that is a multiple of 32, not {config.head_dim}"
            )
        self.config = config
        self._kv_type = kv_type
        self._kv_variant = "" if kv_type == "f16" else kv_type
        self.phase = phase
        self.has = has
        self._facts = facts
        self._steps: list[Step] = []
        self._buffers: dict[str, Buffer] = {}
        self._thread: dict[str, int] = {"acts": 0, "h": 0, "tmp": 4096}
        self._partial = 0
        self._norm: int | None = None  # the step whose output forms are still open
        self._layers_of_group: dict[int, int] = {}

    @property
    def private(self) -> bool:
        """Whether each thread prepares what it multiplies for itself: with one token that saves the barrier."""
        return self.phase == "decode"

    def program(self) -> Program:
        """What has been described, complete."""
        return Program(self.phase, tuple(self._steps), dict(self._buffers), dict(self._thread), self._partial)

    # ---- steps and buffers ------------------------------------------------------------------------------------------

    def _emit(self, kind: str, variant: str, fields: dict[str, Operand], name: str, sync: bool = False) -> int:
        self._steps.append(Step(kind, variant, fields, name, sync))
        return len(self._steps) - 1

    def _row(self, name: str, cols: int, rows: str = "tokens") -> Row:
        row_bytes = rounded(cols * 4)
        known = self._buffers.get(name)
        if known is not None:
            row_bytes = max(row_bytes, known.row_bytes)
        self._buffers[name] = Buffer(row_bytes, False, rows)
        return Row(name, cols, row_bytes)

    def _private(self, name: str, n_bytes: int) -> None:
        self._thread[name] = max(self._thread.get(name, 0), rounded(n_bytes))

    def _check_width(self, cols: int) -> None:
        if cols % 32:
            raise UnsupportedModelError(
                f"a row of {cols} values is multiplied; the native engine needs a multiple of 32"
            )

    # ---- weights ----------------------------------------------------------------------------------------------------

    def _matrix(self, name: str, cols: int) -> TensorFacts:
        facts = self._facts(name)
        if facts.shape == (cols,):  # one row
            return replace(facts, shape=(1, cols))
        if len(facts.shape) != 2 or facts.shape[1] != cols:
            raise UnsupportedModelError(f"tensor {name!r} has shape {facts.shape}; wanted rows of {cols}")
        return facts

    def _experts(self, name: str, cols: int) -> TensorFacts:
        """The facts of a tensor that holds a matrix for each expert."""
        facts = self._facts(name)
        n = self.config.n_expert
        if len(facts.shape) != 3 or facts.shape[0] != n or facts.shape[2] != cols:
            raise UnsupportedModelError(
                f"tensor {name!r} has shape {facts.shape}; wanted {n} matrices of rows of {cols}"
            )
        if facts.shape[1] % 16:
            raise UnsupportedModelError(
                f"tensor {name!r} has experts of {facts.shape[1]} rows; the native engine needs a multiple of 16"
            )
        return facts

    def _part(self, tensor: str, cols: int, heads: int = 0, first: int = 0, n_rows: int = 0) -> Part:
        """Rows of a tensor, all of them or n_rows from `first` on, with its bias where the file has one."""
        n = self._matrix(tensor, cols).shape[0]
        bias = tensor.removesuffix(".weight") + ".bias"
        if not tensor.endswith(".weight") or not self.has(bias):
            bias = ""
        elif self._facts(bias).shape != (n,):
            raise UnsupportedModelError(f"tensor {bias!r} has shape {self._facts(bias).shape}; wanted ({n},)")
        return Part(tensor, n_rows or n, heads, self.config.rope_dim if heads else 0, first, bias)

    def _row_bytes(self, facts: TensorFacts) -> int:
        from ..formats import by_name

        return by_name(facts.format).n_bytes(facts.shape[1])

    def _norm_weight(self, tensor: str | None, cols: int) -> Operand:
        if tensor is None:
            return 0
        facts = self._facts(tensor)
        if facts.shape != (cols,):
            raise UnsupportedModelError(f"tensor {tensor!r} has shape {facts.shape}; wanted ({cols},)")
        return Norm(tensor)

    # ---- products ---------------------------------------------------------------------------------------------------

    def _want(self, form: str, cols: int) -> Operand:
        """Ask the last norm step for its output as int8 tiles ("acts") or float32 ("h")."""
        if self._norm is None:
            raise UnsupportedModelError("a product without a norm before it")
        place: Operand
        if self.private:
            place = Thread(form)
            self._private(form, tile_bytes(cols, 1) if form == "acts" else cols * 4)
        else:
            place = Scratch(form)
            size = tile_bytes(cols) if form == "acts" else rounded(cols * 4)
            known = self._buffers.get(form)
            self._buffers[form] = Buffer(max(size, known.row_bytes if known else 0), form == "acts")
        step = self._steps[self._norm]
        field = "acts" if form == "acts" else "out"
        self._steps[self._norm] = replace(step, fields={**step.fields, field: place})
        return place

    def _matmul(self, h: Activations, matrix: Matrix, y: Row, mode: str, last: bool) -> None:
        common: dict[str, Operand] = dict(
            cols=h.cols, groups=matrix.groups, y=y.place(), y_stride=y.row_bytes, mode=MODES[mode], rows=int(h.rows == "out"),
            private=int(self.private), tmp=Thread("tmp"), bias=Bias(matrix) if any(p.bias for p in matrix.parts) else 0,
        )  # fmt: skip
        name = f"{y.buffer} <- h, {matrix.label}  {matrix.groups * 16}x{matrix.cols}{'' if mode == 'store' else ' ' + mode}"
        self._private("tmp", 4096)
        if matrix.format in FLOATS:
            common.update(weights=Packed(matrix, "quants"), h=self._want("h", h.cols), h_stride=rounded(h.cols * 4))
            self._emit("matmul_float", matrix.format, common, name, sync=last)
        else:
            common.update(
                quants=Packed(matrix, "quants"), scales=Packed(matrix, "scales"), acts=self._want("acts", h.cols),
                tile_bytes=tile_bytes(h.cols),
            )  # fmt: skip
            # Room to unpack a group (a pair of groups when gate and up are joined) to bytes.
            pair = 2 if matrix.alternate else 1
            self._private("tmp", 2048 + pair * (h.cols // 32) * (512 + 192))
            self._emit("matmul", matrix.format, common, name, sync=last)
