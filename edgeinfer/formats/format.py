"""The record that describes one GGML tensor type. Knows no tensor, no file and no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bytes", "Floats", "Format", "blockwise", "nibbles"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Format:
    """One GGML tensor type: how a row of numbers is stored as blocks of bytes.

    `dequantize` takes uint8 (..., n_blocks * block_bytes) and gives float32 (..., n_blocks * block_size);
    `quantize` is its inverse, up to rounding. Either is None where there is no NumPy twin.
    """

    name: str  # as GGML writes it, "Q4_K"
    type_id: int  # the number stored in the file
    block_size: int  # elements per block; 0 for a withdrawn type
    block_bytes: int  # bytes per block; 0 for a withdrawn type
    dequantize: Callable[[Bytes], Floats] | None = None
    quantize: Callable[[Floats], Bytes] | None = None
    native: bool = False  # the native engine multiplies by it
    withdrawn: str = ""  # why the type is gone and what to do; empty for a living type

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per element, scales included; 0.0 for a withdrawn type."""
        return 8.0 * self.block_bytes / self.block_size if self.block_size else 0.0

    def n_bytes(self, n_elements: int) -> int:
        """Bytes that `n_elements` elements take; the caller has checked that they are whole blocks."""
        return n_elements // self.block_size * self.block_bytes if self.block_size else 0


def blockwise(
    function: Callable[[NDArray[np.generic]], NDArray[np.generic]], array: NDArray[np.generic], size: int
) -> NDArray[np.generic]:
    """Apply `function` (n_blocks, size) -> (n_blocks, m) along the last axis of `array`: (..., k*size) -> (..., k*m).

    Raises ValueError when the last axis is not a whole number of blocks.
    """
    *lead, width = array.shape
    if width % size:
        raise ValueError(f"last axis is {width} long; wanted a multiple of {size}")
    blocks = function(np.ascontiguousarray(array).reshape(-1, size))
    return blocks.reshape(*lead, width // size * blocks.shape[-1])


def nibbles(packed: Bytes, group: int) -> Bytes:
    """Unpack 4-bit numbers (n, m) -> (n, 2*m): each `group` bytes give their low halves, then their high halves."""
    parts = packed.reshape(len(packed), -1, 1, group) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (parts & np.uint8(15)).reshape(len(packed), -1)
