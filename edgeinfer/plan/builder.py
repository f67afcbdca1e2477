"""The verbs in which a model family is described. Each emits steps that are already fused; nothing is decided later.

One description yields every program: with phase "decode" (one token) each thread normalizes and quantizes for itself, which
saves the barrier; with phase "batch" the rows are shared out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from .fields import MODES
from .program import (
    KV,
    Buffer,
    File,
    Matrix,
    Norm,
    Operand,
    Packed,
    PageStride,
    Part,
    Program,
    Rope,
    Scratch,
    Step,
    Thread,
)

__all__ = ["Activations", "Builder", "Row", "tile_bytes"]

FLOATS = ("f32", "f16", "bf16")
WIDEST_TILE = 8
BLOCK = 256


def tile_bytes(cols: int, slots: int = 8) -> int:
    """Bytes of an activation tile: int8 values, scales, sums and half sums (see kernels/layout)."""
    return (cols + cols // 32 * 16) * slots


def _round(n: int, to: int = 64) -> int:
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


class Builder:
    """Collects steps for one phase. `facts(name)` describes a tensor or raises; `has(name)` says whether it exists."""

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

    # ---- verbs ------------------------------------------------------------------------------------------------------

    def embed(self, tensor: str, scale: float = 1.0) -> Row:
        """x = rows of the token table, times scale."""
        facts = self._matrix(tensor, cols=self.config.n_embd)
        x = self._row("x", self.config.n_embd)
        row_bytes = self._row_bytes(facts)
        self._emit(
            "embed", facts.format,
            dict(table=File(tensor), row_bytes=row_bytes, x=x.place(), x_stride=x.row_bytes, cols=x.cols, scale=float(scale)),
            f"x <- {tensor}", sync=True,
        )  # fmt: skip
        return x

    def norm(
        self, x: Row, weight: str | None, rows: str = "tokens", add: Row | None = None, add_weight: str | None = None
    ) -> Activations:
        """Root-mean-square norm of x, ready to be multiplied. With `add`: x += norm(add) * add_weight first."""
        cols = x.cols
        self._check_width(cols)
        fields: dict[str, Operand] = dict(
            x=x.place(), x_stride=x.row_bytes, weight=self._norm_weight(weight, cols), cols=cols, eps=self.config.rms_eps,
            acts=0, tile_bytes=tile_bytes(cols), out=0, out_stride=_round(cols * 4), rows=int(rows == "out"),
            private=int(self.phase == "decode"), tmp=Thread("tmp"), add=0, add_stride=0, add_weight=0, x_out=0,
        )  # fmt: skip
        if add is not None and add_weight is not None:
            # Into the other of two buffers: in the decode phase every thread writes the sum while others still read x.
            other = self._row("x2" if x.buffer == "x" else "x", cols)
            fields.update(
                add=add.place(),
                add_stride=add.row_bytes,
                add_weight=self._norm_weight(add_weight, cols),
                x_out=other.place(),
            )
        self._private("tmp", 64 + cols * 4)
        self._norm = self._emit("norm", "", fields, f"h <- {weight or 'quantize'}", sync=self.phase == "batch")
        return Activations(cols, rows)

    def added(self, x: Row) -> Row:
        """The row that the last `norm(..., add=...)` wrote: x after the addition."""
        return self._row("x2" if x.buffer == "x" else "x", x.cols)

    def linear(
        self, h: Activations, tensors: list[str], out: str | Row, mode: str = "store", pair_heads: list[int] | None = None,
    ) -> Row:  # fmt: skip
        """out = W h for tensors stacked side by side; a run of one format is one matrix. mode "add" adds to out."""
        heads = pair_heads or [0] * len(tensors)
        facts = [self._matrix(name, cols=h.cols) for name in tensors]
        total = sum(f.shape[0] for f in facts)
        y = self._row(out, total, rows=h.rows) if isinstance(out, str) else out
        start = 0
        i = 0
        while i < len(tensors):
            j = i + 1
            # A matrix whose rows fill whole groups may be followed by the next one of the same format.
            while j < len(tensors) and facts[j].format == facts[i].format and facts[j - 1].shape[0] % 16 == 0:
                j += 1
            parts = tuple(
                Part(tensors[k], facts[k].shape[0], heads[k], self.config.rope_dim if heads[k] else 0)
                for k in range(i, j)
            )
            matrix = Matrix(parts, h.cols, facts[i].format)
            if start % 16:
                raise UnsupportedModelError(
                    f"tensor {tensors[i]!r} starts at row {start} of a fused matrix; wanted a multiple of 16"
                )
            self._matmul(h, matrix, y.part(start, 0), mode, last=j == len(tensors))
            start += sum(part.n_rows for part in parts)
            i = j
        return y

    def gate_up(self, h: Activations, gate: str, up: str, act: str) -> Row:
        """out = act(gate h) * (up h), joined as the rows come out of the product."""
        a, b = self._matrix(gate, cols=h.cols), self._matrix(up, cols=h.cols)
        if a.shape != b.shape:
            raise UnsupportedModelError(f"tensors {gate!r} {a.shape} and {up!r} {b.shape} differ in shape")
        n = a.shape[0]
        y = self._row("ffn", n)
        if a.format == b.format:
            self._matmul(h, Matrix((Part(gate, n), Part(up, n)), h.cols, a.format, alternate=True), y, act, last=True)
        else:
            self._matmul(h, Matrix((Part(gate, n),), h.cols, a.format), y, "store", last=True)
            self._matmul(h, Matrix((Part(up, n),), h.cols, b.format), y, f"{act}_into", last=True)
        return y

    def rope_kv(self, k: Row, v: Row, layer_group: int, rope: Rope, norm: str | None = None) -> KV:
        """Rotated keys and values into the KV pages of the next layer of a group."""
        c = self.config
        kv = KV(layer_group, self._layers_of_group.get(layer_group, 0))
        self._layers_of_group[layer_group] = kv.index + 1
        self._private("tmp", c.head_dim * 6 + 128)
        self._emit(
            "rope_kv", self._kv_variant,
            dict(
                k=k.place(), k_stride=k.row_bytes, v=v.place(), rope=rope, head_dim=c.head_dim, rope_dim=rope.rope_dim,
                n_kv=c.n_head_kv, group=layer_group, base=kv, page_stride=PageStride(layer_group),
                norm=self._norm_weight(norm, c.head_dim), eps=c.rms_eps, tmp=Thread("tmp"),
            ),
            "pages <- k, v", sync=True,
        )  # fmt: skip
        return kv

    def attention(self, q: Row, kv: KV, rope: Rope, scale: float, window: int = 0, norm: str | None = None) -> Row:
        """out = softmax(q k scale) v over the sequence's pages; window 0 sees everything."""
        c = self.config
        out = self._row("attn", c.n_head * c.head_dim)
        tile = WIDEST_TILE * (32 + 4 * (c.head_dim + BLOCK + 2 * c.head_dim)) + 4 * c.head_dim + 256
        self._private("tmp", _round(tile))
        self._partial = max(self._partial, c.n_head * (16 + c.head_dim) * 4)
        fields: dict[str, Operand] = dict(
            q=q.place(), q_stride=q.row_bytes, out=out.place(), out_stride=out.row_bytes, n_head=c.n_head, n_kv=c.n_head_kv,
            head_dim=c.head_dim, rope=rope, rope_dim=rope.rope_dim, norm=self._norm_weight(norm, c.head_dim), eps=c.rms_eps,
            scale=float(scale), window=window, group=kv.group, base=kv, page_stride=PageStride(kv.group), tmp=Thread("tmp"),
            partial=0, softcap=float(c.attn_logit_softcap),
        )  # fmt: skip
        name = f"attn <- q, pages{f' (last {window})' if window else ''}"
        if self.phase == "decode":
            fields["partial"] = Scratch("partial")
            self._emit("attention_part", self._kv_variant, fields, name, sync=True)
            self._emit("attention_merge", "", fields, "attn <- blocks", sync=True)
        else:
            self._emit("attention", self._kv_variant, fields, name, sync=True)
        return out

    def quantize(self, x: Row) -> Activations:
        """x as it is, ready to be multiplied."""
        return self.norm(x, None)

    def logits(self, h: Activations, tensor: str) -> None:
        """The last product: rows that want logits."""
        self.linear(h, [tensor], "logits")
        cap = self.config.final_logit_softcap
        if cap:
            y = self._row("logits", self.config.n_vocab, rows="out")
            fields: dict[str, Operand] = dict(
                x=y.place(), x_stride=y.row_bytes, cols=self.config.n_vocab, cap=float(cap)
            )
            self._emit("softcap", "", fields, "logits <- cap", sync=True)

    def program(self) -> Program:
        """What has been described, complete."""
        return Program(self.phase, tuple(self._steps), dict(self._buffers), dict(self._thread), self._partial)

    # ---- pieces -----------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, variant: str, fields: dict[str, Operand], name: str, sync: bool = False) -> int:
        self._steps.append(Step(kind, variant, fields, name, sync))
        return len(self._steps) - 1

    def _row(self, name: str, cols: int, rows: str = "tokens") -> Row:
        row_bytes = _round(cols * 4)
        known = self._buffers.get(name)
        if known is not None:
            row_bytes = max(row_bytes, known.row_bytes)
        self._buffers[name] = Buffer(row_bytes, False, rows)
        return Row(name, cols, row_bytes)

    def _private(self, name: str, n_bytes: int) -> None:
        self._thread[name] = max(self._thread[name], _round(n_bytes))

    def _check_width(self, cols: int) -> None:
        if cols % 32:
            raise UnsupportedModelError(
                f"a row of {cols} values is multiplied; the native engine needs a multiple of 32"
            )

    def _matrix(self, name: str, cols: int) -> TensorFacts:
        facts = self._facts(name)
        if len(facts.shape) != 2 or facts.shape[1] != cols:
            raise UnsupportedModelError(f"tensor {name!r} has shape {facts.shape}; wanted rows of {cols}")
        return facts

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

    def _want(self, form: str, cols: int) -> Operand:
        """Ask the last norm step for its output as int8 tiles ("acts") or float32 ("h")."""
        if self._norm is None:
            raise UnsupportedModelError("a product without a norm before it")
        place: Operand
        if self.phase == "decode":
            place = Thread(form)
            self._private(form, tile_bytes(cols, 1) if form == "acts" else cols * 4)
        else:
            place = Scratch(form)
            size = tile_bytes(cols) if form == "acts" else _round(cols * 4)
            known = self._buffers.get(form)
            self._buffers[form] = Buffer(max(size, known.row_bytes if known else 0), form == "acts")
        step = self._steps[self._norm]
        field = "acts" if form == "acts" else "out"
        self._steps[self._norm] = replace(step, fields={**step.fields, field: place})
        return place

    def _matmul(self, h: Activations, matrix: Matrix, y: Row, mode: str, last: bool) -> None:
        common: dict[str, Operand] = dict(
            cols=h.cols, groups=matrix.groups, y=y.place(), y_stride=y.row_bytes, mode=MODES[mode], rows=int(h.rows == "out"),
            private=int(self.phase == "decode"), tmp=Thread("tmp"),
        )  # fmt: skip
        name = f"{y.buffer} <- h, {matrix.label}  {matrix.groups * 16}x{matrix.cols}{'' if mode == 'store' else ' ' + mode}"
        self._private("tmp", 4096)
        if matrix.format in FLOATS:
            common.update(weights=Packed(matrix, "quants"), h=self._want("h", h.cols), h_stride=_round(h.cols * 4))
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
