"""Which tensor types a file holds, over all and by tensor: counts, bytes, bits per weight. Formats nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..model.gguf import GGUFFile
from ..model.weights import unsupported_reason

__all__ = ["FILE_TYPES", "quantization"]

# general.file_type: the recipe that the writer says it used
FILE_TYPES: Mapping[int, str] = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M"), 7)),
    **dict(enumerate(("Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S"), 16)),
    **dict(enumerate(("IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), 25)),
    **dict(enumerate(("TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0", "Q2_0"), 36)),
}
_BLOCK = re.compile(r"(?:v\.|a\.|enc\.|dec\.)?blk\.(\d+)\.(.+)")


def quantization(file: GGUFFile) -> dict[str, Any]:
    """`types`: one row a type, largest first. `groups`: one row a tensor name without its layer, in file order."""
    types: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for info in file:
        native = unsupported_reason(info) is None
        row = types.setdefault(
            info.type_name, {"type": info.type_name, "tensors": 0, "parameters": 0, "bytes": 0, "native": native}
        )
        block = _BLOCK.fullmatch(info.name)
        name = (block[2] if block else info.name).removesuffix(".weight")
        group = groups.setdefault(name, {"group": name, "tensors": 0, "parameters": 0, "bytes": 0, "types": {}})
        for counted in (row, group):
            counted["tensors"] += 1
            counted["parameters"] += info.n_elements
            counted["bytes"] += info.n_bytes
        group["types"].setdefault(info.type_name, []).append(int(block[1]) if block and len(block[1]) < 10 else None)
    for group in groups.values():
        for layers in group["types"].values():
            layers.sort(key=lambda layer: -1 if layer is None else layer)
    for counted in (*types.values(), *groups.values()):
        counted["bits_per_weight"] = round(8 * counted["bytes"] / counted["parameters"], 4)
    n_bytes = sum(row["bytes"] for row in types.values())
    count = sum(row["parameters"] for row in types.values())
    declared = file.metadata.get("general.file_type")
    return {
        "file_type": FILE_TYPES.get(declared, f"unknown ({declared})") if isinstance(declared, int) else None,
        "bytes": n_bytes,
        "bits_per_weight": round(8 * n_bytes / count, 4) if count else 0.0,
        "types": sorted(types.values(), key=lambda row: -row["bytes"]),
        "groups": list(groups.values()),
    }
