"""FILE -> what the file says: a GGUF v2/v3 reader over one read-only memory map. Must not know what a tensor is for."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, NotFoundError
from .gguf_header import HeaderParser, MetadataValue, TensorInfo
from .not_gguf import describe

__all__ = ["GGUFFile", "MetadataValue", "TensorInfo"]


class GGUFFile:
    """An open GGUF file: metadata and tensor table parsed, tensor data mapped. Use `with`, or call `close`.

    Metadata arrays stay in the file until they are used; tensor data is never copied, nor touched while opening.
    """

    path: Path
    size: int  # bytes
    modified_ns: int = 0  # when it was last changed, by the file system's clock
    version: int
    alignment: int
    data_offset: int  # where tensor data starts
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]  # in file order

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        """Parse a mapped file; `open` is the way in."""
        self.path = path
        self.size = len(mapped)
        self._map: mmap.mmap | None = mapped
        header = HeaderParser(path, mapped, self._raw)
        self.version = header.version
        self.alignment = header.alignment
        self.data_offset = header.data_offset
        self.metadata = header.metadata
        self.tensors = header.tensors
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(mapped, np.uint8)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map and parse a file. Raises NotFoundError (no such file) or ModelFileError (not a readable GGUF file)."""
        path = Path(path)
        try:
            # a pipe or device must not hang the open
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"{path} does not exist") from None
        except (OSError, ValueError) as error:
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
            modified_ns = mode.st_mtime_ns
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"{path} cannot be read: {error}") from None
        finally:
            os.close(fd)
        try:
            file = cls(path, mapped)
        except BaseException:
            mapped.close()
            raise
        file.modified_ns = modified_ns
        return file

    # -- use ----------------------------------------------------------------------------------------------------------

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, uint8 (n_bytes,): a read-only view of the map, no copy."""
        info = self.tensor(name)
        return self._view()[info.offset : info.offset + info.n_bytes]

    def head(self) -> NDArray[np.uint8]:
        """Everything before the tensors' bytes, uint8 (data_offset,): header, metadata, tensor table; no copy."""
        return self._view()[: self.data_offset]

    def address(self, name: str) -> int:
        """The memory address of the tensor's first byte; valid until `close`."""
        return int(self._view().__array_interface__["data"][0]) + self.tensor(name).offset

    def tensor(self, name: str) -> TensorInfo:
        """The entry of the tensor table. Raises ModelFileError when the file has no such tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(
                f"{self.path} has no tensor {name!r}; the file is incomplete or of another family"
            ) from None

    def release(self, what: str | tuple[int, int]) -> None:
        """Give back the resident pages of a tensor, or of (offset, n_bytes); a later read brings them in again."""
        if isinstance(what, str):
            info = self.tensor(what)
            start, end = info.offset, info.offset + info.n_bytes
        else:
            start, end = what[0], what[0] + what[1]
        # whole pages inside the range only: the neighbours' pages stay
        start = -(-max(start, 0) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = min(end, self.size) // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Unmap the file; later reads raise ModelFileError. Arrays from `data` keep the map until they are gone."""
        mapped, self._map, self._bytes = self._map, None, None
        if mapped is not None:
            try:
                mapped.close()
            except BufferError:
                pass  # a view is still in use; the map goes with it

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _view(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise ModelFileError(f"{self.path} is closed")
        return self._bytes

    def _raw(self, start: int, end: int) -> bytes:
        if self._map is None:
            raise ModelFileError(f"{self.path} is closed")
        return self._map[start:end]

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.tensors.values())

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, version={self.version}, tensors={len(self.tensors)})"
