"""Each kind of step in NumPy: its meaning, in float64, without layouts, tiles or threads.

`expected` computes what a step should leave behind from what its inputs hold; `found` reads what is there. Both see memory
only through the `Memory` protocol, so a program can be checked step by step against any engine that shows its places.
Must not know addresses, numba or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from .fields import MODES, SCAN_BLOCK, SCAN_WORDS
from .program import File, Packed, Step
from .twin_attention import attend, attend_parts, attended, cached, merge_parts, parts, write_kv
from .twin_experts import chosen, convolve, convolved, experts_down, experts_up, joined, route, summed
from .twin_memory import Array, Call, Floats, Memory, Outputs, number, rms_normalized, silu, softcapped

__all__ = ["TWINS", "Call", "Memory", "Outputs", "expected", "found", "quantize"]

BLOCK = 32  # values that share a scale


def quantize(h: Floats) -> tuple[Floats, Floats]:
    """Rows (n, cols) as whole numbers -127 .. 127 (n, cols) and scales (n, cols / 32), so that h is about q * scale."""
    blocks = h.reshape(len(h), h.shape[1] // BLOCK, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    inverse = np.divide(127.0, largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(blocks * inverse[..., None]).reshape(h.shape), largest / 127.0


def _rows(step: Step, call: Call) -> Array:
    """The token rows that a step works on: those that want logits, or all."""
    return call.out_rows if step.fields["rows"] else np.arange(call.n)


# ---- embed ----------------------------------------------------------------------------------------------------------


def _embed(step: Step, call: Call, memory: Memory) -> Outputs:
    """x[t] = table[id[t]] * scale."""
    table = step.fields["table"]
    if not isinstance(table, File):
        raise TypeError(f"{step.name}: the table is {table!r}")
    return {"x": memory.table(table, call.ids).astype(np.float64) * number(step, "scale")}


def _embedded(step: Step, call: Call, memory: Memory) -> Outputs:
    f = step.fields
    return {"x": memory.floats(f["x"], call.n, number(step, "x_stride"), number(step, "cols"))}


# ---- norm -----------------------------------------------------------------------------------------------------------


def _norm(step: Step, call: Call, memory: Memory) -> Outputs:
    """x' = x + rms(add) * add_weight where there is an `add`; h = rms(x') * weight * factor; h as float32 and as int8."""
    f = step.fields
    rows, cols, eps = _rows(step, call), number(step, "cols"), number(step, "eps")
    x: Floats = memory.floats(f["x"], call.n, number(step, "x_stride"), cols)[rows].astype(np.float64)
    result: dict[str, Array] = {}
    if f["add"] != 0:
        other = memory.floats(f["add"], call.n, number(step, "add_stride"), cols)[rows]
        x = result["x_out"] = x + rms_normalized(other, memory.vector(f["add_weight"]), eps)
    h = rms_normalized(x, memory.vector(f["weight"]), eps) if f["weight"] != 0 else x
    h = h * number(step, "scale")
    if f["gate"] != 0:
        gate = memory.floats(f["gate"], call.n, number(step, "gate_stride"), 1)[rows].astype(np.float64)
        h = h / (1.0 + np.exp(-gate))
    if f["out"] != 0:
        result["out"] = h
    if f["acts"] != 0:
        result["q"], result["scales"] = quantize(h)
    return result


def _normed(step: Step, call: Call, memory: Memory) -> Outputs:
    f = step.fields
    rows, cols = _rows(step, call), number(step, "cols")
    result: dict[str, Array] = {}
    if f["add"] != 0:
        result["x_out"] = memory.floats(f["x_out"], call.n, number(step, "x_stride"), cols)[rows]
    if f["out"] != 0:
        result["out"] = memory.floats(f["out"], len(rows), number(step, "out_stride"), cols)
    if f["acts"] != 0:
        acts = memory.quantized(f["acts"], len(rows), number(step, "tile_bytes"), cols)
        result.update(q=acts.q, scales=acts.scales)
    return result


# ---- matmul ---------------------------------------------------------------------------------------------------------


def _gelu(x: Floats) -> Floats:
    z = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
    y: Floats = 0.5 * x * (1.0 + np.tanh(z))
    return y


_ACTS = {MODES["silu"]: silu, MODES["gelu"]: _gelu, MODES["silu_into"]: silu, MODES["gelu_into"]: _gelu}
_ALTERNATE = (MODES["silu"], MODES["gelu"])


def _finish(step: Step, call: Call, memory: Memory, h: Floats, packed: object) -> Outputs:
    """y = W h (+ bias); or y + W h; or act(gate h) * (up h), the gate rows alternating with up rows by 16, or standing in y."""
    if not isinstance(packed, Packed):
        raise TypeError(f"{step.name}: the weights are {packed!r}")
    y = h @ memory.matrix(packed.matrix).astype(np.float64).T
    if step.fields["bias"] != 0:
        y = y + memory.bias(step.fields["bias"]).astype(np.float64)
    mode = number(step, "mode")
    if mode == MODES["store"]:
        return {"y": y}
    if mode in _ALTERNATE:
        pairs = y.reshape(len(y), -1, 2, 16)
        return {"y": (_ACTS[mode](pairs[:, :, 0]) * pairs[:, :, 1]).reshape(len(y), -1)}
    there = _multiplied(step, call, memory)["y"].astype(np.float64)
    return {"y": there + y if mode == MODES["add"] else _ACTS[mode](there) * y}


def _matmul(step: Step, call: Call, memory: Memory) -> Outputs:
    """y = W h for int8 h."""
    f = step.fields
    acts = memory.quantized(f["acts"], len(_rows(step, call)), number(step, "tile_bytes"), number(step, "cols"))
    h = acts.q.astype(np.float64) * np.repeat(acts.scales.astype(np.float64), BLOCK, axis=1)
    return _finish(step, call, memory, h, f["quants"])


def _matmul_float(step: Step, call: Call, memory: Memory) -> Outputs:
    """y = W h for float32 h."""
    f = step.fields
    h = memory.floats(f["h"], len(_rows(step, call)), number(step, "h_stride"), number(step, "cols"))
    return _finish(step, call, memory, h.astype(np.float64), f["weights"])


def _multiplied(step: Step, call: Call, memory: Memory) -> Outputs:
    cols = number(step, "groups") * 16
    if number(step, "mode") in _ALTERNATE:
        cols //= 2
    return {"y": memory.floats(step.fields["y"], len(_rows(step, call)), number(step, "y_stride"), cols)}


# ---- softcap --------------------------------------------------------------------------------------------------------


def _capped(step: Step, call: Call, memory: Memory) -> Outputs:
    rows, stride, cols = len(call.out_rows), number(step, "x_stride"), number(step, "cols")
    return {"x": memory.floats(step.fields["x"], rows, stride, cols)}


def _softcap(step: Step, call: Call, memory: Memory) -> Outputs:
    """x = cap tanh(x / cap) in place."""
    return {"x": softcapped(_capped(step, call, memory)["x"], number(step, "cap"))}


# ---- scan -----------------------------------------------------------------------------------------------------------


def _scanned(step: Step, call: Call, memory: Memory) -> Outputs:
    n_blocks = -(-number(step, "cols") // SCAN_BLOCK)
    cols = n_blocks * SCAN_WORDS
    rows = memory.floats(step.fields["out"], len(call.out_rows), number(step, "out_stride"), cols)
    return {"out": rows.reshape(len(rows), n_blocks, SCAN_WORDS)[:, :, :3]}  # the last word is not used


def _scan(step: Step, call: Call, memory: Memory) -> Outputs:
    """Of each block of logits: where the first of the largest is, its value, and whether all are finite."""
    cols = number(step, "cols")
    rows = memory.floats(step.fields["x"], len(call.out_rows), number(step, "x_stride"), cols)
    blocks = [rows[:, start : start + SCAN_BLOCK] for start in range(0, cols, SCAN_BLOCK)]
    out = [[b.argmax(axis=1), b.max(axis=1), np.isfinite(b).all(axis=1)] for b in blocks]
    return {"out": np.array(out, np.float64).transpose(2, 0, 1)}


def _merged(step: Step, call: Call, memory: Memory) -> Outputs:
    return {"out": memory.floats(step.fields["out"], len(call.out_rows), number(step, "out_stride"), 3)}


def _merge(step: Step, call: Call, memory: Memory) -> Outputs:
    """Of each row: the block of the first of the largest, where it is there, and whether all blocks are finite."""
    n, cols = number(step, "blocks"), number(step, "blocks") * SCAN_WORDS
    rows = memory.floats(step.fields["found"], len(call.out_rows), number(step, "found_stride"), cols)
    found = rows.reshape(len(rows), n, SCAN_WORDS).astype(np.float64)
    best = found[:, :, 1].argmax(axis=1)
    return {"out": np.stack([best, found[np.arange(len(rows)), best, 0], found[:, :, 2].min(axis=1)], axis=1)}


# ---- all kinds ------------------------------------------------------------------------------------------------------

Twin = Callable[[Step, Call, Memory], Outputs]

# kind -> (what it should leave behind, what is there)
TWINS: Mapping[str, tuple[Twin, Twin]] = MappingProxyType(
    {
        "embed": (_embed, _embedded),
        "norm": (_norm, _normed),
        "matmul": (_matmul, _multiplied),
        "matmul_float": (_matmul_float, _multiplied),
        "rope_kv": (write_kv, cached),
        "attention": (attend, attended),
        "attention_part": (attend_parts, parts),
        "attention_merge": (merge_parts, attended),
        "softcap": (_softcap, _capped),
        "scan": (_scan, _scanned),
        "scan_merge": (_merge, _merged),
        "route": (route, chosen),
        "experts_up": (experts_up, joined),
        "experts_down": (experts_down, summed),
        "short_conv": (convolve, convolved),
    }
)


def expected(step: Step, call: Call, memory: Memory) -> Outputs:
    """What a step should leave behind, by name, computed from what its inputs hold now: call it before the step runs."""
    return TWINS[step.kind][0](step, call, memory)


def found(step: Step, call: Call, memory: Memory) -> Outputs:
    """What is there now at the places that a step writes, by the same names."""
    return TWINS[step.kind][1](step, call, memory)
