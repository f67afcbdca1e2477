"""What is wrong with a prompt, said before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ContextOverflowError, SettingError

__all__ = ["check_ids", "check_prompt"]


def check_prompt(prompt: Sequence[int] | NDArray[np.integer[Any]], n_vocab: int, n_ctx: int) -> None:
    """Raise what would keep a prompt from being answered: no token, an unknown id, no room for one more token."""
    if not len(prompt):
        raise SettingError("the prompt has no token; wanted at least one")
    check_ids(prompt, n_vocab)
    if len(prompt) >= n_ctx:
        raise ContextOverflowError(
            f"the prompt is {len(prompt)} tokens and the context holds {n_ctx}, of which at least one is for the "
            "answer; shorten the prompt or load the model with a larger n_ctx"
        )


def check_ids(ids: Sequence[int] | NDArray[np.integer[Any]], n_vocab: int) -> None:
    """Raise SettingError naming the first of ids that is no token of a vocabulary."""
    array = np.asarray(ids)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise SettingError(
            f"token ids are an array of {array.dtype} with {array.ndim} dimensions; wanted a list of ints"
        )
    bad = np.flatnonzero((array < 0) | (array >= n_vocab))
    if len(bad):
        place = int(bad[0])
        raise SettingError(
            f"token id {int(array[place])} at position {place} is outside the vocabulary (0 to {n_vocab - 1})"
        )
