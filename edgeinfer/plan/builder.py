"""The verbs in which a model family is described. Each emits steps that are already fused; nothing is decided later.

One description yields every program: with phase "decode" (one token) each thread normalizes and quantizes for itself, which
saves the barrier; with phase "batch" the rows are shared out. A bias that the file holds beside a matrix is added by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UnsupportedModelError
from .draft import FLOATS, Activations, Draft, Row, TensorFacts, rounded, tile_bytes
from .fields import SCAN_BLOCK, SCAN_WORDS, SWEEP_HEADS, SWEEP_SLOTS
from .packing import CONV_RING
from .program import KV, Buffer, File, Matrix, Norm, Operand, Packed, PageStride, Part, Rope, Scratch, Thread

__all__ = ["Activations", "Builder", "Routes", "Row", "TensorFacts", "tile_bytes"]

WIDEST_TILE = 8
BLOCK = 256


@dataclass(frozen=True)
class Routes:
    """The k experts of each token and their weights: int32 (k,), float32 (k,)."""

    place: Operand
    row_bytes: int
    k: int


class Builder(Draft):
    """Collects steps for one phase."""

    # ---- rows -------------------------------------------------------------------------------------------------------

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
        self, x: Row, weight: str | None, rows: str = "tokens", add: Row | None = None, add_weight: str | None = None,
        scale: float = 1.0, gate: Row | None = None,
    ) -> Activations:  # fmt: skip
        """Root-mean-square norm of x, ready to be multiplied. With `add`: x += norm(add) * add_weight first.

        The result is multiplied by `scale`, and by the sigmoid of the one number of `gate`.
        """
        cols = x.cols
        self._check_width(cols)
        fields = self._norm_fields(x, weight, scale)
        fields.update(
            tile_bytes=tile_bytes(cols),
            out_stride=rounded(cols * 4),
            rows=int(rows == "out"),
            private=int(self.private),
        )
        if gate is not None:
            fields.update(gate=gate.place(), gate_stride=gate.row_bytes)
        if add is not None and add_weight is not None:
            # Into the other of two buffers: in the decode phase every thread writes the sum while others still read x.
            other = self._row("x2" if x.buffer == "x" else "x", cols)
            fields.update(
                add=add.place(),
                add_stride=add.row_bytes,
                add_weight=self._norm_weight(add_weight, cols),
                x_out=other.place(),
            )
        self._norm = self._emit("norm", "", fields, f"h <- {weight or 'quantize'}", sync=not self.private)
        return Activations(cols, rows)

    def _norm_fields(self, x: Row, weight: str | None, scale: float = 1.0) -> dict[str, Operand]:
        self._private("tmp", x.cols * 4)
        return dict(
            x=x.place(), x_stride=x.row_bytes, weight=self._norm_weight(weight, x.cols), cols=x.cols, eps=self.config.rms_eps,
            acts=0, tile_bytes=0, out=0, out_stride=0, rows=0, private=0, tmp=Thread("tmp"), add=0, add_stride=0,
            add_weight=0, x_out=0, scale=float(scale), gate=0, gate_stride=0,
        )  # fmt: skip

    def norm_in_place(self, x: Row, weight: str) -> None:
        """x = norm(x): a whole row that is not multiplied next, such as all heads of q."""
        fields = self._norm_fields(x, weight)
        fields.update(out=x.place(), out_stride=x.row_bytes)
        self._emit("norm", "", fields, f"{x.buffer} <- {weight}", sync=True)

    def added(self, x: Row) -> Row:
        """The row that the last `norm(..., add=...)` wrote: x after the addition."""
        return self._row("x2" if x.buffer == "x" else "x", x.cols)

    def quantize(self, x: Row, scale: float = 1.0, gate: Row | None = None) -> Activations:
        """x as it is (times scale, times sigmoid(gate)), ready to be multiplied."""
        return self.norm(x, None, scale=scale, gate=gate)

    # ---- products ---------------------------------------------------------------------------------------------------

    def linear(
        self, h: Activations, tensors: Sequence[str | Part], out: str | Row, mode: str = "store",
        pair_heads: list[int] | None = None,
    ) -> Row:  # fmt: skip
        """out = W h for tensors stacked side by side; a run of one format is one matrix. mode "add" adds to out."""
        heads = pair_heads or [0] * len(tensors)
        parts = [t if isinstance(t, Part) else self._part(t, h.cols, n) for t, n in zip(tensors, heads, strict=True)]
        formats = [self._matrix(part.tensor, h.cols).format for part in parts]
        y = self._row(out, sum(p.n_rows for p in parts), rows=h.rows) if isinstance(out, str) else out
        start = 0
        i = 0
        while i < len(parts):
            j = i + 1
            # A matrix whose rows fill whole groups may be followed by the next one of the same format.
            while j < len(parts) and formats[j] == formats[i] and parts[j - 1].n_rows % 16 == 0:
                j += 1
            if start % 16:
                raise UnsupportedModelError(
                    f"tensor {parts[i].tensor!r} starts at row {start} of a fused matrix; wanted a multiple of 16"
                )
            self._matmul(h, Matrix(tuple(parts[i:j]), h.cols, formats[i]), y.part(start, 0), mode, last=j == len(parts))
            start += sum(part.n_rows for part in parts[i:j])
            i = j
        return y

    def qkv(self, h: Activations, block: str, neighbours: bool) -> tuple[Row, Row, Row]:
        """q, k and v side by side, from three tensors or one; `neighbours` says that the file's rotary pairs are neighbours."""
        c = self.config
        sizes = [c.n_head * c.head_dim, c.n_head_kv * c.head_dim, c.n_head_kv * c.head_dim]
        heads = [c.n_head, c.n_head_kv, 0] if neighbours else [0, 0, 0]
        fused = f"{block}.attn_qkv.weight"
        tensors: list[str | Part] = [f"{block}.attn_{part}.weight" for part in "qkv"]
        starts = [0, sizes[0], sizes[0] + sizes[1]]
        if self.has(fused):
            tensors = [self._part(fused, h.cols, *of) for of in zip(heads, starts, sizes, strict=True)]
            wanted = {fused: sum(sizes)}
        else:
            wanted = {str(t): n for t, n in zip(tensors, sizes, strict=True)}
        for name, n in wanted.items():
            if self._matrix(name, h.cols).shape[0] != n:
                raise UnsupportedModelError(
                    f"tensor {name!r} has {self._matrix(name, h.cols).shape[0]} rows; wanted {n}, by the head counts"
                )
        y = self.linear(h, tensors, "qkv", pair_heads=heads)
        q, k, v = (y.part(start, size) for start, size in zip(starts, sizes, strict=True))
        return q, k, v

    def gate_up(self, h: Activations, gate: str | Part, up: str | Part, act: str) -> Row:
        """out = act(gate h) * (up h), joined as the rows come out of the product."""
        a, b = (t if isinstance(t, Part) else self._part(t, h.cols) for t in (gate, up))
        n = a.n_rows
        if n != b.n_rows:
            raise UnsupportedModelError(f"tensors {a.tensor!r} and {b.tensor!r} differ in rows: {n} and {b.n_rows}")
        y = self._row("ffn", n)
        formats = [self._matrix(part.tensor, h.cols).format for part in (a, b)]
        if formats[0] == formats[1]:
            self._matmul(h, Matrix((a, b), h.cols, formats[0], alternate=True), y, act, last=True)
        else:
            self._matmul(h, Matrix((a,), h.cols, formats[0]), y, "store", last=True)
            self._matmul(h, Matrix((b,), h.cols, formats[1]), y, f"{act}_into", last=True)
        return y

    def halves(self, tensor: str, cols: int) -> tuple[Part, Part]:
        """The upper and the lower half of a matrix, such as gate and up in one tensor."""
        n = self._matrix(tensor, cols).shape[0]
        if n % 2:
            raise UnsupportedModelError(f"tensor {tensor!r} has {n} rows; wanted an even number, it holds gate and up")
        return self._part(tensor, cols, 0, 0, n // 2), self._part(tensor, cols, 0, n // 2, n // 2)

    def logits(self, h: Activations, tensor: str) -> None:
        """The last product, of rows that want logits, and the largest logit of each."""
        logits = self.linear(h, [tensor], "logits")
        n = self.config.n_tokens or self.config.n_vocab  # padding rows of the table have no token
        cap = self.config.final_logit_softcap
        if cap:
            self._emit(
                "softcap", "", dict(x=logits.place(), x_stride=logits.row_bytes, cols=logits.cols, cap=float(cap)),
                "logits <- cap", sync=True,
            )  # fmt: skip
        n_blocks = -(-n // SCAN_BLOCK)
        found = self._row("found", n_blocks * SCAN_WORDS, rows="out")
        best = self._row("best", 3, rows="out")
        self._emit(
            "scan", "",
            dict(
                x=logits.place(), x_stride=logits.row_bytes, cols=n, out=found.place(), out_stride=found.row_bytes,
            ),
            "found <- the largest of each block of logits", sync=True,
        )  # fmt: skip
        self._emit(
            "scan_merge", "",
            dict(
                found=found.place(), found_stride=found.row_bytes, blocks=n_blocks, out=best.place(), out_stride=best.row_bytes,
            ),
            "best <- the largest of found", sync=True,
        )  # fmt: skip

    # ---- experts ----------------------------------------------------------------------------------------------------

    def route(self, h: Activations, tensor: str, k: int, normalize: bool, scale: float = 1.0) -> Routes:
        """The k experts with the largest logits, weighted by softmax over all; `normalize` makes the k weights sum to 1."""
        n = self.config.n_expert
        logits = self.linear(h, [tensor], "router")
        if logits.cols != n or not 1 <= k <= n:
            raise UnsupportedModelError(f"tensor {tensor!r} has {logits.cols} rows for {n} experts, {k} of them used")
        row_bytes = rounded(8 * k)
        place: Operand = Thread("route") if self.private else Scratch("route")
        if self.private:
            self._private("route", row_bytes)
        else:
            self._buffers["route"] = Buffer(row_bytes)
        self._private("tmp", n + 64)
        self._emit(
            "route", "",
            dict(
                logits=logits.place(), logits_stride=logits.row_bytes, n_expert=n, k=k, normalize=int(normalize),
                scale=float(scale), out=place, out_stride=row_bytes, private=int(self.private), tmp=Thread("tmp"),
            ),
            f"route <- the best {k} of {n}", sync=not self.private,
        )  # fmt: skip
        return Routes(place, row_bytes, k)

    def experts_up(self, h: Activations, routes: Routes, gate: str, up: str) -> Row:
        """out[t] = silu(gate h) * (up h) of each of the token's experts, side by side."""
        a, b = self._experts(gate, h.cols), self._experts(up, h.cols)
        if a != b:
            raise UnsupportedModelError(f"tensors {gate!r} and {up!r} differ in type or shape; wanted two of one kind")
        n = a.shape[0] * a.shape[1]
        y = self._row("experts", routes.k * a.shape[1])
        self._expert_step(
            "experts_up", h, routes, Matrix((Part(gate, n), Part(up, n)), h.cols, a.format, alternate=True), y, h.cols
        )
        return y

    def experts_down(self, f: Row, routes: Routes, down: str, x: Row) -> None:
        """x += weighted sum over the token's experts of down f."""
        cols = f.cols // routes.k
        facts = self._experts(down, cols)
        if facts.shape[1] != x.cols:
            raise UnsupportedModelError(f"tensor {down!r} has shape {facts.shape}; wanted {x.cols} rows an expert")
        matrix = Matrix((Part(down, facts.shape[0] * facts.shape[1]),), cols, facts.format)
        self._expert_step("experts_down", self.quantize(f), routes, matrix, x, cols)

    def _expert_step(self, kind: str, h: Activations, routes: Routes, matrix: Matrix, y: Row, cols: int) -> None:
        floats = matrix.format in FLOATS
        self._check_width(cols)
        self._private("tmp", 4096)
        self._emit(
            kind, matrix.format,
            dict(
                quants=Packed(matrix, "quants"), scales=0 if floats else Packed(matrix, "scales"),
                acts=self._want("h" if floats else "acts", h.cols),
                tile_bytes=rounded(h.cols * 4) if floats else tile_bytes(h.cols), cols=cols,
                groups=matrix.groups // self.config.n_expert, y=y.place(), y_stride=y.row_bytes, route=routes.place,
                route_stride=routes.row_bytes, k=routes.k, private=int(self.private), tmp=Thread("tmp"),
            ),
            f"{y.buffer} <- h, {matrix.label}  {matrix.groups * 16}x{matrix.cols}", sync=True,
        )  # fmt: skip

    # ---- what looks back --------------------------------------------------------------------------------------------

    def _next_layer(self, group: int) -> KV:
        kv = KV(group, self._layers_of_group.get(group, 0))
        self._layers_of_group[group] = kv.index + 1
        return kv

    def rope_kv(self, k: Row, v: Row, layer_group: int, rope: Rope | None, norm: str | None = None) -> KV:
        """Rotated keys and values into the KV pages of the next layer of a group; without `rope` keys stay as they are."""
        c = self.config
        kv = self._next_layer(layer_group)
        self._private("tmp", c.head_dim * 6 + 128)
        self._emit(
            "rope_kv", self._kv_variant,
            dict(
                k=k.place(), k_stride=k.row_bytes, v=v.place(), rope=rope or 0, head_dim=c.head_dim,
                rope_dim=rope.rope_dim if rope else 0, n_kv=c.n_head_kv, group=layer_group, base=kv,
                page_stride=PageStride(layer_group), norm=self._norm_weight(norm, c.head_dim), eps=c.rms_eps, tmp=Thread("tmp"),
            ),
            "pages <- k, v", sync=True,
        )  # fmt: skip
        return kv

    def attention(
        self, q: Row, kv: KV, rope: Rope | None, scale: float, window: int = 0, norm: str | None = None
    ) -> Row:
        """out = softmax(q k scale) v over the sequence's pages; window 0 sees everything."""
        c = self.config
        out = self._row("attn", c.n_head * c.head_dim)
        slots = SWEEP_SLOTS * (WIDEST_TILE * (32 + 4 * 2 * c.head_dim))
        scores = SWEEP_HEADS * WIDEST_TILE * 4 * (BLOCK + c.head_dim)
        self._private("tmp", rounded(slots + scores + 4 * c.head_dim + 256))
        self._partial = max(self._partial, c.n_head * (16 + c.head_dim) * 4)
        fields: dict[str, Operand] = dict(
            q=q.place(), q_stride=q.row_bytes, out=out.place(), out_stride=out.row_bytes, n_head=c.n_head, n_kv=c.n_head_kv,
            head_dim=c.head_dim, rope=rope or 0, rope_dim=rope.rope_dim if rope else 0,
            norm=self._norm_weight(norm, c.head_dim), eps=c.rms_eps, scale=float(scale), window=window, group=kv.group,
            base=kv, page_stride=PageStride(kv.group), tmp=Thread("tmp"), partial=0, softcap=float(c.attn_logit_softcap),
        )  # fmt: skip
        name = f"attn <- q, pages{f' (last {window})' if window else ''}"
        if self.private:
            fields["partial"] = Scratch("partial")
            self._emit("attention_part", self._kv_variant, fields, name, sync=True)
            self._emit("attention_merge", "", fields, "attn <- blocks", sync=True)
        else:
            self._emit("attention", self._kv_variant, fields, name, sync=True)
        return out

    def short_conv(self, bcx: Row, weight: str, layer_group: int) -> Row:
        """out = c * (causal convolution of b * x), for b, c and x side by side in a row."""
        c = self.config
        cols, width = bcx.cols // 3, c.conv_width
        facts = self._facts(weight)
        if facts.shape != (cols, width) or cols != c.n_embd:
            raise UnsupportedModelError(f"tensor {weight!r} has shape {facts.shape}; wanted ({c.n_embd}, {width})")
        out = self._row("conv", cols)
        self._private("tmp", 64 * width)
        self._emit(
            "short_conv", "",
            dict(
                x=bcx.place(), x_stride=bcx.row_bytes, out=out.place(), out_stride=out.row_bytes, cols=cols, width=width,
                weight=Norm(weight, transposed=True), group=layer_group, base=self._next_layer(layer_group),
                page_stride=PageStride(layer_group), ring=CONV_RING, tmp=Thread("tmp"),
            ),
            f"conv <- bcx, pages, {weight.removesuffix('.weight')}", sync=True,
        )  # fmt: skip
        return out
