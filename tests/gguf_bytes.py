"""Hand-made GGUF bytes for tests of the reader: a tiny writer that can lie in every field, and offsets to patch."""

from __future__ import annotations

import struct
from collections.abc import Sequence

TYPES = {"uint8": 0, "uint32": 4, "int32": 5, "float32": 6, "bool": 7, "string": 8, "array": 9, "uint64": 10}
CODES = {"uint8": "B", "uint32": "I", "int32": "i", "float32": "f", "bool": "?", "uint64": "Q"}


def string(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str | bytes, kind: str, value: object) -> bytes:
    """One metadata entry; `kind` as in TYPES, or "string[]" and so on for arrays."""
    head = string(name)
    if kind.endswith("[]"):
        assert isinstance(value, Sequence)
        body = struct.pack("<IQ", TYPES[kind[:-2]], len(value))
        return head + struct.pack("<I", 9) + body + b"".join(_scalar(kind[:-2], item) for item in value)
    return head + struct.pack("<I", TYPES[kind]) + _scalar(kind, value)


def _scalar(kind: str, value: object) -> bytes:
    if kind == "string":
        assert isinstance(value, (str, bytes))
        return string(value)
    return struct.pack("<" + CODES[kind], value)


def tensor(name: str, dims: Sequence[int], type_id: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, type_id, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    head += b"".join(keys) + b"".join(tensors)
    if tensors:
        head += b"\0" * (-len(head) % alignment)
    return head + data
