"""llama.cpp's published vocabularies, variants of them, made ones, and llama.cpp's own tokenizer."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from edgeinfer.model.bpe import TEXT_OF_BYTES
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer
from tests import models

# those with a test of texts and ids beside them, and those without
TESTED = (
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
UNTESTED = ("aquila", "baichuan", "gpt-neox", "nomic-bert-moe")


@cache
def folder() -> Path:
    """Where the published vocabularies, their tests and templates lie."""
    command = [sys.executable, str(models.ROOT / "scripts" / "fetch_llama_cpp.py")]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def published(name: str) -> tuple[Path, list[tuple[str, list[int]]]]:
    """A vocabulary file, and its test: texts with their ids."""
    path = folder() / f"{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    ids = [[int(word) for word in line.split()] for line in lines[: len(texts)]]
    return path, list(zip(texts, ids, strict=True))


def with_text(path: Path, name: str, value: str, target: Path) -> Path:
    """A copy of a vocabulary file (which has no tensors) with another value of a `tokenizer.ggml` key of text."""
    data = path.read_bytes()
    text = struct.pack("<Q", len(value.encode())) + value.encode()
    key = f"tokenizer.ggml.{name}".encode() + struct.pack("<I", 8)
    if key in data:
        at = data.index(key) + len(key)
        (length,) = struct.unpack_from("<Q", data, at)
        target.write_bytes(data[:at] + text + data[at + 8 + length :])
        return target
    (count,) = struct.unpack_from("<Q", data, 16)
    entry = struct.pack("<Q", len(key) - 4) + key + text
    target.write_bytes(data[:16] + struct.pack("<Q", count + 1) + entry + data[24:])
    return target


def with_pre(path: Path, pre: str, target: Path) -> Path:
    """A copy of a vocabulary file with another `tokenizer.ggml.pre`."""
    return with_text(path, "pre", pre, target)


def of_pairs(target: Path, count: int = 30_000) -> Path:
    """A byte-level vocabulary in which most pairs of bytes are a token, so that ids show where words begin and end."""
    import gguf

    pairs = [f"{left} {right}" for left in TEXT_OF_BYTES for right in TEXT_OF_BYTES]
    merges = random.Random(1).sample(pairs, count)
    tokens = [*TEXT_OF_BYTES, *(pair.replace(" ", "") for pair in merges)]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return target


def with_flag(path: Path, name: str, value: bool, target: Path) -> Path:
    """A copy of a vocabulary file (which has no tensors) with one more boolean key."""
    data = path.read_bytes()
    key = f"tokenizer.ggml.{name}".encode()
    if key in data:
        at = data.index(key) + len(key) + 4
        target.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
        return target
    (count,) = struct.unpack_from("<Q", data, 16)
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IB", 7, value)
    target.write_bytes(data[:16] + struct.pack("<Q", count + 1) + entry + data[24:])
    return target


def load(path: Path) -> Tokenizer:
    """Our tokenizer of a file."""
    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file)


def reference(path: Path) -> Any:
    """llama.cpp's tokenizer of a file."""
    from llama_cpp import Llama

    return Llama(str(path), vocab_only=True, verbose=False)
