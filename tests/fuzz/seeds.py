"""Sound files of a few kilobytes to make bad ones from: every tokenizer kind, tied and untied, both shards of a pair."""

from __future__ import annotations

from pathlib import Path

from tests import gguf_bytes as make
from tests.tiny import build_tiny

__all__ = ["FILE", "seeds", "sound_first_shard"]

FILE = (
    "m-00002-of-00002.gguf"  # the name that a judged file has: one that says it is a shard leads to a sound first one
)
SMALL = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 32}
EVERY_TYPE = ("uint8", "uint32", "int32", "float32", "bool", "uint64")


def sound_first_shard(folder: Path) -> Path:
    """Write the shard that is found beside a judged file that says it is the second of two."""
    split = {"split.no": ("uint16", 0), "split.count": ("uint16", 2)}
    return build_tiny(folder / "m-00001-of-00002.gguf", metadata=split, omit_tensors=("output_norm.weight",), **SMALL)


def seeds(folder: Path) -> list[bytes]:
    """The files' bytes; `folder` is for writing them."""
    built = [
        build_tiny(folder / "llama.gguf", **SMALL),
        build_tiny(folder / "gemma3.gguf", "gemma3", {"default": "Q8_0"}, **SMALL),
        build_tiny(folder / "spm.gguf", tokenizer="spm", template="{% if messages %}x{% endif %}", **SMALL),
        build_tiny(
            folder / "scaled.gguf", metadata={".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0}, **SMALL
        ),
    ]
    raws = [path.read_bytes() for path in built]
    second = [make.key("split.no", "uint32", 1), make.key("split.count", "uint32", 2)]
    raws.append(make.gguf(second, [make.tensor("output_norm.weight", [32])], bytes(128)))
    keys = [make.key(f"n.{kind}", kind, 1) for kind in EVERY_TYPE]
    keys += [make.key(f"a.{kind}", f"{kind}[]", [1, 0, 1]) for kind in EVERY_TYPE]
    keys.append(make.key("general.architecture", "string", "llama"))
    keys.append(make.key("tokenizer.ggml.tokens", "string[]", ["a", "b", "ab", "<s>"]))
    keys.append(make.key("tokenizer.ggml.merges", "string[]", ["a b"]))
    keys.append(make.key("tokenizer.ggml.model", "string", "gpt2"))
    keys.append(make.key("tokenizer.chat_template", "string", "{{ messages[0].content }}"))
    raws.append(make.gguf(keys, [make.tensor("token_embd.weight", [32, 4], 8)], bytes(136)))
    return raws
