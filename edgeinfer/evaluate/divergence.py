"""How far one model's next-token distribution lies from another's: KL divergence, top-1 agreement, intervals.

Works on arrays of logits or log probabilities only; knows no model, file or tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError
from .exact import log_softmax

__all__ = ["Divergence", "Interval", "bootstrap_mean", "bootstrap_ratio", "compare_rows", "joined"]

Array = NDArray[Any]
BLOCK = 32  # neighbouring positions share a text, so whole runs of them are drawn in a bootstrap


@dataclass(frozen=True)
class Divergence:
    """Per-position comparison of an approximate model with the exact one."""

    kl: NDArray[np.float64]  # (n,) KL(exact || approximate) in nats
    top1: NDArray[np.bool_]  # (n,) whether both put the same token first

    @property
    def mean_kl(self) -> float:
        """Mean KL divergence in nats."""
        return float(self.kl.mean())

    @property
    def top1_agreement(self) -> float:
        """Share of positions at which both models agree on the first token, 0 to 1."""
        return float(self.top1.mean())


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def compare_rows(exact_log_probs: Array, logits: Array) -> Divergence:
    """Compare rows of exact log probabilities (n, n_vocab) with an approximate model's logits (n, n_vocab)."""
    if exact_log_probs.shape != logits.shape:
        raise SettingError(f"cannot compare rows of shape {exact_log_probs.shape} with rows of shape {logits.shape}")
    difference = exact_log_probs - log_softmax(logits)
    kl = np.asarray(np.sum(np.exp(exact_log_probs) * difference, axis=-1, dtype=np.float64))
    return Divergence(kl, exact_log_probs.argmax(axis=-1) == logits.argmax(axis=-1))


def joined(parts: list[Divergence]) -> Divergence:
    """One Divergence over the positions of all parts, in order."""
    if not parts:
        raise SettingError("there is nothing to join: no text was long enough to compare")
    return Divergence(np.concatenate([part.kl for part in parts]), np.concatenate([part.top1 for part in parts]))


def _draws(n: int, block: int, count: int, seed: int) -> NDArray[np.intp]:
    """Indices (count, about n) of `count` resamples, each made of whole blocks of neighbours."""
    if n < 1:
        raise SettingError("a bootstrap interval needs at least one position")
    block = min(block, n)
    starts = np.random.default_rng(seed).integers(0, n - block + 1, (count, -(-n // block)))
    return (starts[:, :, None] + np.arange(block)).reshape(count, -1)


def bootstrap_mean(
    values: Array, level: float = 0.95, count: int = 1000, block: int = BLOCK, seed: int = 0
) -> Interval:
    """The mean of values (n,) with its block-bootstrap interval."""
    means = values[_draws(len(values), block, count, seed)].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def bootstrap_ratio(
    above: Array, below: Array, level: float = 0.95, count: int = 1000, block: int = BLOCK, seed: int = 0
) -> Interval:
    """mean(above) / mean(below) over the same positions (n,), with its paired block-bootstrap interval."""
    if above.shape != below.shape:
        raise SettingError(f"a paired ratio needs equal lengths, got {len(above)} and {len(below)}")
    draws = _draws(len(above), block, count, seed)
    ratios = above[draws].mean(axis=1) / below[draws].mean(axis=1)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(above.mean() / below.mean()), float(low), float(high))
