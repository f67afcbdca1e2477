"""FILE -> a summary: what is in a GGUF file, what it needs, and what each backend can run of it and why not.

Collects plain values (what `inspect --json` prints); formats nothing. Imports neither numba nor a tokenizer library.

The keys are stable: a later version may add some, and raises `schema` when it changes or takes away any.

    schema, path, shards, size, version, byte_order, alignment, data_offset, n_metadata, n_tensors
    architecture, name, about (licence, authors, base models), config, hyperparameters (as written), rope
    parameters, quantization (types, groups), tokenizer (special, ends, oddities), template (lint)
    memory (at one context), memory_plans (at several, by KV type), native, llamacpp, metadata; with --tensors: tensors
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EdgeInferError, SettingError, TemplateError
from ..model.config import ModelConfig
from ..model.gguf import GGUFFile, TensorInfo
from ..model.purpose import other_purpose
from ..model.weights import unsupported_reason
from ..plan.packing import KV_TYPES
from .backends import llamacpp, native_problems, read_config
from .memory import CONTEXTS, plan_memory, windows_of
from .quant_mix import FILE_TYPES, quantization
from .vocabulary import plain, tokenizer_facts

if TYPE_CHECKING:
    from ..model.template_lint import Finding

__all__ = ["FILE_TYPES", "SCHEMA", "default_n_ctx", "summarize"]

SCHEMA = 1
LINT_TOKENS = 1 << 16  # up to so many, a template is held against the vocabulary unasked: it needs the whole tokenizer
ABOUT = (
    *(
        "license",
        "author",
        "organization",
        "version",
        "finetune",
        "size_label",
        "url",
        "repo_url",
        "source",
        "base_model",
    ),
    *("quantized_by", "languages", "tags", "datasets", "dataset", "description"),
)


def default_n_ctx(n_ctx_train: int) -> int:
    """The context that is used where none is asked for: the trained one, at most 4096."""
    return min(n_ctx_train, 4096)


def summarize(
    file: GGUFFile, n_ctx: int | None = None, tensors: bool = False, lint: bool | None = None
) -> dict[str, Any]:
    """Everything worth knowing about an open file, as plain values ready for JSON.

    n_ctx is the context that memory is planned for (default: as a chat would choose). `tensors` adds the tensor table.
    `lint` says whether the template is held against the vocabulary (default: where that is small enough to be quick). Raises
    SettingError when n_ctx is not in 1..n_ctx_train. A file that nothing here can run is summarized as well.
    """
    config, problems = read_config(file)
    embedding = file.tensors.get("token_embd.weight")
    tokenizer = tokenizer_facts(file, embedding.shape[0] if embedding else None)
    more = native_problems(file, config) + tokenizer.pop("problems")
    if other_purpose(file) is None:  # a file that is no language model lacks nothing
        problems += more
    arch = file.metadata.get("general.architecture")
    arch = arch if isinstance(arch, str) else None
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "path": str(file.path),
        "shards": [
            {"path": str(shard.path), "size": shard.size, "n_tensors": len(shard.header.tensors)}
            for shard in file.shards
        ],
        "size": file.size,
        "version": file.version,
        "byte_order": "little",  # a big-endian file is refused by name when it is opened
        "alignment": file.alignment,
        "data_offset": file.data_offset,
        "n_metadata": len(file.metadata),
        "n_tensors": len(file.tensors),
        "architecture": arch,
        "name": plain(file.metadata.get("general.name")),
        "about": _under(file, "general", ABOUT),
        "config": dataclasses.asdict(config) if config else None,
        "hyperparameters": _under(file, arch) if arch else {},
        "rope": _rope(file, arch),
        "parameters": _parameters(file, arch),
        "quantization": quantization(file),
        "tokenizer": tokenizer,
        "template": _template(file, tokenizer["n_tokens"], lint),
        "memory": _memory(file, config, n_ctx),
        "memory_plans": _memory_plans(file, config, n_ctx),
        "native": {"runs": not problems, "problems": problems},
        "llamacpp": llamacpp(file),
        "metadata": {key: plain(value) for key, value in file.metadata.items()},
    }
    if tensors:
        summary["tensors"] = [_tensor(info) for info in file]
    return summary


def _under(file: GGUFFile, prefix: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The metadata below a prefix, without it; only keys that are, or begin with, one of `names` where there are any."""
    found = {
        key[len(prefix) + 1 :]: plain(value) for key, value in file.metadata.items() if key.startswith(prefix + ".")
    }
    return {key: value for key, value in found.items() if not names or key.split(".")[0] in names}


