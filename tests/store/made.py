"""Small things to pull: GGUF-like bytes, wheels, settings that keep to a test's folder."""

from __future__ import annotations

import hashlib
import random
import zipfile
from pathlib import Path

from edgeinfer.settings import Settings, settings
from edgeinfer.store.manifest import Manifest, ManifestModel, ManifestPart

__all__ = ["Told", "gguf_bytes", "home", "listed", "sha256", "wheel"]


class Told:
    """A Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.starts: list[tuple[str, int | None, int]] = []
        self.done: list[int] = []
        self.finished = 0

    def status(self, text: str) -> None:
        self.lines.append(text)

    def start(self, label: str, total: int | None, done: int) -> None:
        self.starts.append((label, total, done))

    def advance(self, done: int) -> None:
        self.done.append(done)

    def finish(self) -> None:
        self.finished += 1


def home(tmp_path: Path, **more: str) -> Settings:
    """Settings whose every folder lies in a test's folder."""
    env = {"HOME": str(tmp_path / "user"), "EDGEINFER_HOME": str(tmp_path / "home"), **more}
    return settings(env)


def gguf_bytes(n: int, seed: int = 0) -> bytes:
    """n bytes that begin as a GGUF file does and do not repeat."""
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
    return head + random.Random(seed).randbytes(n - len(head))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(folder: Path, package: str, version: str, files: dict[str, bytes]) -> Path:
    """Write a minimal wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{package.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def listed(folder: Path, name: str, pieces: list[bytes], whole_sha256: str = "") -> Manifest:
    """Wheels that carry a model in pieces, and the manifest that lists it."""
    parts = []
    for i, piece in enumerate(pieces):
        package = f"{name}-gguf-part{i + 1}"
        member = f"{package.replace('-', '_')}/data/{name}.gguf.part{i:02}"
        path = wheel(folder, package, "1.0.0", {member: piece})
        parts.append(ManifestPart(package, "1.0.0", member, len(piece), path.stat().st_size, sha256(path.read_bytes())))
    data = b"".join(pieces)
    model = ManifestModel(
        name=name,
        title="A test",
        file=f"{name}.Q4_0.gguf",
        size=len(data),
        sha256=whole_sha256 or sha256(data),
        arch="llama",
        quant="Q4_0",
        chat=True,
        ram=1,
        licence="Test-1.0",
        licence_url="licence.txt",
        homepage="",
        parts=tuple(parts),
    )
    return Manifest(name, (model,))
