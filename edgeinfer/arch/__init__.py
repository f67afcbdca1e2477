"""One file per model family: its quirks of configuration, its tensor names, and its description in the builder's verbs.

`ARCHS` is the registry; a new family is one file and one line. Must not know numba, files or threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from . import gemma, lfm2, llama, olmo2, phi3, qwen_moe
from .family import Family

__all__ = ["ARCHS", "Family", "family_of"]

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


def family_of(config: ModelConfig) -> Family:
    """The description of the model's family.

    Raises UnsupportedModelError for an architecture that is not known, and for a file with a key that the family's
    description does not heed: what it asks for would be left out without a word.
    """
    family = ARCHS.get(config.arch)
    if family is None:
        raise UnsupportedModelError(
            f"the native engine does not run the architecture {config.arch!r}; it runs: {', '.join(sorted(ARCHS))}"
        )
    family.check(config)
    ignored = [key for field, key in _SPECIAL.items() if getattr(config, field) and field not in family.heeds]
    names = [f"{config.arch}.{key}" for key in ignored] or list(config.unread_keys)
    if names:
        raise UnsupportedModelError(
            f"the file sets {' and '.join(names[:3])}{' and more' if len(names) > 3 else ''}, which the native engine does "
            f"not know for {config.arch!r} models: what it computed could be wrong. llama.cpp may run this file"
        )
    return family
