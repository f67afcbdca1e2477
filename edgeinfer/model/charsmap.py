"""SentencePiece's table of what characters are rewritten to before text is cut (`tokenizer.ggml.precompiled_charsmap`).

The table is a little-endian u32, that many bytes of a double array, and replacements that end in a zero byte. An entry
of the double array is a u32: bits 0-7 and 31 are the label, bit 8 says that the entry after it is the place of a
replacement, bits 10-30 are the distance to the children, times 256 where bit 9 is set (S. Kanda, "Space- and
time-efficient string dictionaries", 2018; the format of Darts-clone). Must not know a vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError

__all__ = ["CharacterMap"]

_KEY = "tokenizer.ggml.precompiled_charsmap"
_LABEL = 0x800000FF
_LONGEST = 256  # characters of an entry: honest ones have a dozen, and those of a hostile table may run in a circle


class CharacterMap:
    """Rewrites texts by the longest entry that fits at each place."""

    def __init__(self, table: NDArray[np.uint8] | None) -> None:
        """`table` is the file's array; None rewrites nothing. Raises ModelFileError where it contradicts itself."""
        self._units: list[int] = []
        self._replacements = b""
        self._kept: dict[str, bool] = {}  # characters that no entry begins with
        if table is None or not len(table):
            return
        blob = table.astype(np.uint8, copy=False).tobytes()
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 4 or size % 4 or size + 4 >= len(blob):
            raise ModelFileError(f"{_KEY} has {len(blob)} bytes, of which {size} would be its index; it is damaged")
        self._units = np.frombuffer(blob, "<u4", size // 4, 4).tolist()
        self._replacements = blob[4 + size :]

    def rewrite(self, text: str) -> str:
        """`text` with every entry replaced. Raises ModelFileError where the table points outside itself."""
        if not self._units:
            return text
        kept = self._kept
        done: list[str] = []
        at = start = 0
        while at < len(text):
            character = text[at]
            keep = kept.get(character)
            if keep is None:
                keep = kept[character] = not self._begins(character)
            if keep:
                at += 1
                continue
            length, replacement = self._longest(text, at)
            if length:
                done += (text[start:at], replacement)
                start = at = at + length
            else:
                at += 1
        return "".join([*done, text[start:]]) if done else text

    def _begins(self, character: str) -> bool:
        """Whether an entry may begin with `character`."""
        node: int | None = self._base(0)
        for byte in character.encode():
            node = self._child(node, byte)
            if node is None:
                return False
        return True

    def _longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters the longest entry at `at` takes, 0 for none, and what stands in their place."""
        length, place = 0, 0
        node: int | None = self._base(0)
        for index in range(at, min(len(text), at + _LONGEST)):
            for byte in text[index].encode():
                node = self._child(node, byte)
                if node is None:
                    break
            if node is None:
                break
            if self._leaf:
                length, place = index - at + 1, self._unit(node) & 0x7FFFFFFF
        if not length:
            return 0, ""
        end = self._replacements.find(b"\0", place)
        if place >= len(self._replacements) or end < 0:
            raise ModelFileError(f"{_KEY} points to a replacement at {place}, outside of itself; it is damaged")
        return length, self._replacements[place:end].decode(errors="replace")

    def _unit(self, index: int) -> int:
        if index >= len(self._units):
            raise ModelFileError(f"{_KEY} points to its entry {index}, but has {len(self._units)}; it is damaged")
        return self._units[index]

    def _base(self, index: int) -> int:
        unit = self._unit(index)
        return (unit >> 10) << ((unit & 0x200) >> 6)

    def _child(self, node: int | None, byte: int) -> int | None:
        """The node that `byte` leads to, None when there is none; `_leaf` says whether an entry ends there."""
        if node is None or byte == 0:
            return None
        index = node ^ byte
        unit = self._unit(index)
        if unit & _LABEL != byte:
            return None
        self._leaf = bool(unit >> 8 & 1)
        return index ^ ((unit >> 10) << ((unit & 0x200) >> 6))
