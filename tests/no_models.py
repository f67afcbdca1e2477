"""Sound GGUF files that hold no language model, with the keys that llama.cpp's tools write into them."""

from __future__ import annotations

from . import gguf_bytes as make

__all__ = ["NO_MODELS"]

_TENSOR = ([make.tensor("w", [8])], bytes(32))


def _text(name: str, value: str) -> bytes:
    return make.key(name, "string", value)


_CLIP = _text("general.architecture", "clip")
_LLAMA = _text("general.architecture", "llama")
_ADAPTER = [_LLAMA, _text("adapter.type", "lora"), make.key("adapter.lora.alpha", "float32", 16.0)]
_IMATRIX = [make.key("imatrix.datasets", "string[]", ["calibration.txt"]), make.key("imatrix.chunk_count", "uint32", 9)]
_MMPROJ, _AUDIO = _text("general.type", "mmproj"), make.key("clip.has_audio_encoder", "bool", True)

# name -> (the file, what a refusal calls it)
NO_MODELS: dict[str, tuple[bytes, str]] = {
    name: (make.gguf(keys, *_TENSOR), says)
    for name, keys, says in (
        ("projector", [_CLIP, _MMPROJ], "a vision projector: it belongs beside a language model and is none itself"),
        ("old projector", [_CLIP], "a vision projector: it belongs beside a language model"),
        ("audio projector", [_CLIP, _MMPROJ, _AUDIO], "an audio projector: it belongs beside a language model"),
        ("adapter", [_text("general.type", "adapter"), *_ADAPTER], "a LoRA adapter: it changes a language model"),
        ("old adapter", _ADAPTER, "a LoRA adapter: it changes a language model"),
        ("imatrix", [_text("general.type", "imatrix"), *_IMATRIX], "an importance matrix (imatrix): it guides"),
        ("imatrix by its keys", _IMATRIX, "an importance matrix (imatrix): it guides"),
        ("control vector", [_text("general.architecture", "controlvector")], "a control vector: it steers"),
    )
}
