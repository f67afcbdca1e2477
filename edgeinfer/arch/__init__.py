"""One file per model family: its quirks of configuration, its tensor names, and its description in the builder's verbs.

`ARCHS` is the registry; a new family is one file and one line. Must not know numba, files or threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import gemma3, llama
from .family import Family

__all__ = ["ARCHS", "Family"]

_ALL: tuple[Family, ...] = (llama.FAMILY, gemma3.FAMILY)

ARCHS: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})
