"""A seeded builder of tiny random GGUF models: every family and weight type, no download, readable by llama.cpp too.

    build_tiny(tmp_path / "m.gguf", arch="gemma3", types={"default": "Q4_0", "token_embd": "Q8_0"}, n_layer=3)

The weights are random but well scaled, so that logits differ from token to token and errors show.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgeinfer.formats import Format, by_name

__all__ = ["CHATML", "build_tiny", "byte_vocabulary", "random_blocks"]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
# Where a block's scale stands, for the types without a quantizer; and the middle of q, for those with a minimum behind it.
D_AT = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "IQ4_NL": 0, "IQ4_XS": 0}
MEAN_Q = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
# The bytes that hold a low bit of each sub-block's scale, and that bit.
ODD = {"Q2_K": (0, 16, 1), "Q3_K": (96, 104, 0x11), "Q6_K": (192, 208, 1), "IQ4_XS": (4, 8, 0x11)}
WORDS = ("the", "and", "hello", "world", "what", "is", "capital", "of", "France", "one", "two", "weather", "today")


def build_tiny(
    path: Path,
    arch: str = "llama",
    types: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    n_layer: int = 2,
    n_embd: int | None = None,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int | None = None,
    n_ff: int | None = None,
    n_ctx_train: int = 512,
    tied: bool | None = None,
    duplicate_output: bool = False,
    n_rows: int | None = None,
    n_expert: int = 0,
    tokenizer: str | None = None,
    pre: str = "smollm",
    template: str | None = "",
    sliding_window: int = 32,
    sliding_window_pattern: int | None = 2,
    rope_base: float = 10000.0,
    rope_freqs: NDArray[np.float32] | None = None,
    metadata: Mapping[str, Any] | None = None,
    omit_tensors: tuple[str, ...] = (),
    replace_tensors: Mapping[str, NDArray[np.float32]] | None = None,
    endian: str = "little",
) -> Path:
    """Write a tiny model to `path` and return it.

    `types` maps a tensor name, its stem ("attn_q", "ffn_down", "token_embd", "output") or "default" to a GGML type
    name; vectors (norms) are always F32. `n_embd` is 64, or 256 where a K-quant is used. `tied` leaves out
    `output.weight` (default: gemma3 only); `duplicate_output` stores the embedding matrix a second time as
    `output.weight`. `n_rows` gives the embedding more rows than there are tokens. `tokenizer` is "bpe" (gpt2; default
    for llama) or "spm" (llama; default for gemma3). `template` "" is ChatML, None is no template. `metadata` sets
    further keys, or changes them ("{arch}" is put before keys that start with a dot); None drops the key.
    """
    types = {"default": "F32", **(types or {})}
    width = max(by_name(name).block_size for name in types.values())
    n_embd = n_embd or (256 if width > 64 else 64)
    n_ff = n_ff or 2 * n_embd
    key_length = head_dim or n_embd // n_head
    tied = (arch == "gemma3") if tied is None else tied
    kind = tokenizer or ("spm" if arch == "gemma3" else "bpe")
    keys = _bpe(pre) if kind == "bpe" else _spm()
    keys.update(
        {
            "general.name": f"tiny {arch}",
            ".context_length": ("uint32", n_ctx_train),
            ".embedding_length": ("uint32", n_embd),
            ".block_count": ("uint32", n_layer),
            ".feed_forward_length": ("uint32", n_ff),
            ".attention.head_count": ("uint32", n_head),
            ".attention.head_count_kv": ("uint32", n_head_kv),
            ".attention.layer_norm_rms_epsilon": ("float32", 1e-5),
            ".rope.freq_base": ("float32", rope_base),
            "general.file_type": ("uint32", 0),
            "general.quantization_version": ("uint32", 2),
        }
    )
    if head_dim or arch == "gemma3":
        keys[".attention.key_length"] = keys[".attention.value_length"] = ("uint32", key_length)
    if arch == "gemma3":
        keys[".attention.sliding_window"] = ("uint32", sliding_window)
        if sliding_window_pattern is not None:
            keys[".attention.sliding_window_pattern"] = ("uint32", sliding_window_pattern)
    else:
        keys[".rope.dimension_count"] = ("uint32", key_length)
    if n_expert:
        keys[".expert_count"], keys[".expert_used_count"] = ("uint32", n_expert), ("uint32", min(2, n_expert))
    if template is not None:
        keys["tokenizer.chat_template"] = template or CHATML
    keys.update(metadata or {})

    n_vocab = n_rows or len(keys["tokenizer.ggml.tokens"])
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    if not tied and not duplicate_output:
        shapes["output.weight"] = (n_vocab, n_embd)
    for i in range(n_layer):
        shapes[f"blk.{i}.attn_norm.weight"] = (n_embd,)
        shapes[f"blk.{i}.attn_q.weight"] = (n_head * key_length, n_embd)
        shapes[f"blk.{i}.attn_k.weight"] = (n_head_kv * key_length, n_embd)
        shapes[f"blk.{i}.attn_v.weight"] = (n_head_kv * key_length, n_embd)
        shapes[f"blk.{i}.attn_output.weight"] = (n_embd, n_head * key_length)
        shapes[f"blk.{i}.ffn_norm.weight"] = (n_embd,)
        shapes[f"blk.{i}.ffn_gate.weight"] = (n_ff, n_embd)
        shapes[f"blk.{i}.ffn_up.weight"] = (n_ff, n_embd)
        shapes[f"blk.{i}.ffn_down.weight"] = (n_embd, n_ff)
        if n_expert:
            for part in ("gate", "up", "down"):
                rows, cols = shapes.pop(f"blk.{i}.ffn_{part}.weight")
                shapes[f"blk.{i}.ffn_{part}_exps.weight"] = (n_expert, rows, cols)
            shapes[f"blk.{i}.ffn_gate_inp.weight"] = (n_expert, n_embd)
        if arch == "qwen3moe":
            shapes[f"blk.{i}.attn_q_norm.weight"] = shapes[f"blk.{i}.attn_k_norm.weight"] = (key_length,)
        if arch == "gemma3":
            shapes[f"blk.{i}.attn_q_norm.weight"] = shapes[f"blk.{i}.attn_k_norm.weight"] = (key_length,)
            shapes[f"blk.{i}.post_attention_norm.weight"] = shapes[f"blk.{i}.post_ffw_norm.weight"] = (n_embd,)

    writer = gguf.GGUFWriter(None, arch, endianess=gguf.GGUFEndian.BIG if endian == "big" else gguf.GGUFEndian.LITTLE)
    for key, value in keys.items():
        if value is not None:
            _add(writer, arch + key if key.startswith(".") else key, value)
    tensors: dict[str, tuple[NDArray[Any], Format]] = {}
    for name, shape in shapes.items():
        stem = name.split(".")[-2]
        chosen = types.get(name) or types.get(stem) or types["default"]
        fmt = by_name("F32" if len(shape) == 1 or stem == "ffn_gate_inp" else chosen)
        # each tensor has its own stream, so that dropping or retyping one leaves the others as they are
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if replace_tensors and name in replace_tensors:
            data = _quantize(np.asarray(replace_tensors[name], np.float32), fmt)
        elif len(shape) == 1:
            data = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32).view(np.uint8)
        else:
            std = (2.0 if stem in ("token_embd", "output") else 1.0) / np.sqrt(shape[-1])
            data = random_blocks(fmt, rng, shape, float(std))
        tensors[name] = (data, fmt)
    if duplicate_output:
        tensors["output.weight"] = tensors["token_embd.weight"]
    if rope_freqs is not None:
        tensors["rope_freqs.weight"] = (np.asarray(rope_freqs, np.float32).view(np.uint8), by_name("F32"))
    for name, (data, fmt) in tensors.items():
        if name not in omit_tensors:
            _add_tensor(writer, name, data, fmt)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(fmt: Format, rng: np.random.Generator, shape: tuple[int, ...], std: float) -> NDArray[np.uint8]:
    """Random weights of about this standard deviation as blocks of `fmt`: uint8 (..., row bytes).

    Where the fmt has no quantizer (K-quants) the blocks themselves are random: every scale and every bit is used.
    """
    if fmt.quantize is not None:
        return _quantize((std * rng.standard_normal(shape)).astype(np.float32), fmt)
    if fmt.dequantize is None or fmt.name not in D_AT:
        raise ValueError(f"no random blocks for {fmt.name}")
    if shape[-1] % fmt.block_size:
        raise ValueError(f"a row of {shape[-1]} is not a whole number of {fmt.name} blocks of {fmt.block_size}")
    n = int(np.prod(shape)) // fmt.block_size
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)
    spread = rng.uniform(0.5, 1.5, n)
    if fmt.name.startswith("IQ4"):  # its table has a mean
        spread *= rng.choice([-1, 1], n)

    def scaled(factor: float) -> NDArray[np.uint8]:
        d = (factor * spread).astype(np.float16)
        where = D_AT[fmt.name]
        blocks[:, where : where + 2] = d[:, None].view(np.uint8)
        if fmt.name in MEAN_Q:  # dmin is set so that the mean is about zero
            dmin = (factor * MEAN_Q[fmt.name] * spread).astype(np.float16)
            blocks[:, where + 2 : where + 4] = dmin[:, None].view(np.uint8)
        if fmt.name in ODD:  # no sub-block is all zeros
            first, last, ones = ODD[fmt.name]
            blocks[:, first:last] |= ones
        return blocks

    unit = float(np.std(fmt.dequantize(scaled(0.01)))) / 0.01
    return scaled(std / unit).reshape(*shape[:-1], -1)


def _quantize(values: NDArray[np.float32], fmt: Format) -> NDArray[np.uint8]:
    if fmt.quantize is None:
        raise ValueError(f"no quantizer for {fmt.name}")
    return fmt.quantize(values)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: NDArray[np.uint8], fmt: Format) -> None:
    if fmt.name == "F32":
        writer.add_tensor(name, np.ascontiguousarray(data).view(np.float32))
    else:
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(fmt.type_id))


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key: bool, str, list, or ("uint32", number) where the width matters; a bare int is uint32."""
    if isinstance(value, tuple):
        getattr(writer, f"add_{value[0]}")(key, value[1])
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def byte_vocabulary(pre: str, n: int) -> dict[str, Any]:
    """A byte-level BPE vocabulary of exactly n tokens, 259 or more; its merges as far as there is room."""
    keys = _bpe(pre)
    have = keys["tokenizer.ggml.tokens"]
    tokens = [*have[:n], *(f"<unused{i}>" for i in range(n - len(have)))]
    kinds = [*keys["tokenizer.ggml.token_type"][:n], *[NORMAL] * (n - len(have))]
    merges = [m for m in keys["tokenizer.ggml.merges"] if m.replace(" ", "") in tokens]
    return {
        **keys,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
    }


