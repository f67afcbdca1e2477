"""The parser of a GGUF header: counts, metadata, tensor table. Touches no tensor data and trusts no number.

Every count and length is checked against the bytes that are left before anything is allocated or walked, so a hostile
or damaged file ends in a ModelFileError that names the field.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import MappingProxyType

from ..errors import ModelFileError
from ..formats import FORMATS, Format, type_name
from .lazy_array import NUMBER_TYPES, STRING_TYPE, LazyArray

__all__ = ["HeaderParser", "MetadataValue", "TensorInfo"]

MetadataValue = bool | int | float | str | LazyArray

VERSIONS = (2, 3)
ARRAY_TYPE = 9
# Far above any honest file (which has tens of keys, thousands of tensors, a million strings), and low enough that even
# a huge hostile file is refused within a second.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 22  # elements of string arrays, in the whole file
MAX_NESTED = 1 << 16  # arrays inside arrays, in the whole file
MAX_TEXT = 1 << 26  # bytes of single strings, in the whole file
MAX_NAME = (1 << 16) - 1
MAX_DEPTH = 4
MAX_DIMS = 4

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_SCALARS = {kind: struct.Struct("<" + code) for kind, (_, code, _) in NUMBER_TYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor is and how it is stored. `shape` is in NumPy order: rows first, GGUF's dimensions reversed."""

    name: str
    type_id: int
    type_name: str  # "Q4_K", or "unknown (200)"
    shape: tuple[int, ...]
    offset: int  # of its first byte, from the start of the file
    n_bytes: int  # for an unknown or withdrawn type: the room until the next tensor
    format: Format | None  # None for an unknown type

    @property
    def n_elements(self) -> int:
        """The product of the shape."""
        n = 1
        for size in self.shape:
            n *= size
        return n


