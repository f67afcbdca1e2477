"""Two files -> what differs between them, or whether one may draft for the other. Plain values; formats nothing."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.draft_pair import match_vocabularies
from ..model.gguf import GGUFFile, TensorInfo
from ..model.lazy_array import LazyArray
from ..model.purpose import other_purpose
from .vocabulary import plain

__all__ = ["SAMPLE", "compare_files", "draft_pair"]

SAMPLE = 1 << 16  # weights of a tensor that are decoded to say how far two differ
_CHUNK = 1 << 24  # bytes compared at a time, so that neither file is resident at once


def compare_files(a: GGUFFile, b: GGUFFile) -> dict[str, Any]:
    """What is in one file and not, or not the same, in the other. Reads every tensor that both hold in one type and shape.

    `distance` is |a - b| / |a| over the first weights of a tensor (root of the sums of squares), where both types can be
    decoded here; None elsewhere.
    """
    meta_a, meta_b = a.metadata, b.metadata
    changed = [key for key in meta_a if key in meta_b and not _equal(meta_a[key], meta_b[key])]
    tensors: dict[str, list[Any]] = {"shape": [], "type": [], "content": []}
    n_same = 0
    for info in a:
        other = b.tensors.get(info.name)
        if other is None:
            continue
        if info.shape != other.shape:
            tensors["shape"].append({"name": info.name, "a": list(info.shape), "b": list(other.shape)})
            continue
        if info.type_name != other.type_name:
            kinds = {"a": info.type_name, "b": other.type_name}
            tensors["type"].append({"name": info.name, **kinds, "distance": _distance(a, b, info, other)})
            continue
        digests = _digests_if_different(a, b, info)
        if digests is None:
            n_same += 1
        else:
            hashes = {"a_sha256": digests[0], "b_sha256": digests[1]}
            tensors["content"].append(
                {"name": info.name, "type": info.type_name, "distance": _distance(a, b, info, other), **hashes}
            )
    metadata = {
        "only_a": {key: plain(meta_a[key]) for key in meta_a if key not in meta_b},
        "only_b": {key: plain(meta_b[key]) for key in meta_b if key not in meta_a},
        "changed": [_change(key, meta_a[key], meta_b[key]) for key in changed],
    }
    only = {
        "only_a": [n for n in a.tensors if n not in b.tensors],
        "only_b": [n for n in b.tensors if n not in a.tensors],
    }
    return {
        "a": {"path": str(a.path), "size": a.size},
        "b": {"path": str(b.path), "size": b.size},
        "same": not any(metadata.values()) and not any(only.values()) and not any(tensors.values()),
        "metadata": metadata,
        "tensors": {**only, **tensors, "n_same": n_same},
    }


def draft_pair(target: GGUFFile, draft: GGUFFile) -> dict[str, Any]:
    """Whether `draft` may draft for `target`, which ids differ, and how much smaller it is."""
    beside = (("target", target), ("draft", draft))
    match = match_vocabularies(target.metadata, draft.metadata)
    sizes = {}
    for name, file in beside:
        arch = file.metadata.get("general.architecture")
        sizes[name] = {
            "path": str(file.path),
            "architecture": arch if isinstance(arch, str) else None,
            "parameters": sum(info.n_elements for info in file),
            "bytes": sum(info.n_bytes for info in file),
            "n_ctx_train": plain(file.metadata.get(f"{arch}.context_length")),
        }
    problems = [f"the {name} is {what}" for name, file in beside if (what := other_purpose(file)) is not None]
    ratio = {
        key: sizes["target"][key] / sizes["draft"][key] if sizes["draft"][key] else None
        for key in ("parameters", "bytes")
    }
    notes = list(match.notes)
    windows = [sizes[name]["n_ctx_train"] for name in ("target", "draft")]
    if all(type(window) is int for window in windows) and windows[1] < windows[0]:
        notes.append(
            f"the draft was trained for {windows[1]:,} tokens, the target for {windows[0]:,}: beyond, it guesses worse"
        )
    if ratio["bytes"] and ratio["bytes"] < 2:
        notes.append(f"the draft's weights are {1 / ratio['bytes']:.2f} of the target's: drafting will hardly pay")
    return {
        **sizes,
        "ratio": {key: None if value is None else round(value, 3) for key, value in ratio.items()},
        "compatible": match.compatible and not problems,
        "problems": [*problems, *match.problems],
        "notes": notes,
        "vocabulary": {
            "n_target": match.n_target,
            "n_draft": match.n_draft,
            "n_differing": match.n_differing,
            "differing": [{"id": i, "target": a, "draft": b} for i, a, b in match.differing],
        },
    }


def _equal(a: object, b: object) -> bool:
    """Whether two metadata values are the same, arrays by their content."""
    if isinstance(a, LazyArray) and isinstance(b, LazyArray):
        if a.kind != b.kind or len(a) != len(b):
            return False
        if a.kind == "string":
            return a.bytes_list() == b.bytes_list()
        if a.kind == "array":
            return all(_equal(x, y) for x, y in zip(a, b, strict=True))
        return bool(np.array_equal(a.numpy().view(np.uint8), b.numpy().view(np.uint8)))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    return type(a) is type(b) and a == b


def _change(key: str, a: object, b: object) -> dict[str, Any]:
    """A key with both values; of arrays of one length, where they part."""
    row = {"key": key, "a": plain(a), "b": plain(b)}
    if isinstance(a, LazyArray) and isinstance(b, LazyArray) and a.kind == b.kind and a.kind != "array":
        parted = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        if parted:
            first = {"first": parted[0], "first_a": plain(a[parted[0]]), "first_b": plain(b[parted[0]])}
            row.update(n_differing=len(parted), **first)
    return row


def _digests_if_different(a: GGUFFile, b: GGUFFile, info: TensorInfo) -> tuple[str, str] | None:
    """SHA-256 of a tensor in both files, None where its bytes are the same."""
    first, second = a.data(info.name), b.data(info.name)
    try:
        if len(first) == len(second) and all(
            np.array_equal(first[at : at + _CHUNK], second[at : at + _CHUNK]) for at in range(0, len(first), _CHUNK)
        ):
            return None
        return hashlib.sha256(first.data).hexdigest(), hashlib.sha256(second.data).hexdigest()
    finally:
        a.release(info.name)
        b.release(info.name)


def _distance(a: GGUFFile, b: GGUFFile, info: TensorInfo, other: TensorInfo) -> float | None:
    """Relative distance of the first weights of a tensor in two files."""
    first, second = _start(a, info), _start(b, other)
    if first is None or second is None:
        return None
    n = min(len(first), len(second))
    with np.errstate(all="ignore"):
        gap = float(np.linalg.norm(first[:n] - second[:n]) / np.linalg.norm(first[:n]))
    return gap if np.isfinite(gap) else None


def _start(file: GGUFFile, info: TensorInfo) -> NDArray[np.float64] | None:
    fmt = info.format
    if fmt is None or fmt.dequantize is None or not fmt.block_size:
        return None
    n_bytes = min(info.n_bytes, -(-SAMPLE // fmt.block_size) * fmt.block_bytes)
    with np.errstate(all="ignore"):
        return fmt.dequantize(file.data(info.name)[:n_bytes]).reshape(-1).astype(np.float64)
