"""One file per model family: its quirks of configuration, its tensor names, and its description in the builder's verbs.

`ARCHS` is the registry; a new family is one file and one line. Must not know numba, files or threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..model.gguf import GGUFFile
from ..model.purpose import architecture
from . import gemma, lfm2, llama, olmo2, phi3, qwen_moe
from .family import Family

__all__ = ["ARCHS", "Family", "config_of", "family_of", "family_problem"]

_ALL: tuple[Family, ...] = (
    *llama.FAMILIES,
    *gemma.FAMILIES,
    phi3.FAMILY,
    olmo2.FAMILY,
    *qwen_moe.FAMILIES,
    lfm2.FAMILY,
)

ARCHS: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})

# Fields of a configuration that a family must say it heeds, and the keys that they come from.
_SPECIAL: Mapping[str, str] = MappingProxyType(
    {
        "embedding_scale": "embedding_scale",
        "residual_scale": "residual_scale",
        "logit_scale": "logit_scale",
        "attention_temperature": "attention.temperature_scale",
        "sliding_layers": "attention.sliding_window_pattern",
        "n_expert": "expert_count",
        "recurrent_layers": "attention.head_count_kv",
        "conv_width": "shortconv.l_cache",
    }
)


def family_problem(arch: str) -> str | None:
    """Why no family of that name runs here; None where one does."""
    if arch in ARCHS:
        return None
    return f"the family {arch!r:.60} is not one that the native engine runs ({', '.join(sorted(ARCHS))})"


def config_of(file: GGUFFile) -> ModelConfig:
    """The configuration of a model whose family runs here: the family is judged first, then its keys.

    A sound file of another family may well lack keys that are required here. Raises as `ModelConfig.from_gguf`, and
    UnsupportedModelError for an architecture that is not known.
    """
    if (problem := family_problem(architecture(file))) is not None:
        raise UnsupportedModelError(f"{file.path}: {problem}")
    return ModelConfig.from_gguf(file)


def family_of(config: ModelConfig) -> Family:
    """The description of the model's family.

    Raises UnsupportedModelError for an architecture that is not known, and for a file with a key that the family's
    description does not heed: what it asks for would be left out without a word.
    """
    family = ARCHS.get(config.arch)
    if family is None:
        raise UnsupportedModelError(str(family_problem(config.arch)))
    family.check(config)
    ignored = [key for field, key in _SPECIAL.items() if getattr(config, field) and field not in family.heeds]
    names = [f"{config.arch}.{key}" for key in ignored] or list(config.unread_keys)
    if names:
        raise UnsupportedModelError(
            f"the file sets {' and '.join(names[:3])}{' and more' if len(names) > 3 else ''}, which the native engine does "
            f"not know for {config.arch!r} models: what it computed could be wrong. llama.cpp may run this file"
        )
    return family