class HeaderParser:
    """Parses the header of a mapped file; the results are its attributes.

    `read(start, end)` is what lazy arrays later get their bytes from. Raises ModelFileError.
    """

    version: int
    alignment: int
    data_offset: int  # where tensor data starts
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]  # in file order

    def __init__(self, path: Path, mapped: mmap.mmap, read: Callable[[int, int], bytes]) -> None:
        self.path = path
        self.size = len(mapped)
        self._map = mapped
        self._raw = read
        self._strings_left = MAX_STRINGS
        self._nested_left = MAX_NESTED
        self._text_left = MAX_TEXT
        n_tensors, n_keys, pos = self._header()
        pos = self._read_metadata(pos, n_keys)
        self.alignment = self._read_alignment()
        self._read_tensors(pos, n_tensors)

    def _bad(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {what}")

    def _cut(self, what: str, pos: int, wanted: int) -> ModelFileError:
        return self._bad(
            f"{what} needs {wanted} bytes at offset {pos}, but the file is {self.size} bytes long; "
            "it is truncated or damaged, download it again"
        )

    def _u32(self, pos: int, what: str) -> int:
        if pos + 4 > self.size:
            raise self._cut(what, pos, 4)
        return int(_U32(self._map, pos)[0])

    def _u64(self, pos: int, what: str) -> int:
        if pos + 8 > self.size:
            raise self._cut(what, pos, 8)
        return int(_U64(self._map, pos)[0])

    def _name(self, pos: int, what: str) -> tuple[str, int]:
        length = self._u64(pos, f"the length of {what}")
        if not 0 < length <= MAX_NAME:
            raise self._bad(f"{what} is {length} bytes long, at offset {pos}; wanted 1 to {MAX_NAME}: it is damaged")
        pos += 8
        if pos + length > self.size:
            raise self._cut(what, pos, length)
        try:
            return self._map[pos : pos + length].decode(), pos + length
        except UnicodeDecodeError:
            raise self._bad(f"{what} at offset {pos} is not UTF-8 text; the file is damaged") from None

    def _header(self) -> tuple[int, int, int]:
        version = self._u32(4, "the version")
        if version not in VERSIONS:
            if version and not version & 0xFFFF:
                raise self._bad(
                    "this is a big-endian file; wanted little-endian: convert it with gguf_convert_endian.py"
                )
            advice = "download a newer build of the model" if version < 2 else "a newer edgeinfer may read it"
            raise self._bad(f"this is GGUF version {version}; wanted version 2 or 3: {advice}")
        self.version = version
        n_tensors = self._u64(8, "the tensor count")
        n_keys = self._u64(16, "the metadata count")
        left = self.size - 24
        # the smallest key is 8 + 1 + 4 + 1 bytes, the smallest tensor entry 8 + 1 + 4 + 4 + 8
        for what, n, most, smallest in (
            ("metadata", n_keys, MAX_KEYS, 14),
            ("tensor", n_tensors, MAX_TENSORS, 25),
        ):
            if n > most:
                raise self._bad(
                    f"the {what} count is {n}; wanted at most {most}, no model has so many: it is damaged, download it again"
                )
            if n * smallest > left:
                raise self._bad(
                    f"the {what} count is {n}, and the file is {self.size} bytes long, too short to hold that; "
                    "it looks truncated, download it again"
                )
        return n_tensors, n_keys, 24

    def _read_metadata(self, pos: int, n_keys: int) -> int:
        metadata: dict[str, MetadataValue] = {}
        for i in range(n_keys):
            key, pos = self._name(pos, f"the name of metadata key {i}")
            if key in metadata:
                raise self._bad(f"metadata key {key!r} is there twice; the file is damaged")
            kind = self._u32(pos, f"the type of {key!r}")
            metadata[key], pos = self._value(pos + 4, kind, key)
        self.metadata = MappingProxyType(metadata)
        return pos

    def _value(self, pos: int, kind: int, key: str) -> tuple[MetadataValue, int]:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            if pos + scalar.size > self.size:
                raise self._cut(f"the value of {key!r}", pos, scalar.size)
            value = scalar.unpack_from(self._map, pos)[0]
            return value, pos + scalar.size
        if kind == STRING_TYPE:
            length = self._u64(pos, f"the length of {key!r}")
            pos += 8
            if pos + length > self.size:
                raise self._cut(f"the text of {key!r}", pos, length)
            self._text_left -= length
            if self._text_left < 0:
                raise self._bad(f"the text of {key!r} is {length} bytes long; a file may hold {MAX_TEXT} bytes of text")
            return self._map[pos : pos + length].decode(errors="replace"), pos + length
        if kind == ARRAY_TYPE:
            return self._array(pos, key, 1)
        raise self._bad(f"metadata key {key!r} has the unknown type {kind}; the file is damaged or too new")

    def _array(self, pos: int, key: str, depth: int) -> tuple[LazyArray, int]:
        kind = self._u32(pos, f"the element type of {key!r}")
        n = self._u64(pos + 4, f"the element count of {key!r}")
        pos += 12
        number = NUMBER_TYPES.get(kind)
        smallest = number[2] if number else 8 if kind == STRING_TYPE else 12
        if n * smallest > self.size - pos:
            raise self._cut(f"array {key!r} of {n} elements", pos, n * smallest)
        if number:
            end = pos + n * smallest
            return LazyArray(self._raw, kind, n, pos, end), end
        if kind not in (STRING_TYPE, ARRAY_TYPE):
            raise self._bad(f"array {key!r} has elements of the unknown type {kind}; the file is damaged")
        if kind == ARRAY_TYPE:
            return self._nested(pos, key, n, depth)
        self._strings_left -= n
        if self._strings_left < 0:
            raise self._bad(f"array {key!r} has {n} strings; a file may hold {MAX_STRINGS} strings in arrays")
        # The only walk over a whole vocabulary: as tight as Python gets. A length that leads past the end of the file
        # is noticed at the next element, since a position never moves back.
        start, unpack, mapped = pos, _U64, self._map
        places = array("q")
        note = places.append
        try:
            for _ in repeat(None, n):
                note(pos)
                pos += unpack(mapped, pos)[0] + 8
        except (struct.error, OverflowError, IndexError):
            pos = self.size + 1
        if pos > self.size:
            raise self._bad(
                f"a string of array {key!r} (starting at offset {start}) ends beyond the file's {self.size} bytes; "
                "it is truncated or damaged, download it again"
            )
        return LazyArray(self._raw, kind, n, start, pos, places=places), pos

    def _nested(self, pos: int, key: str, n: int, depth: int) -> tuple[LazyArray, int]:
        self._nested_left -= n
        if self._nested_left < 0 or depth >= MAX_DEPTH:
            raise self._bad(
                f"array {key!r} holds {n} arrays at depth {depth}; a file may hold {MAX_NESTED}, {MAX_DEPTH} deep"
            )
        start, items = pos, []
        for _ in range(n):
            item, pos = self._array(pos, key, depth + 1)
            items.append(item)
        return LazyArray(self._raw, ARRAY_TYPE, n, start, pos, tuple(items)), pos

    def _read_alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if type(value) is not int or not 0 < value < 1 << 32 or value & (value - 1):
            raise self._bad(f"general.alignment is {value!r}; wanted a power of two")
        return value

    def _read_tensors(self, pos: int, n_tensors: int) -> None:
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for i in range(n_tensors):
            name, pos = self._name(pos, f"the name of tensor {i}")
            if name in entries:
                raise self._bad(f"tensor {name!r} is there twice; the file is damaged")
            n_dims = self._u32(pos, f"the dimension count of tensor {name!r}")
            if n_dims > MAX_DIMS:
                raise self._bad(f"tensor {name!r} has {n_dims} dimensions; wanted at most {MAX_DIMS}")
            pos += 4
            if pos + 8 * n_dims + 12 > self.size:
                raise self._cut(f"the entry of tensor {name!r}", pos, 8 * n_dims + 12)
            *dims, type_id, offset = struct.unpack_from(f"<{n_dims}QIQ", self._map, pos)
            pos += 8 * n_dims + 12
            entries[name] = (tuple(reversed(dims)) or (1,), type_id, offset)
        self.data_offset = -(-pos // self.alignment) * self.alignment
        order = sorted(entries, key=lambda name: entries[name][2])
        infos: dict[str, TensorInfo] = {}
        for i, name in enumerate(order):
            follower = order[i + 1] if i + 1 < len(order) else None
            room_end = self.size - self.data_offset if follower is None else entries[follower][2]
            infos[name] = self._tensor_info(name, *entries[name], room_end, follower)
        self.tensors = MappingProxyType({name: infos[name] for name in entries})

    def _tensor_info(
        self, name: str, shape: tuple[int, ...], type_id: int, offset: int, room_end: int, follower: str | None
    ) -> TensorInfo:
        """Check one entry against the file; `room_end` is where its room ends: at the next tensor, or with the file."""
        n_elements = 1
        for size in shape:
            n_elements *= size  # Python's integers do not wrap
        if not 0 < n_elements < 1 << 63:
            raise self._bad(f"tensor {name!r} has shape {shape}; wanted sizes from 1, and fewer than 2**63 elements")
        if offset % self.alignment:
            raise self._bad(f"tensor {name!r} has offset {offset}; wanted a multiple of the alignment {self.alignment}")
        fmt = FORMATS.get(type_id)
        absolute = self.data_offset + offset
        if fmt is not None and fmt.block_size:
            if shape[-1] % fmt.block_size:
                raise self._bad(
                    f"tensor {name!r} has rows of {shape[-1]} elements; {fmt.name} wants a multiple of {fmt.block_size}"
                )
            n_bytes = fmt.n_bytes(n_elements)
        else:
            n_bytes = max(room_end - offset, 0)
        if absolute >= self.size or absolute + n_bytes > self.size:
            raise self._bad(
                f"tensor {name!r} ends at byte {absolute + n_bytes}, but the file is {self.size} bytes long; "
                "it is truncated, download it again"
            )
        if follower is not None and offset + n_bytes > room_end:
            raise self._bad(f"tensors {name!r} and {follower!r} overlap in the file; it is damaged, download it again")
        return TensorInfo(name, type_id, type_name(type_id), shape, absolute, n_bytes, fmt)
