"""The part of a paged KV cache that a prefix cache needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .prefix_tree import Page

__all__ = ["PageKV"]


class PageKV(Protocol):
    """What the prefix cache needs of a KV cache; `engine.kv.PagedKV` says what the calls mean."""

    page_size: int
    n_pages: int

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""

    def hold(self, seq: int, first: int, count: int) -> list[Page]:
        """References to whole pages of a sequence."""

    def share(self, pages: Sequence[Page]) -> None:
        """One more reference to each of some held pages."""

    def drop(self, pages: Sequence[Page]) -> None:
        """Give references back."""

    def export(self, page: Page) -> bytes:
        """The content of a held page."""

    def load(self, data: bytes) -> Page:
        """A fresh page with that content, held once."""
