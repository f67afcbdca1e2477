"""What samplers need of a vocabulary and is costly to make: made once per model, when an answer first asks for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .dry import Breakers, find_breakers
from .params import SamplingParams

if TYPE_CHECKING:
    from .grammar import Grammar, GrammarVocabulary, TokenTable

__all__ = ["SamplerTools"]


class SamplerTools:
    """The bytes of all tokens, the tokens that break repetitions for DRY, and the vocabulary as grammars take it.

    Safe to use from several threads.
    """

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._pieces: list[bytes] | None = None
        self._breakers: dict[tuple[str, ...], Breakers] = {}
        self._grammars: GrammarVocabulary | None = None

    def breakers(self, params: SamplingParams) -> Breakers | None:
        """The tokens that DRY's sequence breakers begin in; None where DRY is off."""
        if not params.dries:
            return None
        texts = params.dry_sequence_breakers
        with self._lock:
            if texts not in self._breakers:
                if len(self._breakers) > 16:
                    self._breakers.clear()
                table = self._table
                encode = lambda text: table.encode(text, special=False)  # noqa: E731
                self._breakers[texts] = find_breakers(texts, self._bytes(), encode)
            return self._breakers[texts]

    def grammar(self, params: SamplingParams) -> Grammar | None:
        """A new matcher for one answer; None where anything may be said.

        Raises SettingError that says what is wrong with the schema, regex or grammar and where, and MissingExtraError.
        """
        if not params.constrained:
            return None
        from .grammar import GrammarVocabulary

        with self._lock:
            if self._grammars is None:
                self._grammars = GrammarVocabulary(self._table, self._bytes())
        return self._grammars.grammar(params)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, a control token as it is written; none for an id that no token has."""
        with self._lock:
            pieces = self._bytes()
        return pieces[token] if token < len(pieces) else b""

    def _bytes(self) -> list[bytes]:
        if self._pieces is None:
            self._pieces = [self._table.piece(token, special=True) for token in range(self._table.n_vocab)]
        return self._pieces
