"""The first blocks of a tensor, as bytes and as the weights they stand for. Plain values; formats nothing."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from ..errors import NotFoundError, SettingError
from ..model.gguf import GGUFFile
from .vocabulary import plain

__all__ = ["tensor_blocks"]

_RAW = 32  # bytes of a piece where the type has no blocks


def tensor_blocks(file: GGUFFile, name: str, n_blocks: int = 2) -> dict[str, Any]:
    """The first `n_blocks` blocks of a tensor; floats come in pieces of 8, and weights are None where nothing decodes them.

    Raises NotFoundError naming tensors that are called alike, and SettingError unless n_blocks is 1 to 1024.
    """
    if not 1 <= n_blocks <= 1024:
        raise SettingError(f"the number of blocks is {n_blocks}; wanted 1 to 1024")
    info = file.tensors.get(name)
    if info is None:
        close = difflib.get_close_matches(name, list(file.tensors), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "--tensors lists them"
        raise NotFoundError(f"{file.path} has no tensor {name!r}; {hint}")
    fmt = info.format
    size, n_bytes = (fmt.block_size, fmt.block_bytes) if fmt and fmt.block_size else (0, _RAW)
    if size == 1:  # single numbers: eight make a line
        size, n_bytes = 8, 8 * n_bytes
    data, blocks = file.data(name), []
    for at in range(0, min(n_blocks * n_bytes, len(data)), n_bytes):
        raw = data[at : at + n_bytes]
        weights: list[Any] | None = None
        if fmt is not None and fmt.dequantize is not None and fmt.block_bytes and len(raw) % fmt.block_bytes == 0:
            with np.errstate(all="ignore"):
                weights = [plain(float(w)) for w in fmt.dequantize(raw).reshape(-1)]
        blocks.append({"offset": info.offset + at, "bytes": raw.tobytes().hex(), "weights": weights})
    return {
        "name": name,
        "type": info.type_name,
        "shape": list(info.shape),
        "block_size": fmt.block_size if fmt else 0,
        "block_bytes": fmt.block_bytes if fmt else 0,
        "n_bytes": info.n_bytes,
        "blocks": blocks,
    }
