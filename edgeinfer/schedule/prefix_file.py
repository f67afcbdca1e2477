"""The file of one run of cached KV pages: what is in it, written beside and renamed, verified to the last byte when read.

    0    magic, version, length of the head, SHA-256 of the head without itself
    48   fingerprint (SHA-256), ids of a page, first page, pages, bytes of a page
         ids     int32, from the very first token of the prefix, so that a run is verified without the runs before it
         sums    uint32, the CRC-32 of each page
         zeros up to a multiple of 4096: the head ends here
    ...  the pages, one behind the other, to the end of the file

A file is read, not mapped: the map of a file that someone else cuts short would end this process with a bus error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .prefix_tree import Ids

__all__ = ["SUFFIX", "TEMPORARY", "DamagedError", "Run", "head_bytes", "is_abandoned", "open_run", "write_run"]

SUFFIX = ".kv"
TEMPORARY = ".tmp"
_MAGIC = b"EDGEKV\r\n"
_VERSION = 1
_START = struct.Struct("<8sII32s")
_FACTS = struct.Struct("<32sIIIIQ")
_ALIGN = 4096
_MOST_HEAD = 64 << 20  # a damaged length must not make us read the world


class DamagedError(ValueError):
    """The file is not a run of pages that can be used: damaged, cut short, of another model or no such file at all."""


@dataclass(frozen=True)
class Run:
    """An open file and what its head says. Pages are numbered from the start of the prefix."""

    handle: int
    ids: Ids  # ((first + count) * page_size,)
    first: int
    count: int
    page_bytes: int
    sums: NDArray[np.uint32]  # (count,)
    start: int  # where page `first` begins

    def read(self, page: int) -> bytes:
        """The content of a page. Raises DamagedError when it is not what was written."""
        i = page - self.first
        data = _read(self.handle, self.page_bytes, self.start + i * self.page_bytes)
        if zlib.crc32(data) != int(self.sums[i]):
            raise DamagedError(f"page {page} is damaged")
        return data


def head_bytes(n_ids: int, count: int) -> int:
    """The length of the head of a file with so many ids and pages."""
    return -(-(_START.size + _FACTS.size + 4 * n_ids + 4 * count) // _ALIGN) * _ALIGN


def _read(handle: int, n: int, offset: int) -> bytes:
    """Exactly n bytes at an offset. Raises DamagedError when there are fewer."""
    pieces, have = [], 0
    while have < n:
        try:
            piece = os.pread(handle, n - have, offset + have)
        except OSError as error:
            raise DamagedError(error.strerror or str(error)) from error
        if not piece:
            raise DamagedError("the file is too short")
        pieces.append(piece)
        have += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def open_run(path: Path, fingerprint: bytes, page_size: int) -> Iterator[Run]:
    """Open a file and verify its head. Raises DamagedError; OSError when it cannot be opened."""
    # neither a pipe that nobody writes nor a link to elsewhere
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedError("not a regular file")
        if facts.st_uid not in (0, os.geteuid()):
            raise DamagedError("made by another user")
        yield _head(handle, facts.st_size, fingerprint, page_size)
    finally:
        os.close(handle)


def _head(handle: int, size: int, fingerprint: bytes, page_size: int) -> Run:
    magic, version, length, digest = _START.unpack(_read(handle, _START.size, 0))
    if magic != _MAGIC or version != _VERSION:
        raise DamagedError("another kind of file")
    if not _START.size + _FACTS.size <= length <= min(size, _MOST_HEAD):
        raise DamagedError("the head is damaged")
    head = _read(handle, length, 0)
    if _digest(head) != digest:
        raise DamagedError("the head is damaged")
    made_by, page_ids, first, count, _, page_bytes = _FACTS.unpack_from(head, _START.size)
    if made_by != fingerprint or page_ids != page_size:
        raise DamagedError("made for another model, KV cache or engine")
    n_ids = (first + count) * page_size
    if not count or not page_bytes or length != head_bytes(n_ids, count) or size != length + count * page_bytes:
        raise DamagedError("the file has another length than its head says")
    at = _START.size + _FACTS.size
    ids = np.frombuffer(head, "<i4", n_ids, at).astype(np.int32)
    sums = np.frombuffer(head, "<u4", count, at + 4 * n_ids).astype(np.uint32)
    return Run(handle, ids, first, count, page_bytes, sums, length)


def _digest(head: bytes) -> bytes:
    """SHA-256 of a head without the place where it is written down."""
    digest = hashlib.sha256(head[: _START.size - 32])
    digest.update(head[_START.size :])
    return digest.digest()


def write_run(path: Path, fingerprint: bytes, ids: Ids, first: int, pages: Iterable[bytes], page_size: int) -> int:
    """Write a file beside its place, with mode 0600, and rename it when it is whole; return its size.

    ids (n * page_size,) are the whole prefix, pages the contents of pages first .. n-1. Nothing is left behind when
    `pages` or the disk raises; a process that is killed leaves a file that `is_abandoned` knows.
    """
    count = len(ids) // page_size - first
    length = head_bytes(len(ids), count)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        sums, page_bytes, at = [], 0, length
        for data in pages:
            if page_bytes not in (0, len(data)):
                raise ValueError("pages of different lengths")
            page_bytes = len(data)
            _write(handle, data, at)
            at += page_bytes
            sums.append(zlib.crc32(data))
        if len(sums) != count:
            raise ValueError(f"{len(sums)} pages were given; wanted {count}")
        body = _FACTS.pack(fingerprint, page_size, first, count, 0, page_bytes)
        body += ids.astype("<i4").tobytes() + np.array(sums, "<u4").tobytes()
        body += bytes(length - _START.size - len(body))
        head = _START.pack(_MAGIC, _VERSION, length, bytes(32)) + body
        _write(handle, _START.pack(_MAGIC, _VERSION, length, _digest(head)) + body, 0)
        os.fsync(handle)
        os.replace(beside, path)
    except BaseException:
        try:
            os.unlink(beside)
        except OSError:
            pass
        raise
    finally:
        os.close(handle)
    _sync_folder(path.parent)
    return at


def _write(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        n = os.pwrite(handle, view, offset)
        view, offset = view[n:], offset + n


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def is_abandoned(path: str | Path) -> bool:
    """Whether nobody is writing a temporary file any more: the kernel frees the lock of a process that dies."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
