"""The tokenizer.ggml.* keys of a model file, with what is wrong with them said by name. Must not know what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .string_table import StringTable

__all__ = ["KINDS", "TokenizerKeys"]

_KEY = "tokenizer.ggml."

# tokenizer.ggml.model -> kind of tokenizer
KINDS = {"gpt2": "bpe", "gemma4": "bpe", "llama": "spm", "bert": "wordpiece", "t5": "unigram"}


class TokenizerKeys:
    """Reads keys by their name after "tokenizer.ggml."."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def text(self, name: str) -> str | None:
        """A key that holds a string; None where there is none. Other kinds are given as they are written."""
        value = self.metadata.get(_KEY + name)
        return None if value is None else value if isinstance(value, str) else repr(value)

    def flag(self, name: str, default: bool) -> bool:
        """A key that holds a bool."""
        value = self.metadata.get(_KEY + name, default)
        return value if isinstance(value, bool) else default

    def strings(self, name: str, *, last_wins: bool = False) -> StringTable | None:
        """An array of strings. Raises ModelFileError for anything else."""
        value = self.metadata.get(_KEY + name)
        if value is None:
            return None
        try:
            return StringTable.of(value, last_wins=last_wins)
        except (TypeError, AttributeError):
            raise ModelFileError(f"{_KEY}{name} is not an array of strings") from None

    def numbers(self, name: str, at_least: int = 0) -> NDArray[Any] | None:
        """An array of numbers. Raises ModelFileError for anything else, and where it has too few."""
        value = self.metadata.get(_KEY + name)
        if value is None:
            return None
        try:
            array: NDArray[Any] = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        except TypeError:
            array = np.asarray(value)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise ModelFileError(f"{_KEY}{name} is not an array of numbers")
        if len(array) < at_least:
            raise ModelFileError(f"{_KEY}{name} has {len(array)} entries; wanted one for each of {at_least} tokens")
        return array

    def token_id(self, name: str, n_vocab: int, default: int | None = None) -> int | None:
        """The id that a key NAME_token_id holds, `default` where it holds none of the vocabulary."""
        for index in (self.metadata.get(f"{_KEY}{name}_token_id"), default):
            if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < n_vocab:
                return index
        return None
