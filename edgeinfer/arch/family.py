"""The record that describes one family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.config import ModelConfig
from ..plan.builder import Builder

__all__ = ["Family", "KVGroup"]


@dataclass(frozen=True)
class KVGroup:
    """Layers that share a page table: how many there are, and how many positions they look back (0: all).

    Layers that carry state from token to token instead of keys and values say how many bytes a page of one of them takes.
    Such a page holds the state at its last position and at the `keep` positions before it, so that is where a sequence can
    be cut: anywhere within `keep` positions of the farthest that was written in a page, or at a page's end.
    """

    n_layer: int
    window: int = 0
    state_bytes: int = 0  # of a layer's page; 0: keys and values
    keep: int = 0


@dataclass(frozen=True)
class Family:
    """A family: its GGUF name, how its layers group in the KV cache, and its description in the builder's verbs."""

    name: str
    groups: Callable[[ModelConfig], tuple[KVGroup, ...]]
    build: Callable[[Builder], None]
    check: Callable[[ModelConfig], None] = lambda config: None  # raises UnsupportedModelError
    heeds: tuple[str, ...] = ()  # fields of the configuration that most families lack
