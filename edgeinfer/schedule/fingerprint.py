"""What the content of a KV page depends on, beside the tokens: the model file, the KV layout, and the engine's arithmetic.

A fingerprint that is too fine costs one cold start; one that is too coarse gives wrong answers. So all of these are in:

model file   its size, its time of change, everything before the tensors' bytes (hyper-parameters, tokenizer, template,
             tensor table), and 3 x 64 bytes of each tensor. All of 250 MB would take a good part of a second. What this
             cannot tell apart are two files of one size and one time of change that differ only between the samples:
             a fine-tuned model differs everywhere, and changing a file in place changes its time.
KV layout    type of the values, page size, heads and layers, version of the layout: what the KV cache calls `layout`
engine       instruction set and digest of the compiled kernels (logits differ in the last bits between instruction sets),
             and a digest of the sources that say what is computed in which order
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ..settings import Settings
from .prefix_store import PrefixStore

if TYPE_CHECKING:
    from ..model.gguf import GGUFFile

__all__ = ["fingerprint", "open_store"]

_SAMPLE = 64  # bytes, at the beginning, in the middle and at the end of each tensor
_PACKAGE = Path(__file__).resolve().parent.parent
_SOURCES = ("arch/*.py", "plan/*.py", "engine/*.py", "kernels/*.py", "runtime/*.py", "formats/*.py", "model/weights.py")


def model_digest(file: GGUFFile) -> bytes:
    """SHA-256 over what tells a model file from others, see above."""
    digest = hashlib.sha256(f"{file.size} {file.modified_ns} {file.data_offset}\n".encode())
    digest.update(file.head().data)
    for info in file:
        data = file.data(info.name)
        middle = len(data) // 2
        for part in (data[:_SAMPLE], data[middle : middle + _SAMPLE], data[-_SAMPLE:]):
            digest.update(part.data)
        # Reading brought pages of the mapped file in; what packed the tensor had given them back.
        file.release(info.name)
    return digest.digest()


def _sources_digest() -> bytes:
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def fingerprint(file: GGUFFile, layout: str, numerics: str) -> str:
    """64 hex digits that differ whenever a KV page of one engine must not be used by another.

    `layout` is the KV cache's, `numerics` names instruction set and kernels.
    """
    digest = hashlib.sha256(model_digest(file) + _sources_digest())
    for text in (layout, numerics):
        digest.update(len(text.encode()).to_bytes(4, "little") + text.encode())
    return digest.hexdigest()


def open_store(settings: Settings, file: GGUFFile, layout: str, numerics: str) -> PrefixStore | None:
    """The prefixes on disk for a model and an engine; None when EDGEINFER_PREFIX_CACHE is off.

    Returns at once: the fingerprint (10 to 50 ms, mostly for the metadata of a large vocabulary) and the list of files are
    made by a thread of their own, and the first look-up waits for it.
    """
    if not settings.prefix_cache:
        return None
    store = PrefixStore(settings.cache / "prefix", lambda: fingerprint(file, layout, numerics))
    threading.Thread(target=store.load_index, name="edgeinfer-prefix-index", daemon=True).start()
    return store
