"""The record that describes one family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.config import ModelConfig
from ..plan.builder import Builder

__all__ = ["Family", "KVGroup"]


@dataclass(frozen=True)
class KVGroup:
    """Layers that share a page table: how many there are, and how many positions they look back (0: all)."""

    n_layer: int
    window: int = 0


@dataclass(frozen=True)
class Family:
    """A family: its GGUF name, how its layers group in the KV cache, and its description in the builder's verbs."""

    name: str
    groups: Callable[[ModelConfig], tuple[KVGroup, ...]]
    build: Callable[[Builder], None]
    check: Callable[[ModelConfig], None] = lambda config: None  # raises UnsupportedModelError
