"""One GGUF file on disk, mapped read-only and parsed: a whole model, or one shard of a split one.

Must not know how shards make a model.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, NotFoundError
from .gguf_header import HeaderParser
from .not_gguf import describe

__all__ = ["Shard"]


class Shard:
    """An open, mapped file and its parsed header. Tensor data is not touched."""

    def __init__(self, path: Path, mapped: mmap.mmap, modified_ns: int) -> None:
        """Parse a mapped file; `open` is the way in."""
        self.path = path
        self.size = len(mapped)  # bytes
        self.modified_ns = modified_ns
        self._map: mmap.mmap | None = mapped
        self.header = HeaderParser(path, mapped, self._raw)
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(mapped, np.uint8)

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Map and parse a file. Raises NotFoundError (no such file) or ModelFileError (not a readable GGUF file)."""
        try:
            # a pipe or device must not hang the open
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"{path} does not exist") from None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.ELOOP:
                raise NotFoundError(f"{path} leads to no file: its symbolic links go round in a circle") from None
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError(f"{str(path)!r} cannot be opened: {reason}") from None
        try:
            mode = os.fstat(fd)
            if stat.S_ISDIR(mode.st_mode):
                raise ModelFileError(f"{path} is a directory; name a .gguf file inside it")
            if not stat.S_ISREG(mode.st_mode):
                raise ModelFileError(f"{path} is not a regular file; a model must be a file on disk")
            head = os.read(fd, 512)
            if head[:4] != b"GGUF":
                raise ModelFileError(f"{path} is not a GGUF file, it is {describe(head, mode.st_size)}")
            mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"{path} cannot be read: {error}") from None
        finally:
            os.close(fd)
        try:
            return cls(path, mapped, mode.st_mtime_ns)
        except BaseException:
            mapped.close()
            raise

    def view(self) -> NDArray[np.uint8]:
        """The whole file, uint8 (size,): a read-only view of the map. Raises ModelFileError once it is closed."""
        if self._bytes is None:
            raise ModelFileError(f"{self.path} is closed")
        return self._bytes

    def release(self, start: int, end: int) -> None:
        """Give back the resident pages of bytes [start, end); a later read brings them in again."""
        # whole pages inside the range only: the neighbours' pages stay
        start = -(-max(start, 0) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = min(end, self.size) // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Unmap the file. Arrays from `view` keep the map until they are gone."""
        mapped, self._map, self._bytes = self._map, None, None
        if mapped is not None:
            try:
                mapped.close()
            except BufferError:
                pass  # a view is still in use; the map goes with it

    def _raw(self, start: int, end: int) -> bytes:
        if self._map is None:
            raise ModelFileError(f"{self.path} is closed")
        return self._map[start:end]
