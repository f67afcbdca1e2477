"""GGUF files that other programs left on this disk, and what a name means among all that is here.

Hugging Face: hub/models--USER--REPO/snapshots/COMMIT/FILE.gguf, links to blobs.
Ollama: manifests/HOST/USER/NAME/TAG, JSON whose model layer names a blob.
LM Studio: models/USER/REPO/FILE.gguf.

One broken file, link or folder is listed with its problem or passed over; it never breaks the list.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import NotFoundError
from ..settings import Settings
from ..settings import settings as read_settings
from .cache import LocalModel, find_pulled, look, pulled, quant_of
from .manifest import Manifest, manifest

__all__ = ["local_models", "resolve"]

_MAX_MANIFEST = 1 << 20  # an Ollama manifest has a few hundred bytes


def _walk(folder: Path, depth: int = 6) -> Iterator[Path]:
    """All .gguf files below a folder, in order; folders that cannot be read are passed over."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        if is_folder and depth > 0:
            yield from _walk(Path(entry.path), depth - 1)
        elif not is_folder and entry.name.lower().endswith(".gguf"):
            yield Path(entry.path)


def _is_model(file: str) -> bool:
    """Whether a file may be a language model: no projector, no importance matrix, no later shard."""
    return not re.search(r"mmproj|imatrix|-(?!00001)\d{5}-of-\d{5}\.gguf$", file, flags=re.IGNORECASE)


def _size(path: Path) -> int:
    """The size of a file, with all its shards where it is the first of several; 0 when it cannot be read."""
    shard = re.search(r"-00001-of-(\d{5})\.gguf$", path.name, flags=re.IGNORECASE)
    paths = [path]
    if shard:
        paths = sorted(path.parent.glob(path.name[: shard.start()].replace("[", "[[]") + f"-?????-of-{shard[1]}.gguf"))
    total = 0
    for each in paths:
        try:
            total += each.stat().st_size
        except OSError:
            continue
    return total


def hugging_face(settings: Settings) -> Iterator[LocalModel]:
    """Models in the Hugging Face cache, named USER/REPO:QUANT, or USER/REPO:FILE where the quant does not tell."""
    try:
        repos = sorted(settings.hf_hub_cache.glob("models--*--*"))
    except OSError:
        return
    for repo in repos:
        _, user, name = repo.name.split("--", 2)
        seen: set[str] = set()
        files: list[tuple[str, Path]] = []
        for path in _walk(repo / "snapshots"):
            real = os.path.realpath(path)
            if real not in seen and _is_model(path.name):
                seen.add(real)
                files.append((quant_of(path.name), path))
        for quant, path in files:
            unique = quant and [q for q, _ in files].count(quant) == 1
            label = quant if unique else path.name
            yield LocalModel(f"{user}/{name}:{label}", path, _size(path), quant, "huggingface", problem=look(path))


def _ollama_folders(settings: Settings) -> list[Path]:
    service = Path("/usr/share/ollama/.ollama/models")  # where the Linux service keeps them
    return list(dict.fromkeys((settings.ollama_models, service)))


