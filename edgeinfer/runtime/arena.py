"""Memory with fixed addresses: aligned, zeroed, given by the kernel page by page as it is touched."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from ..errors import MemoryLimitError

__all__ = ["Arena", "aligned"]

_HUGE = 2 << 20


class Arena:
    """One anonymous mapping of n_bytes; `take` hands out aligned pieces of it, in order, and never gives them back."""

    def __init__(self, n_bytes: int, what: str):
        self.n_bytes = max(mmap.PAGESIZE, -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.what = what
        try:
            self._map = mmap.mmap(-1, self.n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryLimitError(f"could not reserve {self.n_bytes / 2**20:,.0f} MiB for {what}: {error}") from error
        if self.n_bytes >= 4 * _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._map.madvise(mmap.MADV_HUGEPAGE)  # fewer page walks while weights stream in
            except OSError:
                pass
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self._used = 0

    def take(self, n_bytes: int, align: int = 64) -> int:
        """The absolute address of n_bytes fresh, zeroed bytes."""
        start = -(-self._used // align) * align
        if start + n_bytes > self.n_bytes:
            raise MemoryLimitError(f"{self.what}: {start + n_bytes} bytes wanted, {self.n_bytes} reserved")
        self._used = start + n_bytes
        return self.address + start

    def view(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """The bytes at an absolute address inside the arena."""
        offset = address - self.address
        return self.bytes[offset : offset + n_bytes]


def aligned(n_words: int) -> NDArray[np.int64]:
    """A zeroed int64 array that starts on a cache line."""
    raw = np.zeros(n_words + 8, np.int64)
    start = (-raw.ctypes.data % 64) // 8
    return raw[start : start + n_words]
