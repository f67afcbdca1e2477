"""FILE -> a summary: what is in a GGUF file, what it needs, and what the native engine can run of it and why not.

Collects plain values (what `inspect --json` prints); formats nothing. Imports neither numba nor a tokenizer library.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arch import ARCHS
from ..errors import EdgeInferError, ModelFileError, SettingError, TemplateError, UnsupportedModelError
from ..model.config import ModelConfig, architecture
from ..model.gguf import GGUFFile, TensorInfo
from ..model.lazy_array import LazyArray
from ..model.pretokenizers import rule_named
from ..model.special_tokens import end_ids, token_kinds
from ..model.weights import unsupported_reason
from .memory import plan_memory

__all__ = ["FILE_TYPES", "default_n_ctx", "summarize"]

# general.file_type: the recipe that the writer says it used
FILE_TYPES: Mapping[int, str] = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M"), 7)),
    **dict(enumerate(("Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S"), 16)),
    **dict(enumerate(("IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), 25)),
    **dict(enumerate(("TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0", "Q2_0"), 36)),
}
TOKENIZER_KINDS = {"gpt2": "BPE", "llama": "SPM", "bert": "WPM", "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2"}
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding", "separator", "seperator", "cls", "mask")


def default_n_ctx(n_ctx_train: int) -> int:
    """The context that is used where none is asked for: the trained one, at most 4096."""
    return min(n_ctx_train, 4096)


def summarize(file: GGUFFile, n_ctx: int | None = None, tensors: bool = False) -> dict[str, Any]:
    """Everything worth knowing about an open file, as plain values ready for JSON.

    n_ctx is the context that memory is planned for (default: as a chat would choose). `tensors` adds the tensor table.
    Raises SettingError when n_ctx is not in 1..n_ctx_train. A file that nothing here can run is summarized as well.
    """
    problems: list[str] = []
    config: ModelConfig | None = None
    arch = file.metadata.get("general.architecture")
    try:
        if architecture(file) not in ARCHS:
            problems.append(f"the family {arch!r} is not one that the native engine runs ({', '.join(sorted(ARCHS))})")
        config = ModelConfig.from_gguf(file)
        if config.arch in ARCHS:
            ARCHS[config.arch].check(config)
    except (ModelFileError, UnsupportedModelError) as error:
        problems.append(str(error).removeprefix(f"{file.path}: "))
    problems += _tensor_problems(file)
    tokenizer = _tokenizer(file)
    problems += tokenizer.pop("problems")
    summary: dict[str, Any] = {
        "path": str(file.path),
        "size": file.size,
        "version": file.version,
        "alignment": file.alignment,
        "data_offset": file.data_offset,
        "n_metadata": len(file.metadata),
        "n_tensors": len(file.tensors),
        "architecture": arch if isinstance(arch, str) else None,
        "name": _plain(file.metadata.get("general.name")),
        "config": dataclasses.asdict(config) if config else None,
        "parameters": _parameters(file),
        "quantization": _quantization(file),
        "tokenizer": tokenizer,
        "template": _template(file),
        "memory": _memory(file, config, n_ctx),
        "native": {"runs": not problems, "problems": problems},
        "metadata": {key: _plain(value) for key, value in file.metadata.items()},
    }
    if tensors:
        summary["tensors"] = [_tensor(info) for info in file]
    return summary


def _plain(value: object) -> Any:
    """A metadata value as JSON can hold it: long arrays by their kind and length, odd floats as text."""
    if isinstance(value, LazyArray):
        if len(value) > 64 or value.kind == "array":
            return {"kind": value.kind, "length": len(value)}
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "type": info.type_name,
        "shape": list(info.shape),
        "offset": info.offset,
        "bytes": info.n_bytes,
        "native": unsupported_reason(info) is None,
    }


def _parameters(file: GGUFFile) -> dict[str, Any]:
    """Counts of numbers in tensors; an embedding matrix that is also the output matrix counts once."""
    total = sum(info.n_elements for info in file)
    embedding, output = file.tensors.get("token_embd.weight"), file.tensors.get("output.weight")
    stored_twice = embedding is not None and output is not None and _same(file, embedding, output)
    if stored_twice and output is not None:
        total -= output.n_elements
    return {
        "total": total,
        "embedding": embedding.n_elements if embedding else 0,
        "tied_embeddings": embedding is not None and (output is None or stored_twice),
        "embeddings_stored_twice": stored_twice,
    }


def _same(file: GGUFFile, a: TensorInfo, b: TensorInfo) -> bool:
    """Whether two tensors hold the same bytes; a sample decides first, so that most files are hardly read."""
    if (a.type_id, a.shape) != (b.type_id, b.shape):
        return False
    first, second = file.data(a.name), file.data(b.name)
    step = max(len(first) // 64, 1)
    return bool(np.array_equal(first[::step], second[::step]) and np.array_equal(first, second))


def _quantization(file: GGUFFile) -> dict[str, Any]:
    types: dict[str, dict[str, Any]] = {}
    for info in file:
        row = types.setdefault(
            info.type_name,
            {
                "type": info.type_name,
                "tensors": 0,
                "parameters": 0,
                "bytes": 0,
                "native": unsupported_reason(info) is None,
            },
        )
        row["tensors"] += 1
        row["parameters"] += info.n_elements
        row["bytes"] += info.n_bytes
    for row in types.values():
        row["bits_per_weight"] = round(8 * row["bytes"] / row["parameters"], 4)
    n_bytes = sum(row["bytes"] for row in types.values())
    count = sum(row["parameters"] for row in types.values())
    declared = file.metadata.get("general.file_type")
    return {
        "file_type": FILE_TYPES.get(declared, f"unknown ({declared})") if isinstance(declared, int) else None,
        "bytes": n_bytes,
        "bits_per_weight": round(8 * n_bytes / count, 4) if count else 0.0,
        "types": sorted(types.values(), key=lambda row: -row["bytes"]),
    }


def _memory(file: GGUFFile, config: ModelConfig | None, n_ctx: int | None) -> dict[str, Any] | None:
    if n_ctx is not None and n_ctx < 1:
        raise SettingError(f"n_ctx is {n_ctx}; wanted at least 1")
    if config is None:
        return None
    if n_ctx is not None and n_ctx > config.n_ctx_train:
        raise SettingError(f"n_ctx is {n_ctx}, but {file.path.name} was trained for {config.n_ctx_train}; ask for less")
    plan = plan_memory(sum(i.n_bytes for i in file), config, n_ctx or default_n_ctx(config.n_ctx_train))
    return {**dataclasses.asdict(plan), "total": plan.total}


def _tensor_problems(file: GGUFFile) -> list[str]:
    """One sentence per type that does not run, naming one tensor of it."""
    bad: dict[str, list[TensorInfo]] = {}
    for info in file:
        if unsupported_reason(info) is not None:
            bad.setdefault(info.type_name, []).append(info)
    answers = []
    for infos in bad.values():
        more = f" and {len(infos) - 1} more" if len(infos) > 1 else ""
        answers.append(f"tensor {infos[0].name!r}{more}: {unsupported_reason(infos[0])}")
    return answers


def _tokenizer(file: GGUFFile) -> dict[str, Any]:
    """The tokenizer's kind, its rule, its special ids and the ids that end an answer."""
    meta = file.metadata
    model, pre, tokens = (meta.get(f"tokenizer.ggml.{name}") for name in ("model", "pre", "tokens"))
    problems: list[str] = []
    specials: dict[str, Any] = {}
    ends: list[dict[str, Any]] = []
    if isinstance(tokens, LazyArray) and tokens.kind == "string":
        vocab = _Vocabulary(tokens)
        ids = {name: meta.get(f"tokenizer.ggml.{name}_token_id") for name in SPECIAL}
        specials = {name: {"id": i, "text": vocab.text(i)} for name, i in ids.items() if type(i) is int}
        try:
            ends = [{"id": i, "text": vocab.text(i)} for i in sorted(_end_ids(file, vocab, ids["eos"]))]
            if model == "gpt2":
                rule_named(str(pre) if pre is not None else "default")
        except EdgeInferError as error:
            problems.append(str(error))
        if model not in ("gpt2", "llama"):
            problems.append(f"its tokenizer is {_plain(model)!r}; known are 'gpt2' (BPE) and 'llama' (SPM)")
    else:
        problems.append("it has no vocabulary (tokenizer.ggml.tokens)")
    return {
        "model": _plain(model),
        "kind": TOKENIZER_KINDS.get(model, "unknown") if isinstance(model, str) else None,
        "pre": _plain(pre),
        "n_tokens": len(tokens) if isinstance(tokens, LazyArray) else 0,
        "add_bos": _plain(meta.get("tokenizer.ggml.add_bos_token")),
        "add_eos": _plain(meta.get("tokenizer.ggml.add_eos_token")),
        "add_space_prefix": _plain(meta.get("tokenizer.ggml.add_space_prefix")),
        "special": specials,
        "ends": ends,
        "problems": problems,
    }


