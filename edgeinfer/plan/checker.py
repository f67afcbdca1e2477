"""The proof that a program is sound before it runs: every field is there, and no thread reads what another may be writing.

Within a step each thread writes its own share. So a shared buffer that a step wrote must not be read, or written again, by a
later step without a barrier between; nor may a buffer be overwritten while another thread may still be reading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import EngineError
from .fields import FIELDS
from .program import KV, Program, Scratch, Step

__all__ = ["check_program"]

# Fields of each kind that are read and written; the others are numbers, weights or private memory.
_READS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": (), "norm": ("x", "add", "gate"), "matmul": ("acts",), "matmul_float": ("h",), "rope_kv": ("k", "v"),
        "attention": ("q", "base"), "attention_part": ("q", "base"), "attention_merge": ("partial",), "softcap": ("x",),
        "scan": ("x",), "scan_merge": ("found",),
        "route": ("logits",), "experts_up": ("acts", "route"), "experts_down": ("acts", "route"), "short_conv": ("x", "base"),
    }
)  # fmt: skip
_WRITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": ("x",), "norm": ("acts", "out", "x_out"), "matmul": ("y",), "matmul_float": ("y",), "rope_kv": ("base",),
        "attention": ("out",), "attention_part": ("partial",), "attention_merge": ("out",), "softcap": ("x",),
        "scan": ("out",), "scan_merge": ("out",),
        "route": ("out",), "experts_up": ("y",), "experts_down": ("y",), "short_conv": ("out", "base"),
    }
)  # fmt: skip


def _places(step: Step, names: tuple[str, ...]) -> set[object]:
    """The shared places among a step's fields. A buffer is one place per start, so q, k and v may be written side by side."""
    found: set[object] = set()
    for name in names:
        operand = step.fields[name]
        if isinstance(operand, Scratch):
            found.add((operand.name, operand.offset))
        elif isinstance(operand, KV):
            found.add(operand)
    return found


def _overlap(a: set[object], b: set[object], exact: bool) -> bool:
    """Whether two sets of places meet; unless `exact`, any two starts in one buffer do."""
    if exact:
        return bool(a & b)
    names = {p[0] if isinstance(p, tuple) else p for p in a}
    return any((p[0] if isinstance(p, tuple) else p) in names for p in b)


def check_program(program: Program) -> Program:
    """Return the program, or raise EngineError naming the first step that is not sound."""
    written: set[object] = set()
    read: set[object] = set()
    for number, step in enumerate(program.steps):
        where = f"program {program.phase!r}, step {number} ({step.kernel}: {step.name})"
        fields = FIELDS.get(step.kind)
        if fields is None or step.kind not in _READS:
            raise EngineError(f"{where}: unknown kind")
        if set(fields) != set(step.fields):
            raise EngineError(f"{where}: fields differ from the kind's: {sorted(set(fields) ^ set(step.fields))}")
        reads, writes = _places(step, _READS[step.kind]), _places(step, _WRITES[step.kind])
        for operand in step.fields.values():
            if isinstance(operand, Scratch) and operand.name not in (*program.buffers, "partial"):
                raise EngineError(f"{where}: buffer {operand.name!r} has no size")
        private = step.kind == "norm" and step.fields["private"] == 1  # every thread writes the same values for itself
        if _overlap(written, reads, exact=False):
            raise EngineError(
                f"{where}: reads what another thread may still be writing; a barrier is missing before it"
            )
        if not private and (_overlap(written, writes, exact=True) or _overlap(read, writes, exact=False)):
            raise EngineError(
                f"{where}: overwrites what another thread may still be using; a barrier is missing before it"
            )
        if step.sync:
            written, read = set(), set()
        else:
            # A private norm's sum is written alike by all, and each thread reads what it wrote itself.
            written |= set() if private else writes
            read |= reads - writes
    return program
