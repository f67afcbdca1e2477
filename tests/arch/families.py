"""The small random models of tests/data/families (made by scripts/make_families.py), unpacked, and copies in other types."""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgeinfer.formats import by_name
from tests.models import ROOT

__all__ = ["NAMES", "Reference", "copied", "reference", "unpack"]

FOLDER = ROOT / "tests" / "data" / "families"
NAMES = sorted(path.name.removesuffix(".gguf.xz") for path in FOLDER.glob("*.gguf.xz"))
FLOAT = ("_norm", "ffn_gate_inp", "shortconv.conv", "rope_", ".bias")  # what stays float32 in a quantized copy


@dataclass(frozen=True)
class Reference:
    """What transformers computed in float32."""

    ids: list[int]  # 220 tokens
    positions: NDArray[np.int32]  # (n,)
    logits: NDArray[np.float32]  # (n, n_vocab), at the positions
    short_logits: NDArray[np.float32] | None  # (60, n_vocab) of the first 60 tokens alone, for longrope models


@cache
def reference(name: str) -> Reference:
    """The ids and logits of a family."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        short = stored.get("short_logits")
        return Reference(stored["ids"].tolist(), stored["positions"], stored["logits"], short)


def unpack(name: str, folder: Path) -> Path:
    """The float32 file of a family, written into a folder."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        path.write_bytes(lzma.decompress((FOLDER / f"{name}.gguf.xz").read_bytes()))
    return path


def copied(
    source: Path, target: Path, kind: str = "F32", keys: dict[str, Any] | None = None, drop: tuple[str, ...] = ()
) -> Path:
    """A copy with matrices of another type, further keys (uint32, float32, text or bool) and without some tensors."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        if (
            not field.name.startswith("GGUF.")
            and field.name != "general.architecture"
            and field.name not in (keys or {})
        ):
            types = field.types
            writer.add_key_value(field.name, field.contents(), types[0], types[-1] if len(types) > 1 else None)
    for key, value in (keys or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    fmt = by_name(kind)
    for tensor in reader.tensors:
        if tensor.name in drop:
            continue
        data = np.array(tensor.data)
        if kind == "F32" or data.ndim < 2 or any(part in tensor.name for part in FLOAT):
            writer.add_tensor(tensor.name, data)
        else:
            assert fmt.quantize is not None
            rows = fmt.quantize(data)
            writer.add_tensor(tensor.name, rows, raw_dtype=gguf.GGMLQuantizationType(fmt.type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
