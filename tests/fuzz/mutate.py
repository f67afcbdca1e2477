"""Small lies about a GGUF file: a number where a number is, a string that changes length, an entry twice or not at all.

Random bytes die at the first length; these reach what lies behind it.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

__all__ = ["Places", "mutated", "places"]

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ABSURD = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 31, 32, 33, 63, 64, 100, 255, 256, 257, 1000, 4096, 5000),
    *(2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**17, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**42),
    *(2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-38, 3e38, float("inf"), float("-inf"), float("nan"), 1e-6, 0.5, 10000.0)
TEXTS = (
    *(b"", b"\0", b"\xff\xfe", b"llama", b"gpt2", b"gemma3", b"bert", b"\x1b[2J", b"\xe2\x80\xae", b"a" * 300),
    *(b"<0x41>", b"<0xZZ>", b"\xe2\x96\x81", b"{% for x in y %}", b"{{ messages }}", b"{% if", b"{{ 1/0 }}", b"linear"),
    *(b"yarn", b"none", b"<|im_end|>", b"</s>", b"blk.0.attn_q.weight", b"token_embd.weight", b"general.architecture"),
)


@dataclass
class Places:
    """Where things are in a file, as far as it can be followed."""

    numbers: list[tuple[int, int]] = field(default_factory=list)  # (offset, bytes)
    floats: list[int] = field(default_factory=list)
    strings: list[tuple[int, int]] = field(default_factory=list)  # (offset of the length, length)
    keys: list[tuple[int, int]] = field(default_factory=list)  # (start, end) of whole entries
    tensors: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0  # of the header


def places(raw: bytes) -> Places:
    """Follow the header, little-endian, until it stops making sense."""
    found = Places([(4, 4), (8, 8), (16, 8)])
    try:
        n_tensors, n_keys = struct.unpack_from("<QQ", raw, 8)
        pos = 24
        for _ in range(min(n_keys, 1000)):
            start = pos
            pos = _string(raw, pos, found)
            kind = _number(raw, pos, 4, found)
            pos = _value(raw, pos + 4, kind, found, 0)
            found.keys.append((start, pos))
        for _ in range(min(n_tensors, 1000)):
            start = pos
            pos = _string(raw, pos, found)
            n_dims = _number(raw, pos, 4, found)
            pos += 4
            for size in [8] * min(n_dims, 8) + [4, 8]:
                _number(raw, pos, size, found)
                pos += size
            found.tensors.append((start, pos))
            found.end = pos
    except (struct.error, ValueError):
        pass
    found.end = found.end or len(raw)
    return found


def _number(raw: bytes, pos: int, size: int, found: Places) -> int:
    if pos + size > len(raw):
        raise ValueError
    value: int = struct.unpack_from({1: "<B", 2: "<H", 4: "<I", 8: "<Q"}[size], raw, pos)[0]
    found.numbers.append((pos, size))
    return value


def _string(raw: bytes, pos: int, found: Places) -> int:
    length = _number(raw, pos, 8, found)
    if pos + 8 + length > len(raw):
        raise ValueError
    found.strings.append((pos, length))
    return pos + 8 + length


def _value(raw: bytes, pos: int, kind: int, found: Places, depth: int) -> int:
    if kind == 8:
        return _string(raw, pos, found)
    if kind == 9:
        if depth > 5:
            raise ValueError
        inner, n = _number(raw, pos, 4, found), _number(raw, pos + 4, 8, found)
        pos += 12
        if inner in SIZES:
            for i in range(min(n, 64)):
                _number(raw, pos + i * SIZES[inner], SIZES[inner], found)
            return pos + n * SIZES[inner]
        for _ in range(n):
            pos = _value(raw, pos, inner, found, depth + 1)
        return pos
    if kind not in SIZES:
        raise ValueError
    _number(raw, pos, SIZES[kind], found)
    if kind == 6:
        found.floats.append(pos)
    return pos + SIZES[kind]


def mutated(raw: bytes, rng: random.Random, times: int | None = None) -> bytes:
    """A copy of a file with one to four lies."""
    for _ in range(times or rng.choice((1, 1, 1, 2, 2, 4))):
        raw = _once(raw, places(raw), rng)
    return raw


def _once(raw: bytes, where: Places, rng: random.Random) -> bytes:
    out, act = bytearray(raw), rng.random()
    if act < 0.4 and where.numbers:
        pos, size = rng.choice(where.numbers)
        old = int.from_bytes(raw[pos : pos + size], "little")
        value = rng.choice((rng.choice(ABSURD), old + rng.choice((-1, 1, 8, 32)), old ^ (1 << rng.randrange(8 * size))))
        out[pos : pos + size] = (value % (1 << (8 * size))).to_bytes(size, "little")
    elif act < 0.45 and where.floats:
        struct.pack_into("<f", out, rng.choice(where.floats), rng.choice(FLOATS))
    elif act < 0.65 and where.strings:
        pos, length = rng.choice(where.strings)
        text = raw[pos + 8 : pos + 8 + length]
        other = rng.choice(where.strings)
        new = rng.choice(
            (rng.choice(TEXTS), raw[other[0] + 8 : other[0] + 8 + other[1]], text[: length // 2], text * 2)
        )
        new = new[: 1 << 14]
        out[pos : pos + 8 + length] = len(new).to_bytes(8, "little") + new
    elif act < 0.85 and (where.keys or where.tensors):
        entries, at = (
            (where.keys, 16) if where.keys and (rng.random() < 0.7 or not where.tensors) else (where.tensors, 8)
        )
        start, end = rng.choice(entries)
        other_start, other_end = rng.choice(entries)
        count = int.from_bytes(raw[at : at + 8], "little")
        what = rng.randrange(3)
        if what == 0:
            del out[start:end]
        elif what == 1 and len(raw) < 1 << 17:
            out[end:end] = raw[other_start:other_end]
        else:
            out[start:end] = raw[other_start:other_end]
        out[at : at + 8] = ((count + (-1, 1, 0)[what]) % (1 << 64)).to_bytes(8, "little")
    elif act < 0.9:
        del out[rng.randrange(len(out) + 1) :]
    elif out:
        for _ in range(rng.choice((1, 1, 4, 16))):
            out[rng.randrange(min(len(out), where.end + 8))] = rng.randrange(256)
    return bytes(out)
