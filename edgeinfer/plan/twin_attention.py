"""The NumPy twins of attention and of the KV cache: plain softmax over the positions that a token sees, in float64."""

from __future__ import annotations

import numpy as np

from .program import Step
from .twin_memory import Array, Call, Floats, Memory, Outputs, number, rms_normalized, softcapped

__all__ = ["attend", "attend_parts", "attended", "cached", "merge_parts", "parts", "write_kv"]

BLOCK = 256  # absolute positions that are summed as one unit


def _rotated(x: Floats, table: Array) -> Floats:
    """Turn heads (n, heads, head_dim) by the rows (n, rope_dim) of a rotary table; values past rope_dim stay."""
    half = table.shape[1] // 2
    cos, sin = table[:, None, :half].astype(np.float64), table[:, None, half:].astype(np.float64)
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half :]], axis=-1)


def _heads(step: Step, call: Call, memory: Memory, name: str, count: int) -> Floats:
    """Heads (n, count, head_dim) of q or k: normalized where the step has a norm, and rotated."""
    f, head_dim = step.fields, number(step, "head_dim")
    x: Floats = memory.floats(f[name], call.n, number(step, f"{name}_stride"), count * head_dim).astype(np.float64)
    x = x.reshape(call.n, count, head_dim)
    if f["norm"] != 0:
        x = rms_normalized(x, memory.vector(f["norm"]), number(step, "eps"))
    return _rotated(x, memory.rotation(f["rope"], call.positions)) if f["rope"] != 0 else x


# ---- keys and values into the cache ---------------------------------------------------------------------------------


def write_kv(step: Step, call: Call, memory: Memory) -> Outputs:
    """k = rope(norm(k)) and v at each token's position, to f16."""
    n_kv, head_dim = number(step, "n_kv"), number(step, "head_dim")
    v = memory.floats(step.fields["v"], call.n, number(step, "k_stride"), n_kv * head_dim)
    return {"k": _heads(step, call, memory, "k", n_kv), "v": v.reshape(call.n, n_kv, head_dim).astype(np.float64)}


def cached(step: Step, call: Call, memory: Memory) -> Outputs:
    """What the cache holds at each token's position."""
    n_kv, head_dim = number(step, "n_kv"), number(step, "head_dim")
    k, v = np.zeros((2, call.n, n_kv, head_dim))
    for slot in np.unique(call.slots):
        rows = np.flatnonzero(call.slots == slot)
        positions = call.positions[rows]
        keys, values = memory.cache(step.fields["base"], int(slot), int(positions.max()) + 1, n_kv, head_dim)
        k[rows], v[rows] = keys[positions], values[positions]
    return {"k": k, "v": v}


# ---- attention ------------------------------------------------------------------------------------------------------


def _scores(step: Step, call: Call, memory: Memory, q: Floats, row: int) -> tuple[Floats, Floats, int]:
    """Of one token: scores (n_head, seen), values (seen, n_head, head_dim), and the first position that it sees."""
    n_head, n_kv, head_dim = number(step, "n_head"), number(step, "n_kv"), number(step, "head_dim")
    window, cap, group = number(step, "window"), number(step, "softcap"), n_head // n_kv
    end = int(call.positions[row]) + 1
    first = max(0, end - window) if window else 0
    keys, values = memory.cache(step.fields["base"], int(call.slots[row]), end, n_kv, head_dim)
    k = np.repeat(keys[first:].astype(np.float64), group, axis=1)
    v = np.repeat(values[first:].astype(np.float64), group, axis=1)
    scores: Floats = np.einsum("hd,phd->hp", q[row] * number(step, "scale"), k)
    return softcapped(scores, cap) if cap else scores, v, first


def attend(step: Step, call: Call, memory: Memory) -> Outputs:
    """out = softmax(q k scale) v for every token and head."""
    q = _heads(step, call, memory, "q", number(step, "n_head"))
    out = np.zeros((call.n, q[0].size))
    for row in range(call.n):
        scores, v, _ = _scores(step, call, memory, q, row)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[row] = np.einsum("hp,phd->hd", e / e.sum(axis=1, keepdims=True), v).reshape(-1)
    return {"out": out}


def attended(step: Step, call: Call, memory: Memory) -> Outputs:
    """What stands at `out`."""
    cols = number(step, "n_head") * number(step, "head_dim")
    return {"out": memory.floats(step.fields["out"], call.n, number(step, "out_stride"), cols)}


def _visible(step: Step, call: Call) -> tuple[int, int]:
    """The first block that the call's one token sees and the number of blocks."""
    end, window = int(call.positions[0]) + 1, number(step, "window")
    first = max(0, end - window) // BLOCK if window else 0
    return first, -(-end // BLOCK) - first


def attend_parts(step: Step, call: Call, memory: Memory) -> Outputs:
    """One token: of each block the largest score m, l = sum of e^(s - m), o = sum of e^(s - m) v."""
    n_head, n_kv, head_dim = number(step, "n_head"), number(step, "n_kv"), number(step, "head_dim")
    q = _heads(step, call, memory, "q", n_head)
    scores, v, first = _scores(step, call, memory, q, 0)
    start, blocks = _visible(step, call)
    m, total = np.zeros((n_head, blocks)), np.zeros((n_head, blocks))
    o = np.zeros((n_head, blocks, head_dim))
    for block in range(blocks):
        low = max(0, (start + block) * BLOCK - first)
        part = slice(low, (start + block + 1) * BLOCK - first)
        m[:, block] = scores[:, part].max(axis=1)
        e = np.exp(scores[:, part] - m[:, block, None])
        total[:, block] = e.sum(axis=1)
        o[:, block] = np.einsum("hp,phd->hd", e, v[part])

    def by_kv_head(x: Floats) -> Floats:
        return np.moveaxis(x.reshape(n_kv, n_head // n_kv, *x.shape[1:]), 1, 2)

    return {"m": by_kv_head(m), "l": by_kv_head(total), "o": by_kv_head(o)}


def parts(step: Step, call: Call, memory: Memory) -> Outputs:
    """What stands at `partial`: m and l (n_kv, blocks, group) and o (n_kv, blocks, group, head_dim)."""
    n_head, n_kv, head_dim = number(step, "n_head"), number(step, "n_kv"), number(step, "head_dim")
    x = memory.partials(step.fields["partial"], n_kv, _visible(step, call)[1], n_head // n_kv, head_dim)
    return {"m": x[..., 0], "l": x[..., 1], "o": x[..., 16:]}


def merge_parts(step: Step, call: Call, memory: Memory) -> Outputs:
    """out = sum of e^(m - top) o / sum of e^(m - top) l over the blocks."""
    x = {name: array.astype(np.float64) for name, array in parts(step, call, memory).items()}
    weight = np.exp(x["m"] - x["m"].max(axis=1, keepdims=True))
    out = (weight[..., None] * x["o"]).sum(axis=1) / (weight * x["l"]).sum(axis=1)[..., None]
    return {"out": out.reshape(1, -1)}
