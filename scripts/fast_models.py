"""The files that `scripts/bench fast` measures: scripts/fast_models.py [NAME...], paths on stdout; made once, in .cache/models.

    smollm2-q4_0 -q5_0 -q8_0 -q4_k_m      SmolLM2-135M, its Q4_1 file requantized by llama.cpp (fit for measuring speed only)
    qwen-0.5b-q4_0, -q4_k_m ...           random weights in the shapes of Qwen2.5-0.5B and 1.5B (qwen-1.5b) and of
                                          Llama-3.2-3B (llama-3b), written directly in quantized form as architecture
                                          llama, with SmolLM2's vocabulary padded to the real one's size; seeded

Which tensor gets which type follows llama.cpp's recipes: in Q4_K_M the value and down matrices of half the layers are
Q6_K, in both recipes the token table, which is the output matrix too, is Q6_K; rows that are no multiple of 256 get Q5_0
and Q8_0 instead of Q4_K and Q6_K.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fetch_models import FOLDER, SOURCES, fetch
from numpy.typing import NDArray

from edgeinfer.formats import by_name
from edgeinfer.model.gguf import GGUFFile

__all__ = ["FILES", "Shape", "model", "write_shape"]

REQUANTIZED = {"q4_0": 2, "q5_0": 8, "q8_0": 7, "q4_k_m": 15}  # llama.cpp's numbers of recipes
SEED = 4


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model with tied embeddings."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    rope_base: float


SHAPES = {
    "qwen-0.5b": Shape(24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6),
    "qwen-1.5b": Shape(28, 1536, 8960, 12, 2, 128, 151936, 32768, 1e6),
    "llama-3b": Shape(28, 3072, 8192, 24, 8, 128, 128256, 32768, 5e5),
}
RECIPES = ("q4_0", "q4_k_m")
FILES = (
    *SOURCES,
    *(f"smollm2-{recipe}" for recipe in REQUANTIZED),
    *(f"{shape}-{recipe}" for shape in SHAPES for recipe in RECIPES),
)

# The standard deviation of a block's weights where its scale is 1 and all other bits are random.
_SPREAD = {"Q4_0": 4.61, "Q5_0": 9.23, "Q8_0": 73.9, "Q4_K": 258.0, "Q6_K": 1366.0}
_SCALE_AT = {"Q4_0": 0, "Q5_0": 0, "Q8_0": 0, "Q4_K": 0, "Q6_K": 208}  # bytes before the float16 scale


def random_blocks(kind: str, rows: int, cols: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random weights of standard deviation about 1/sqrt(cols): uint8 (rows, bytes of a row)."""
    fmt = by_name(kind)
    n = rows * cols // fmt.block_size
    raw = rng.integers(0, 1 << 63, -(-n * fmt.block_bytes // 8), np.uint64, endpoint=True)
    blocks = raw.view(np.uint8)[: n * fmt.block_bytes].reshape(n, fmt.block_bytes)
    size = rng.uniform(0.7, 1.3, n) * rng.choice((-1, 1), n)  # either sign: nibbles run from -8 to 7
    scale = (size / np.sqrt(cols) / _SPREAD[kind]).astype(np.float16)
    at = _SCALE_AT[kind]
    blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    if kind == "Q4_K":  # the minimum's scale, such that the mean is about 0
        blocks[:, 2:4] = (scale * np.float16(7.5))[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def type_of(name: str, cols: int, layer: int, n_layer: int, recipe: str) -> str:
    """The type that llama.cpp's recipe gives a matrix."""
    more = layer < n_layer // 8 or layer >= 7 * n_layer // 8 or (layer - n_layer // 8) % 3 == 2
    high = name == "token_embd" or (recipe == "q4_k_m" and name in ("attn_v", "ffn_down") and more)
    if high:
        return "Q8_0" if cols % 256 else "Q6_K"
    if recipe == "q4_0":
        return "Q4_0"
    return "Q5_0" if cols % 256 else "Q4_K"


def tensors(shape: Shape, recipe: str) -> Iterator[tuple[str, int, int, str]]:
    """(name, rows, columns, type) of every matrix; type "F32" and one row for norms."""
    yield "token_embd.weight", shape.n_vocab, shape.n_embd, type_of("token_embd", shape.n_embd, 0, 1, recipe)
    yield "output_norm.weight", 1, shape.n_embd, "F32"
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    matrices = {
        "attn_q": (q, shape.n_embd), "attn_k": (kv, shape.n_embd), "attn_v": (kv, shape.n_embd),
        "attn_output": (shape.n_embd, q), "ffn_gate": (shape.n_ff, shape.n_embd), "ffn_up": (shape.n_ff, shape.n_embd),
        "ffn_down": (shape.n_embd, shape.n_ff),
    }  # fmt: skip
    for layer in range(shape.n_layer):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", 1, shape.n_embd, "F32"
        for name, (rows, cols) in matrices.items():
            yield f"blk.{layer}.{name}.weight", rows, cols, type_of(name, cols, layer, shape.n_layer, recipe)


def vocabulary(n_vocab: int) -> dict[str, Any]:
    """SmolLM2's tokenizer, padded with unused tokens to n_vocab."""
    with GGUFFile.open(fetch("smollm2-135m")) as file:
        whole: dict[str, Any] = dict(file.metadata)
        known = {key: value for key, value in whole.items() if key.startswith("tokenizer.ggml.")}
        for key in ("tokens", "token_type", "merges"):
            known[f"tokenizer.ggml.{key}"] = list(known[f"tokenizer.ggml.{key}"])
    n = len(known["tokenizer.ggml.tokens"])
    known["tokenizer.ggml.tokens"] = [str(t) for t in known["tokenizer.ggml.tokens"]][:n_vocab]
    known["tokenizer.ggml.tokens"] += [f"<|unused_{i}|>" for i in range(n, n_vocab)]
    known["tokenizer.ggml.token_type"] = [int(t) for t in known["tokenizer.ggml.token_type"]][:n_vocab]
    known["tokenizer.ggml.token_type"] += [5] * (n_vocab - n)
    known["tokenizer.ggml.merges"] = [str(m) for m in known["tokenizer.ggml.merges"]]
    return known


def write_shape(path: Path, shape: Shape, recipe: str, seed: int = SEED) -> None:
    """Write a GGUF file of random weights. Tensors are made and written one by one."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "block_count": shape.n_layer, "context_length": shape.n_ctx, "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff, "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim, "rope.dimension_count": shape.head_dim, "vocab_size": shape.n_vocab,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", shape.rope_base)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_string("general.name", f"random weights, {path.stem}")
    for key, value in vocabulary(shape.n_vocab).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, int(value))
    listed = list(tensors(shape, recipe))
    for name, rows, cols, kind in listed:
        fmt = by_name(kind)
        sizes = [cols] if kind == "F32" else [rows, cols]
        n_bytes = rows * fmt.n_bytes(cols)
        number = gguf.GGMLQuantizationType(fmt.type_id)
        writer.add_tensor_info(name, sizes, np.dtype(np.float32), n_bytes, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, rows, cols, kind in listed:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if kind == "F32":
            writer.write_tensor_data(rng.uniform(0.9, 1.1, cols).astype(np.float32))
        else:
            writer.write_tensor_data(random_blocks(kind, rows, cols, rng))
    writer.close()


def _requantize(path: Path, recipe: str) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = REQUANTIZED[recipe], True, len(os.sched_getaffinity(0))
    source = str(fetch("smollm2-135m")).encode()
    if llama_cpp.llama_model_quantize(source, str(path).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not make {path.name}")


def model(name: str) -> Path:
    """The path of one of FILES, made first if it is not there. Ends the program for another name."""
    if name in SOURCES:
        return fetch(name)
    if name not in FILES:
        raise SystemExit(f"no model {name!r} here; there are {', '.join(FILES)}")
    path = FOLDER / f"{name}.gguf"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"making {path.name}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        part = Path(folder) / path.name
        base, recipe = next((name[: -len(r) - 1], r) for r in (*REQUANTIZED, *RECIPES) if name.endswith("-" + r))
        if base in SHAPES:
            write_shape(part, SHAPES[base], recipe)
        else:
            _requantize(part, recipe)
        os.replace(part, path)  # whole or not there
    return path


if __name__ == "__main__":
    for wanted in sys.argv[1:] or FILES:
        print(model(wanted))
