"""FILE -> what the file says: a GGUF v2/v3 reader over read-only memory maps. Must not know what a tensor is for.

A model may be split into several files (shards); from here on it is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, SettingError
from . import gguf_splits
from .gguf_header import MetadataValue, TensorInfo
from .gguf_shard import Shard

__all__ = ["GGUFFile", "MetadataValue", "TensorInfo"]


class GGUFFile:
    """An open GGUF model: metadata and tensor table parsed, tensor data mapped. Use `with`, or call `close`.

    Metadata arrays stay in the file until they are used; tensor data is never copied, nor touched while opening.
    """

    path: Path  # of the file, or of the first shard
    size: int  # bytes, of all shards
    modified_ns: int  # when it was last changed, by the file system's clock
    version: int
    alignment: int
    data_offset: int  # where tensor data starts in the file, or in the first shard
    metadata: Mapping[str, MetadataValue]  # of a split model: the first shard's
    tensors: Mapping[str, TensorInfo]  # in file order, shard after shard
    shards: tuple[Shard, ...]  # one where the model is not split

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Take mapped files; `open` is the way in."""
        self.shards = tuple(shards)
        header = shards[0].header
        self.path = shards[0].path
        self.size = sum(shard.size for shard in shards)
        self.modified_ns = max(shard.modified_ns for shard in shards)
        self.version, self.alignment, self.data_offset = header.version, header.alignment, header.data_offset
        self.metadata, self.tensors = header.metadata, header.tensors
        self._shard_of: dict[str, Shard] = {}
        if len(shards) > 1:
            self.tensors = MappingProxyType({n: info for shard in shards for n, info in shard.header.tensors.items()})
            self._shard_of = {name: shard for shard in shards[1:] for name in shard.header.tensors}

    @classmethod
    def open(cls, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> GGUFFile:
        """Map and parse a file. Of a split model name any shard: the others are found beside it by their names.

        A list names all shards, in any order and under any names. Raises NotFoundError (no such file) or ModelFileError
        (not a readable GGUF file; a shard that is missing, there twice, or of another model); of a list also SettingError,
        where a whole model is in it.
        """
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not paths:
            raise SettingError("no model file is named; wanted a .gguf file")
        opened: list[Shard] = []
        try:
            for each in paths:
                opened.append(Shard.open(Path(each)))
            return cls(gguf_splits.complete(opened))
        except BaseException:
            for shard in opened:
                shard.close()
            raise

    # -- use ----------------------------------------------------------------------------------------------------------

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, uint8 (n_bytes,): a read-only view of the map, no copy."""
        info = self.tensor(name)
        return self._of(name).view()[info.offset : info.offset + info.n_bytes]

    def head(self) -> NDArray[np.uint8]:
        """Everything before the tensors' bytes, uint8 (n,): header, metadata, tensor table; of all shards in turn."""
        heads = [shard.view()[: shard.header.data_offset] for shard in self.shards]
        return heads[0] if len(heads) == 1 else np.concatenate(heads)

    def address(self, name: str) -> int:
        """The memory address of the tensor's first byte; valid until `close`."""
        return int(self._of(name).view().__array_interface__["data"][0]) + self.tensor(name).offset

    def tensor(self, name: str) -> TensorInfo:
        """The entry of the tensor table. Raises ModelFileError when the file has no such tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(
                f"{self.path} has no tensor {name!r}; the file is incomplete or of another family"
            ) from None

    def release(self, name: str, start: int = 0, n_bytes: int | None = None) -> None:
        """Give back the resident pages of a tensor, or of n_bytes from its byte `start`; a later read maps them again."""
        info = self.tensor(name)
        end = info.n_bytes if n_bytes is None else min(start + n_bytes, info.n_bytes)
        self._of(name).release(info.offset + start, info.offset + end)

    def close(self) -> None:
        """Unmap the file; later reads raise ModelFileError. Arrays from `data` keep the map until they are gone."""
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _of(self, name: str) -> Shard:
        return self._shard_of.get(name, self.shards[0])

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.tensors.values())

    def __repr__(self) -> str:
        split = f", shards={len(self.shards)}" if len(self.shards) > 1 else ""
        return f"GGUFFile({str(self.path)!r}, version={self.version}, tensors={len(self.tensors)}{split})"