def _rope(file: GGUFFile, arch: str | None) -> dict[str, Any]:
    """How positions are rotated, as the file writes it, and the tensors that scale single frequencies."""
    keys = _under(file, f"{arch}.rope") if arch else {}
    factors = [name for name in file.tensors if name.rpartition("/")[2].startswith("rope_")][:4]
    return {**keys, "factor_tensors": factors}


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "type": info.type_name,
        "shape": list(info.shape),
        "offset": info.offset,
        "bytes": info.n_bytes,
        "native": unsupported_reason(info) is None,
    }


def _parameters(file: GGUFFile, arch: str | None) -> dict[str, Any]:
    """Counts of numbers in tensors; an embedding matrix that is also the output matrix counts once.

    `active` is what one token passes through in a model of experts: the chosen share of the experts, and all else.
    """
    total = sum(info.n_elements for info in file)
    embedding, output = file.tensors.get("token_embd.weight"), file.tensors.get("output.weight")
    stored_twice = embedding is not None and output is not None and _same(file, embedding, output)
    if stored_twice and output is not None:
        total -= output.n_elements
    experts = sum(info.n_elements for info in file if "_exps." in info.name)
    n, used = (file.metadata.get(f"{arch}.expert_{name}") for name in ("count", "used_count"))
    active = None
    if experts and type(n) is int and type(used) is int and 0 < used <= n:
        active = total - experts + experts * used // n
    return {
        "total": total,
        "active": active,
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


def _memory(file: GGUFFile, config: ModelConfig | None, n_ctx: int | None) -> dict[str, Any] | None:
    if n_ctx is not None and n_ctx < 1:
        raise SettingError(f"n_ctx is {n_ctx}; wanted at least 1")
    if config is None:
        return None
    if n_ctx is not None and n_ctx > config.n_ctx_train:
        raise SettingError(f"n_ctx is {n_ctx}, but {file.path.name} was trained for {config.n_ctx_train}; ask for less")
    weights = sum(info.n_bytes for info in file)
    plan = plan_memory(weights, config, n_ctx or default_n_ctx(config.n_ctx_train), windows=windows_of(config))
    return {**dataclasses.asdict(plan), "total": plan.total}


def _memory_plans(file: GGUFFile, config: ModelConfig | None, n_ctx: int | None) -> list[dict[str, Any]]:
    """KV cache and total at several contexts, for each type of KV cache that the model can have."""
    if config is None:
        return []
    weights, windows = sum(info.n_bytes for info in file), windows_of(config)
    contexts = {n for n in CONTEXTS if n < config.n_ctx_train} | {config.n_ctx_train} | ({n_ctx} if n_ctx else set())
    rows = []
    for n in sorted(contexts):
        for kv_type in KV_TYPES:
            if kv_type == "f16" or config.head_dim % 32 == 0:
                plan = plan_memory(weights, config, n, kv_type=kv_type, windows=windows)
                rows.append({"n_ctx": n, "kv_type": kv_type, "kv": plan.kv, "total": plan.total})
    return rows


def _template(file: GGUFFile, n_tokens: int, lint: bool | None) -> dict[str, Any]:
    """The chat templates: whether the one that is used parses, and what a lint says (None where it was not made)."""
    sources = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.chat_template") and isinstance(v, str)}
    source = sources.get("tokenizer.chat_template")
    others = [key.removeprefix("tokenizer.chat_template.") for key in sources if key != "tokenizer.chat_template"]
    if not source:
        return {
            "present": False,
            "parses": None,
            "error": None,
            "refuses": None,
            "length": 0,
            "others": others,
            "lint": None,
        }
    from ..model.sandbox import TemplateSandbox  # brings jinja2, which a file without a template need not wait for

    error: str | None = None
    try:
        TemplateSandbox(1.0).compiled(source)
    except TemplateError as broken:
        error = str(broken)
    whole = n_tokens <= LINT_TOKENS if lint is None else lint
    found = _lint(file, source, whole) if error is None else None
    return {
        "present": True,
        "parses": error is None,
        "error": error,
        "refuses": error or next((f.text for f in found or () if f.fatal), None),  # why no chat can be had at all
        "length": len(source),
        "others": others,
        "lint": None if found is None else [{"severity": f.severity, "line": f.line, "text": f.text} for f in found],
    }


def _lint(file: GGUFFile, source: str, whole: bool) -> list[Finding] | None:
    """What the template lint finds. None where there is no lint.

    `whole` also looks at how the template fits the vocabulary, for which the tokenizer is built.
    """
    try:
        from ..model.template_lint import lint  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError:
        return None
    tokenizer = None
    if whole:
        import warnings

        from ..model.tokenizer import Tokenizer

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a missing pre-tokenizer is among the oddities
                tokenizer = Tokenizer.from_gguf(file)
        except EdgeInferError:
            pass  # the problems say why
    return list(lint(source, tokenizer))