def _bpe(pre: str) -> dict[str, Any]:
    """Metadata of a byte-level BPE vocabulary: 3 control tokens, 256 bytes, then the merges of a few words."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in table)})
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(table[b] for b in range(256))]
    kinds = [CONTROL] * 3 + [NORMAL] * 256
    merges: list[str] = []
    for word in WORDS:
        for text in (word, "\u0120" + word):  # U+0120 stands for a space
            left = text[0]
            for right in text[1:]:
                if left + right not in tokens:
                    tokens.append(left + right)
                    kinds.append(NORMAL)
                    merges.append(f"{left} {right}")
                left += right
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def _spm() -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: 5 specials, 256 byte tokens, characters, then pieces by score."""
    tokens = ["<pad>", "</s>", "<s>", "<unk>", "<|im_start|>", "<|im_end|>", *(f"<0x{b:02X}>" for b in range(256))]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    pieces: list[str] = []
    for word in WORDS:
        for text in (word, "\u2581" + word):  # U+2581 stands for a space
            pieces += [text[:i] for i in range(2, len(text) + 1)]
    pieces += ["\u2581" + word[0] for word in WORDS] + ["\u2581\u2581"]
    pieces = list(dict.fromkeys(pieces))
    letters = sorted(
        {c for p in pieces for c in p} | set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!'\n")
    )
    for rank, piece in enumerate([*pieces, *letters]):
        tokens.append(piece)
        kinds.append(NORMAL)
        scores.append(-float(rank + 1))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
