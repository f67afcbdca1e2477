"""The NumPy twins of expert layers and of short convolutions."""

from __future__ import annotations

import numpy as np

from .packing import KV_PAGE
from .program import Packed, Step
from .twin_memory import Array, Call, Floats, Memory, Outputs, number, silu

__all__ = ["chosen", "convolve", "convolved", "experts_down", "experts_up", "joined", "route", "summed"]

BLOCK = 32
FLOATS = ("f32", "f16", "bf16")


# ---- which experts --------------------------------------------------------------------------------------------------


def route(step: Step, call: Call, memory: Memory) -> Outputs:
    """The k largest logits of each token, the lowest number among equals, and their share of the softmax over all."""
    k, n_expert = number(step, "k"), number(step, "n_expert")
    logits = memory.floats(step.fields["logits"], call.n, number(step, "logits_stride"), n_expert).astype(np.float64)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights = np.take_along_axis(e / e.sum(axis=1, keepdims=True), ids, axis=1)
    if number(step, "normalize"):
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 2.0**-14)
    return {"ids": ids, "weights": weights * number(step, "scale")}


def _routes(step: Step, call: Call, memory: Memory, place: str, stride: str) -> tuple[Array, Floats]:
    k = number(step, "k")
    rows = memory.floats(step.fields[place], call.n, number(step, stride), 2 * k)
    return np.ascontiguousarray(rows[:, :k]).view(np.int32).astype(np.int64), rows[:, k:]


def chosen(step: Step, call: Call, memory: Memory) -> Outputs:
    """What the routes say."""
    ids, weights = _routes(step, call, memory, "out", "out_stride")
    return {"ids": ids, "weights": weights}


# ---- products -------------------------------------------------------------------------------------------------------


def _activations(step: Step, call: Call, memory: Memory, cols: int) -> Floats:
    """The step's input (n, cols), in float64."""
    f, stride = step.fields, number(step, "tile_bytes")
    if step.variant in FLOATS:
        return np.asarray(memory.floats(f["acts"], call.n, stride, cols), np.float64)
    acts = memory.quantized(f["acts"], call.n, stride, cols)
    h: Floats = acts.q.astype(np.float64) * np.repeat(acts.scales.astype(np.float64), BLOCK, axis=1)
    return h


def _expert_rows(step: Step, memory: Memory) -> Floats:
    """The weights (experts, rows, cols), rows in packed order."""
    packed = step.fields["quants"]
    if not isinstance(packed, Packed):
        raise TypeError(f"{step.name}: the weights are {packed!r}")
    w = memory.matrix(packed.matrix).astype(np.float64)
    return w.reshape(-1, number(step, "groups") * 16, w.shape[1])


def experts_up(step: Step, call: Call, memory: Memory) -> Outputs:
    """y[t, j] = silu(gate h) * (up h) for each expert of a token; gate rows alternate with up rows by 16."""
    h, w = _activations(step, call, memory, number(step, "cols")), _expert_rows(step, memory)
    ids, _ = _routes(step, call, memory, "route", "route_stride")
    y = np.einsum("tjrc,tc->tjr", w[ids], h)
    pairs = y.reshape(call.n, -1, 2, 16)
    return {"y": (silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(call.n, -1)}


def joined(step: Step, call: Call, memory: Memory) -> Outputs:
    """What the experts of each token left, side by side."""
    cols = number(step, "k") * number(step, "groups") * 8
    return {"y": memory.floats(step.fields["y"], call.n, number(step, "y_stride"), cols)}


def experts_down(step: Step, call: Call, memory: Memory) -> Outputs:
    """y[t] += sum over j of weight[t, j] * (down f[t, j])."""
    k, cols = number(step, "k"), number(step, "cols")
    f, w = _activations(step, call, memory, k * cols).reshape(call.n, k, cols), _expert_rows(step, memory)
    ids, weights = _routes(step, call, memory, "route", "route_stride")
    there = summed(step, call, memory)["y"].astype(np.float64)
    return {"y": there + np.einsum("tj,tjrc,tjc->tr", weights.astype(np.float64), w[ids], f)}


def summed(step: Step, call: Call, memory: Memory) -> Outputs:
    """What stands at `y`."""
    return {"y": memory.floats(step.fields["y"], call.n, number(step, "y_stride"), number(step, "groups") * 16)}


# ---- short convolution ----------------------------------------------------------------------------------------------


def _kept(step: Step, call: Call) -> Array:
    """Rows whose value of bx is still in its page after the call: the last `ring` of each page and run."""
    ring = number(step, "ring")
    last: dict[tuple[int, int], int] = {}
    for slot, position in zip(call.slots, call.positions, strict=True):
        page = (int(slot), int(position) // KV_PAGE)
        last[page] = max(int(position), last.get(page, 0))
    keep = [p > last[int(s), int(p) // KV_PAGE] - ring for s, p in zip(call.slots, call.positions, strict=True)]
    return np.flatnonzero(keep)


def convolve(step: Step, call: Call, memory: Memory) -> Outputs:
    """out = c * sum over j of weight[j] bx[t - width + 1 + j]; what came before the call is read from the pages."""
    f, cols, width = step.fields, number(step, "cols"), number(step, "width")
    x = memory.floats(f["x"], call.n, number(step, "x_stride"), 3 * cols).astype(np.float64)
    bx = x[:, :cols] * x[:, 2 * cols :]
    weight = memory.vector(f["weight"]).astype(np.float64)  # (width, cols)
    out = np.zeros((call.n, cols))
    for slot in np.unique(call.slots):
        rows = np.flatnonzero(call.slots == slot)
        first = int(call.positions[rows[0]])
        before = np.arange(first - width + 1, first)
        past = np.zeros((width - 1, cols))
        if (before >= 0).any():
            there = before[before >= 0]
            past[before >= 0] = memory.ring(f["base"], int(slot), there, number(step, "ring"), cols)
        line = np.concatenate([past, bx[rows]])
        out[rows] = sum(line[j : j + len(rows)] * weight[j] for j in range(width))
    return {"out": x[:, cols : 2 * cols] * out, "bx": bx[_kept(step, call)]}


def convolved(step: Step, call: Call, memory: Memory) -> Outputs:
    """What stands at `out` and in the pages."""
    f, cols = step.fields, number(step, "cols")
    kept = _kept(step, call)
    bx = [
        memory.ring(f["base"], int(call.slots[i]), call.positions[i : i + 1], number(step, "ring"), cols)[0]
        for i in kept
    ]
    return {"out": memory.floats(f["out"], call.n, number(step, "out_stride"), cols), "bx": np.array(bx)}
