"""llama.cpp's published vocabularies, variants of them, random texts, and llama.cpp's own tokenizer."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer
from tests import models


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


def with_pre(path: Path, pre: str, target: Path) -> Path:
    """A copy of a vocabulary file (which has no tensors) with another `tokenizer.ggml.pre`."""
    data = path.read_bytes()
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = data.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", data, at)
    new = pre.encode()
    target.write_bytes(data[:at] + struct.pack("<Q", len(new)) + new + data[at + 8 + length :])
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


ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    " \n\t\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u3000",
    "   \n\n",
    "'\"!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`",
    "éèüßñçøÅǅΩжЯאשعربहिनข้าวകോമ한국어日本語中文ﬁſK",
    "e\u0301a\u0308\u200d\u200b\ufe0f\u20e3",
    "🙂🚀👩‍👩‍👧‍👦🇩🇪🦙𝒳𐍈",
    "½²Ⅷ٣৪๓〇①",
    "€£¥©™→≠∑▁Ġ",
)
PIECES = ("'s", "'T", "'re", "'LL", " don't", " we've", "\r\n", "    ", "\n\n\n", "1234567", " 12.5", "the ", " world")


def random_texts(seed: int, count: int, extra: tuple[str, ...] = ()) -> list[str]:
    """Texts of up to 40 characters and pieces over all of Unicode but its surrogates."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        favoured = rng.sample(ALPHABETS, rng.randint(1, 4))
        parts = []
        for _ in range(rng.randint(0, 40)):
            dice = rng.random()
            if dice < 0.75:
                parts.append(rng.choice(rng.choice(favoured)))
            elif dice < 0.85:
                parts.append(rng.choice(PIECES + extra))
            else:
                point = rng.randrange(0x10FFFF if rng.random() < 0.5 else 0x3000)
                parts.append(chr(point) if not 0xD800 <= point < 0xE000 else "x")
        texts.append("".join(parts))
    return texts
