"""FILE -> what it is for: the family of a language model, or what a GGUF file is that holds none.

Asked before any key of a family is read: a projector, an adapter or an importance matrix is a sound file without them.
"""

from __future__ import annotations

from ..errors import ModelFileError, UnsupportedModelError
from .gguf import GGUFFile
from .lazy_array import LazyArray

__all__ = ["architecture", "architecture_problem", "other_purpose"]

_KEY = "general.architecture"
_INSTEAD = "name the model's own .gguf file"


def other_purpose(file: GGUFFile) -> str | None:
    """What a file is that holds no language model, as "a ...: why; what to do"; None for all others.

    By `general.type`, as llama.cpp's converters write it, and for older files by the family or keys of each kind.
    """
    metadata = file.metadata
    kind, arch = metadata.get("general.type"), metadata.get(_KEY)
    if arch == "clip" or kind == "mmproj":
        sound = metadata.get("clip.has_audio_encoder") is True and metadata.get("clip.has_vision_encoder") is not True
        what = "an audio projector" if sound else "a vision projector"
        return f"{what}: it belongs beside a language model and is none itself; {_INSTEAD}"
    if kind == "adapter" or (kind is None and "adapter.type" in metadata):
        what = "a LoRA adapter" if metadata.get("adapter.type") == "lora" else "an adapter"
        return (
            f"{what}: it changes a language model and is none itself; {_INSTEAD}, or merge the two with llama.cpp's "
            "llama-export-lora and name the result"
        )
    if kind == "imatrix" or (arch is None and any(key.startswith("imatrix.") for key in metadata)):
        return (
            "an importance matrix (imatrix): it guides the quantizing of a language model and is none itself; "
            f"{_INSTEAD}"
        )
    if arch == "controlvector":
        return f"a control vector: it steers a language model and is none itself; {_INSTEAD}"
    return None


def architecture_problem(file: GGUFFile) -> str | None:
    """Why the file names no family: the key is missing, empty or no text. None where it names one."""
    arch = file.metadata.get(_KEY)
    advice = "download the model again, or another GGUF build of it"
    if arch is None:
        return f"{_KEY} is missing; the file does not say what family it is: {advice}"
    if not isinstance(arch, str):
        got = f"an array of {len(arch)} {arch.kind}s" if isinstance(arch, LazyArray) else f"{arch!r}"
        return f"{_KEY} is {got}; wanted text, the name of a family: {advice}"
    return None if arch else f"{_KEY} is empty; wanted the name of a family: {advice}"


def architecture(file: GGUFFile) -> str:
    """The family that a language model's file names.

    Raises UnsupportedModelError for a file that is none by design, ModelFileError where it names no family.
    """
    if (what := other_purpose(file)) is not None:
        raise UnsupportedModelError(f"{file.path}: this is {what}")
    if (problem := architecture_problem(file)) is not None:
        raise ModelFileError(f"{file.path}: {problem}")
    return str(file.metadata[_KEY])