def _ollama_model(folder: Path, entry: Path) -> LocalModel | None:
    """Read one manifest; None for what is none, for instance a model that lives in the cloud."""
    host, *middle, name, tag = entry.relative_to(folder / "manifests").parts
    user = "/".join(part for part in middle if part != "library")
    label = "/".join(part for part in ("" if host == "registry.ollama.ai" else host, user, name) if part)
    label = f"{label}:{tag}"
    try:
        if entry.stat().st_size > _MAX_MANIFEST:
            raise ValueError("it is too long")
        table: Any = json.loads(entry.read_text(encoding="utf-8"))
        layers = table["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == "application/vnd.ollama.image.model"]
        if not digests:
            return None
        match = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", digests[0])
        if not match:
            raise ValueError(f"its digest is {digests[0]!r:.60}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return LocalModel(label, entry, 0, "", "ollama", problem=f"its manifest cannot be read: {error}")
    blob = folder / "blobs" / f"sha256-{match[1]}"
    if not blob.exists():
        return LocalModel(label, blob, 0, "", "ollama", problem="its file is missing")
    return LocalModel(label, blob, _size(blob), quant_of(tag), "ollama", sha256=match[1], problem=look(blob))


def ollama(settings: Settings) -> Iterator[LocalModel]:
    """Models of Ollama, named NAME:TAG as `ollama list` shows them."""
    for folder in _ollama_folders(settings):
        try:
            entries = sorted(path for path in (folder / "manifests").glob("*/*/*/*") if path.is_file())
            entries += sorted(path for path in (folder / "manifests").glob("*/*/*/*/*") if path.is_file())
        except OSError:
            continue
        for entry in entries:
            model = None if entry.name.startswith(".") else _ollama_model(folder, entry)
            if model:
                yield model


def _lmstudio_folders(settings: Settings) -> list[Path]:
    user = settings.user_home
    folders = [user / ".lmstudio" / "models", user / ".cache" / "lm-studio" / "models"]
    try:
        pointer = (user / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        pointer = ""
    if pointer and "\0" not in pointer:
        folders.insert(0, Path(pointer) / "models")
    return list(dict.fromkeys(folders))


def lm_studio(settings: Settings) -> Iterator[LocalModel]:
    """Models of LM Studio, named USER/REPO/FILE without .gguf."""
    for folder in _lmstudio_folders(settings):
        for path in _walk(folder):
            if _is_model(path.name):
                name = path.relative_to(folder).as_posix()[: -len(".gguf")]
                yield LocalModel(name, path, _size(path), quant_of(path.name), "lmstudio", problem=look(path))


_FINDERS: tuple[Callable[[Settings], Iterator[LocalModel]], ...] = (hugging_face, ollama, lm_studio)


def local_models(settings: Settings) -> list[LocalModel]:
    """List every model on this disk: what was pulled first, then what other programs keep."""
    models = pulled(settings)
    for finder in _FINDERS:
        models.extend(finder(settings))
    return models


def resolve(name_or_path: str | Path, settings: Settings | None = None, known: Manifest | None = None) -> Path:
    """Return the GGUF file that a name or path means. Never downloads.

    A file that exists wins over a name; then what was pulled (by name or by source), then what other programs keep.
    Raises NotFoundError that names the next step: the `pull` command, or names that are close.
    """
    settings = settings or read_settings()
    text = str(name_or_path)
    path = Path(name_or_path)
    try:
        if path.is_file():
            return path
        is_folder = bool(text) and path.is_dir()
        if not is_folder and os.path.lexists(text):
            return path  # a pipe, or a link to nothing: who opens it says why it cannot be used
    except (OSError, ValueError):  # a name too long or with a zero byte is no path
        is_folder = False
    if isinstance(name_or_path, Path):
        if is_folder:
            return path
        raise NotFoundError(f"there is no file {text}")
    model = find_pulled(settings, text)
    if model and model.problem:
        raise NotFoundError(f"model {model.name} cannot be used: {model.problem}")
    if model:
        return model.path
    known = known or manifest()
    listed = known.find(text)
    if listed:
        raise NotFoundError(f"model {listed.name} is not on this disk; run `edgeinfer pull {listed.name}`")
    if re.match(r"(pypi|hf|https?):", text, flags=re.IGNORECASE):
        raise NotFoundError(f"{text} is not on this disk; run `edgeinfer pull {text}`")
    if is_folder:
        return path
    return _elsewhere(text, settings, known)


def _elsewhere(text: str, settings: Settings, known: Manifest) -> Path:
    others = [model for finder in _FINDERS for model in finder(settings)]
    for model in others:
        if text.lower() in (model.name.lower(), f"{model.owner}:{model.name}".lower()):
            if model.problem:
                raise NotFoundError(f"model {model.name} of {model.owner} cannot be used: {model.problem}")
            return model.path
    if os.sep in text or text.lower().endswith(".gguf"):
        raise NotFoundError(f"there is no file {text}, and no model of that name")
    names = [m.name for m in known.models] + [m.name for m in pulled(settings)] + [m.name for m in others]
    close = difflib.get_close_matches(text, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`edgeinfer models` lists what is there"
    raise NotFoundError(f"there is no model or file {text!r}; {hint}")