def _end_ids(file: GGUFFile, vocab: Any, eos: object) -> frozenset[int]:
    """The ids that end an answer; `vocab` is a _Vocabulary, which does what `end_ids` asks of a table."""
    types = file.metadata.get("tokenizer.ggml.token_type")
    numbers = types.numpy() if isinstance(types, LazyArray) and types.kind not in ("string", "array") else None
    if type(eos) is not int:
        eos = 2 if file.metadata.get("tokenizer.ggml.model") == "llama" and len(vocab) > 2 else None
    return end_ids(file.metadata, vocab, token_kinds(numbers, vocab), eos)


class _Vocabulary:
    """Finds a few tokens of a vocabulary in the file's own bytes: a table of all would take most of the time."""

    def __init__(self, tokens: LazyArray) -> None:
        self._raw, self._starts, self._ends = tokens.packed()

    def __len__(self) -> int:
        return len(self._starts)

    def text(self, index: int) -> str | None:
        """The token's text; None for an id that does not exist."""
        if not 0 <= index < len(self):
            return None
        return self._raw[self._starts[index] : self._ends[index]].decode(errors="replace")

    def find(self, string: bytes) -> int:
        """The first id of the token, or -1."""
        pattern, at = len(string).to_bytes(8, "little") + string, -1
        while (at := self._raw.find(pattern, at + 1)) >= 0:
            index = int(np.searchsorted(self._starts, at + 8))
            # the same bytes may also lie across the border of two other tokens
            if index < len(self) and self._starts[index] == at + 8:
                return index
        return -1


def _template(file: GGUFFile) -> dict[str, Any]:
    source = file.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str) or not source:
        return {"present": False, "parses": None, "error": None, "length": 0}
    from ..model.sandbox import TemplateSandbox  # brings jinja2, which a file without a template need not wait for

    error: str | None = None
    try:
        TemplateSandbox(1.0).compiled(source)
    except TemplateError as broken:
        error = str(broken)
    return {"present": True, "parses": error is None, "error": error, "length": len(source)}
