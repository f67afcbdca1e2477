"""Split models for tests, written by the `gguf` package's own splitter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

__all__ = ["split"]


def split(whole: Path, folder: Path, n_tensors: int, name: str = "model") -> list[Path]:
    """Write the model of `whole` into shards of at most n_tensors tensors; their paths in order."""
    reader = gguf.GGUFReader(whole)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    writer = gguf.GGUFWriter(None, fields["general.architecture"].contents(), split_max_tensors=n_tensors)
    for key, field in fields.items():
        if key != "general.architecture":
            value, kind = field.contents(), field.types[0]
            more: dict[str, Any] = {"sub_type": field.types[-1]} if kind == gguf.GGUFValueType.ARRAY else {}
            writer.add_key_value(key, value, kind, **more)
    for tensor in reader.tensors:
        quantized = tensor.tensor_type not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type if quantized else None)
    folder.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(folder / f"{name}.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}-*-of-*.gguf"))
