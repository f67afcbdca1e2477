"""The fields of each kind of step, in the order in which native code reads them. The kinds are the vocabulary of a program."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "ATTENTION",
    "EXPERTS",
    "FIELDS",
    "MODES",
    "SCAN_BLOCK",
    "SCAN_WORDS",
    "SWEEP_HEADS",
    "SWEEP_SLOTS",
    "indices",
]

# Attention takes that many tiles of one KV head, and so many heads of a tile, through the KV pages together.
SWEEP_SLOTS, SWEEP_HEADS = 32, 8
SCAN_BLOCK, SCAN_WORDS = 4096, 4
STEP_FIELDS = 2  # words 0 and 1 of a step are the kernel's address and the barrier flag

ATTENTION = (
    "q", "q_stride", "out", "out_stride", "n_head", "n_kv", "head_dim", "rope", "rope_dim", "norm", "eps", "scale", "window",
    "group", "base", "page_stride", "tmp", "partial", "softcap",
)  # fmt: skip

# acts: int8 tiles, or float32 rows tile_bytes apart; cols: of one expert; groups: of 16 rows of one expert
EXPERTS = (
    "quants", "scales", "acts", "tile_bytes", "cols", "groups", "y", "y_stride", "route", "route_stride", "k", "private",
    "tmp",
)  # fmt: skip

# x: float32 rows; acts: int8 activations in tiles; strides are bytes from a token's row to the next token's.
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # x[t] = table[id[t]] * scale, rows dequantized straight from the mapped file
        "embed": ("table", "row_bytes", "x", "x_stride", "cols", "scale"),
        # optional: x' = x + rms(add) * add_weight; then h = rms(x') * weight (weight 0: h = x'), times scale, and times
        # sigmoid(gate[t]) where there is a gate; then int8 and/or float32 h
        "norm": (
            "x", "x_stride", "weight", "cols", "eps", "acts", "tile_bytes", "out", "out_stride", "rows", "private", "tmp",
            "add", "add_stride", "add_weight", "x_out", "scale", "gate", "gate_stride",
        ),
        # y = W h + bias for int8 h; mode: store, add to y, or join gate and up rows (16 of each, alternating)
        "matmul": (
            "quants", "scales", "acts", "tile_bytes", "cols", "groups", "y", "y_stride", "mode", "rows", "private", "tmp",
            "bias",
        ),
        # the same for float weights and float32 h
        "matmul_float": (
            "weights", "h", "h_stride", "cols", "groups", "y", "y_stride", "mode", "rows", "private", "tmp", "bias",
        ),
        # k = rope(norm(k)) and v into the pages of the token's sequence
        "rope_kv": (
            "k", "k_stride", "v", "rope", "head_dim", "rope_dim", "n_kv", "group", "base", "page_stride", "norm", "eps", "tmp",
        ),
        "attention": ATTENTION,
        # decode only: blocks of 256 positions shared among the threads, then merged in ascending order
        "attention_part": ATTENTION,
        "attention_merge": ATTENTION,
        # the k largest of a token's router logits: int32 ids, then their float32 weights by softmax
        "route": ("logits", "logits_stride", "n_expert", "k", "normalize", "scale", "out", "out_stride", "private", "tmp"),
        # of each chosen expert: y[t, j] = silu(gate h) * (up h)
        "experts_up": EXPERTS,
        # y[t] += sum over j of weight[t, j] * (down y[t, j])
        "experts_down": EXPERTS,
        # bx = b x; out = c * (sum over j of weight[j] bx[t - width + 1 + j]); bx into the pages of the token's sequence
        "short_conv": (
            "x", "x_stride", "out", "out_stride", "cols", "width", "weight", "group", "base", "page_stride", "ring", "tmp",
        ),
        # at load: file rows into groups of 16; `rows` is the address of their addresses, 0 for a padding row
        "pack": ("rows", "quants", "scales", "blocks", "groups"),
        # x = cap * tanh(x / cap) on rows that want logits
        "softcap": ("x", "x_stride", "cols", "cap"),
        # of each SCAN_BLOCK logits of such a row, SCAN_WORDS float32: where the largest is, its value, 1 if all are finite
        "scan": ("x", "x_stride", "cols", "out", "out_stride"),
        # of each such row, three float32: the block of the largest, its place there, and 1 if all blocks are finite
        "scan_merge": ("found", "found_stride", "blocks", "out", "out_stride"),
    }
)  # fmt: skip

# What a product does with its rows: store them, add to what is there, join alternating groups of gate and up rows as
# act(gate) * up, or (into) join with gate rows that stand in y already.
MODES = MappingProxyType({"store": 0, "add": 1, "silu": 2, "gelu": 3, "silu_into": 4, "gelu_into": 5})


def indices(kind: str, names: str) -> tuple[int, ...]:
    """The word numbers of a kind's fields; `names` must spell them in order, so that a reader and this table cannot part."""
    wanted = tuple(names.split())
    if wanted != FIELDS[kind]:
        raise ValueError(f"step kind {kind!r} has the fields {FIELDS[kind]}, its kernel expects {wanted}")
    return tuple(range(STEP_FIELDS, STEP_FIELDS + len(wanted)))
