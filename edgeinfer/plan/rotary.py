"""Rotary tables: which angle turns which pair of dimensions at a position, with every kind of context scaling.

    angle(p, i) = p base^(-2i / rope_dim) / factor[i] / divisor        linear (Chen et al., 2023), llama3 and longrope factors
    yarn        mixes the divided and the undivided angle by a ramp over i (Peng et al., 2023)
    the table   cos(angle) and sin(angle), times `magnitude`, and times a temperature that grows with p (Ministral 3)

Pure NumPy; must not know a kernel, a file or a thread.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .program import Rope, Yarn

__all__ = ["frequencies", "rotary_rows", "yarn_magnitude"]

Floats = NDArray[np.float64]


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's growth of the scores with the context's stretch: 0.1 weight ln(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _ramp(yarn: Yarn, rope: Rope) -> Floats:
    """How much of the undivided angle each pair keeps, 1 to 0: those that turn often within the original context all of it."""

    def pair_of(turns: float) -> float:
        return rope.rope_dim * math.log(yarn.n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(pair_of(yarn.beta_fast)))
    high = min(rope.rope_dim - 1.0, math.ceil(pair_of(yarn.beta_slow)))
    steps = np.arange(rope.rope_dim // 2, dtype=np.float64)
    return 1.0 - np.clip((steps - low) / max(0.001, high - low), 0.0, 1.0)


def frequencies(rope: Rope, factors: NDArray[np.float32] | None = None) -> Floats:
    """Angle of each pair at position 1, shape (rope_dim / 2,); factors are the file's divisors of them."""
    plain = rope.base ** (-np.arange(rope.rope_dim // 2, dtype=np.float64) * 2 / rope.rope_dim)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    scaled: Floats = plain / rope.divisor
    if rope.yarn is not None:
        keep = _ramp(rope.yarn, rope)
        scaled = scaled * (1.0 - keep) + plain * keep
    return scaled


def rotary_rows(rope: Rope, angles: Floats, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """The table's rows (n, rope_dim) for positions (n,): cosines, then sines."""
    turned = positions[:, None] * angles
    size = np.full((len(positions), 1), rope.magnitude)
    if rope.temperature:
        floor = np.floor(positions[:, None] / rope.temperature_n_ctx)
        size = size * (rope.temperature * np.log(floor + 1.0) + 1.0)
    return np.concatenate([np.cos(turned) * size, np.sin(turned) * size], axis=1).astype(np.float32)
