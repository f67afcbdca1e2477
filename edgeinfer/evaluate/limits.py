"""The two limits of a machine for a loaded model: reading memory bounds decode, the dot product bounds prefill."""

from __future__ import annotations

from typing import Any

from ..plan.packing import KV_PAGE
from ..plan.program import Packed, Program
from .bandwidth import ReadLoop, TokenBytes, token_bytes
from .peak import PeakLoop

__all__ = ["Limits", "macs_per_token"]


def macs_per_token(program: Program) -> int:
    """Multiplications of weights with int8 activations that each prompt token takes; the output matrix is left out,
    which only the last one meets, and so are attention and float weights."""
    total = 0
    for step in program.steps:
        if step.kind != "matmul" or step.fields.get("rows"):
            continue
        for operand in step.fields.values():
            if isinstance(operand, Packed) and operand.stream == "quants":
                total += operand.matrix.groups * 16 * operand.matrix.cols
    return total


class Limits:
    """Measured anew whenever asked, so that they can take turns with what is held against them."""

    def __init__(self, traffic: TokenBytes, macs: int, reading: ReadLoop, peak: PeakLoop) -> None:
        self.traffic, self.macs = traffic, macs
        self._reading, self._peak = reading, peak

    @classmethod
    def of(cls, engine: Any, n_threads: int) -> Limits | None:
        """The limits of a native engine; None for an engine that has no kernels of ours."""
        if not hasattr(engine, "packed_memory"):
            return None
        kv = [(pool.group.n_layer * pool.page_bytes // KV_PAGE, pool.group.window) for pool in engine.kv.pools]
        start, n_bytes = engine.packed_memory()
        return cls(
            token_bytes(engine.weights_file, engine.config, kv),
            macs_per_token(engine.programs["batch"]),
            ReadLoop(engine.library, start, n_bytes, n_threads),
            PeakLoop(engine.library, n_threads),
        )

    def bandwidth(self) -> float:
        """Bytes per second that a read loop over the packed weights reaches now."""
        return self._reading.measure()

    def peak(self) -> float:
        """int8 operations per second that a loop of the dot-product instruction reaches now."""
        return self._peak.measure()

    def mbu(self, tok_s: float, n_past: float, bandwidth: float) -> float:
        """Bytes that tokens at n_past must read per second / bandwidth."""
        return self.traffic.at(n_past) * tok_s / bandwidth

    def of_peak(self, tok_s: float, peak: float) -> float:
        """int8 operations of the weights' products per second / peak."""
        return 2 * self.macs * tok_s / peak

    def close(self) -> None:
        """Give the loops' threads back."""
        self._reading.close()
        self._peak.close()
