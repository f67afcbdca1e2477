"""phi3: LLaMA with q, k and v in one tensor, gate and up in another, and rotary factors for short and for long contexts.

The file's sliding window is applied to every layer, as `transformers` does; llama.cpp leaves it out.
"""

from __future__ import annotations

from ..plan.builder import Builder
from . import llama
from .family import Family

__all__ = ["FAMILY"]


def build(b: Builder) -> None:
    """The fused tensors are found by their names; rotary pairs are halves of a head."""
    llama.describe(b, neighbours=False)


FAMILY = Family("phi3", llama.groups, build, llama.check_dense)
