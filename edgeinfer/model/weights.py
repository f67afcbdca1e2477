"""FILE -> Weights: the tensors of one model by name, with the checks before computing. Must not know a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, UnsupportedModelError
from ..formats import FORMATS
from .config import ModelConfig
from .gguf import GGUFFile, TensorInfo

__all__ = ["Weights", "unsupported_reason"]


def unsupported_reason(info: TensorInfo) -> str | None:
    """Why the native engine cannot multiply by this tensor, as the end of a sentence; None where it can."""
    if info.format is not None and info.format.native:
        return None
    if info.format is not None and info.format.withdrawn:
        return f"{info.type_name}: {info.format.withdrawn}"
    return (
        f"{info.type_name}, which the native engine does not run: get the same model in another quant (Q4_K_M, say; it runs "
        f"{_native_names()}), or run this file with llama.cpp"
    )


class Weights:
    """The tensors of an open file. Owns the file: `close` closes it."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self.file = file
        self.config = config

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor of this name."""
        return name in self.file.tensors

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> TensorInfo:
        """The tensor's entry. Raises ModelFileError when it is missing, or not of `shape` (rows first) where given."""
        info = self.file.tensor(name)
        if shape is not None and info.shape != shape:
            raise ModelFileError(
                f"{self.file.path}: tensor {name!r} has shape {info.shape}; wanted {shape}, by its own settings"
            )
        return info

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes (n_bytes,), a view of the mapped file."""
        return self.file.data(name)

    def address(self, name: str) -> int:
        """The memory address of the tensor's first byte; valid until `close`."""
        return self.file.address(name)

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32 in its shape: a fresh array. Meant for norms and other small tensors.

        Raises ModelFileError (missing) or UnsupportedModelError (the type has no NumPy twin).
        """
        info = self.file.tensor(name)
        if info.format is None or info.format.dequantize is None:
            raise UnsupportedModelError(f"{self.file.path}: tensor {name!r} is {unsupported_reason(info)}")
        return info.format.dequantize(self.file.data(name)).reshape(info.shape).copy()

    def require_native(self, names: Iterable[str] | None = None) -> None:
        """Refuse a model with tensors (of `names`, or all) that the native engine cannot run.

        Raises UnsupportedModelError naming the first such tensor, its type and what to do.
        """
        for name in self.file.tensors if names is None else names:
            reason = unsupported_reason(self.file.tensor(name))
            if reason is not None:
                raise UnsupportedModelError(f"{self.file.path}: tensor {name!r} is {reason}")

    def release(self, name: str) -> None:
        """Give back the tensor's resident pages."""
        self.file.release(name)

    def close(self) -> None:
        """Close the file; addresses and views are invalid from here on."""
        self.file.close()

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.file)

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _native_names() -> str:
    return ", ".join(fmt.name for fmt in FORMATS.values() if fmt.native)
