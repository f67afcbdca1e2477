"""A grammar that holds for the answer of a model that thinks: it sleeps while the model thinks.

It begins with the first token behind the mark that ends the thinking. Where the prompt leaves it to the model whether to
think, its first token may be the mark that begins the thinking (where that is a token) or what the grammar allows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from .grammar import Grammar
from .reasoning import Splitter

__all__ = ["AnswerGrammar"]


class AnswerGrammar:
    """A `Constraint` for the sampler; its stream calls `look` whenever the splitter has taken a token."""

    def __init__(
        self, grammar: Grammar, splitter: Splitter, end_ids: Collection[int], piece: Callable[[int], bytes]
    ) -> None:
        """`piece` gives the bytes of a token. From now on the splitter leaves the answer as the grammar made it."""
        self._grammar, self._splitter, self._ends, self._piece = grammar, splitter, end_ids, piece
        self._starts = splitter.constrain()  # of thinking, which the model may choose in the place of an answer
        self._awake = False
        self.look("")

    @property
    def complete(self) -> bool:
        """Whether the answer so far is whole and nothing can follow; never while the model thinks."""
        return self._awake and self._grammar.complete

    @property
    def _holds(self) -> bool:
        return self._awake or bool(self._starts)

    def allows(self, token: int) -> bool:
        """Whether the token may be next."""
        return not self._holds or token in self._starts or self._grammar.allows(token)

    def mask(self, row: NDArray[np.float32]) -> None:
        """Set the logits (n_tokens,) of all tokens that may not be next to -inf."""
        if self._holds:
            starts = [token for token in self._starts if token < len(row)]
            kept = row[starts]
            self._grammar.mask(row)
            row[starts] = kept

    def accept(self, token: int) -> None:
        """Take note of the next token, before the splitter takes it. Raises SettingError for one that is not allowed."""
        if token in self._starts:
            self._starts = frozenset()
        elif self._holds:
            self._wake()
            self._grammar.accept(token)

    def refuses(self, token: int) -> bool:
        """Whether a token that ends the thinking ends the answer, too, or begins one that is not allowed."""
        if self._awake or not self._splitter.thinking:
            return False
        if token in self._ends:
            return True
        begun = self._splitter.behind_end(self._piece(token).decode("utf-8", "replace"))
        return bool(begun) and self._grammar.beginning(begun) is None

    def look(self, text: str) -> None:
        """Wake up where the answer begins. `text` is what the last token already gave of it, glued to the mark."""
        if self._awake or not self._splitter.settled:
            return
        self._wake()
        for token in (self._grammar.beginning(text) or ()) if text else ():
            self._grammar.accept(token)

    def _wake(self) -> None:
        if not self._awake:
            self._awake, self._starts = True, frozenset()
            self._splitter.settle()
