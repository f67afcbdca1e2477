"""What a JSON schema, a regular expression or a grammar allows next, through llguidance (the extra `grammar`).

The vocabulary is handed to llguidance once per model; a matcher per answer then says in microseconds which of all tokens
may follow, as a bit for each. End tokens are allowed only where the answer may end.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingExtraError, SettingError
from .gbnf import is_gbnf
from .lexemes import lark_of_gbnf
from .params import GRAMMARS, SamplingParams

__all__ = ["Grammar", "GrammarVocabulary", "TokenTable"]

# white space in JSON: nothing, a space, or a new line and some indent. More would let a small model go on for ever.
_JSON = {"whitespace_pattern": r"( |\n[ \t]{0,20})"}
_MOST_KNOWN = 16  # compiled schemas and grammars that are kept for the next answer
_TOO_LARGE = re.compile(
    r"too many (expressions|items|states|lexer)|too (big|large)\b|max is|fuel|limit for", re.IGNORECASE
)
_MOST_TRIES = 300  # subschemas that are compiled to find the one with the mistake


class TokenTable(Protocol):
    """What is needed of a tokenizer."""

    @property
    def n_vocab(self) -> int:
        """How many ids are tokens."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end an answer."""

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text."""

    def piece(self, token_id: int, special: bool = False) -> bytes:
        """The bytes that a token adds to a text; of a control token none unless `special`."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text."""


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError(
            'json_schema, regex and grammar need the package llguidance: pip install "edgeinfer[grammar]"'
        ) from error
    return llguidance


class _Described:
    """A vocabulary with the attributes that llguidance looks for."""

    def __init__(self, table: TokenTable, pieces: Sequence[bytes], end: int) -> None:
        self.eos_token_id, self.bos_token_id = end, table.bos_id
        self.tokens = list(pieces)
        self.special_token_ids = [token for token, piece in enumerate(pieces) if piece and not table.piece(token)]
        self._table = table

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._table.encode(text, special=False)


class GrammarVocabulary:
    """A vocabulary as llguidance takes it; makes a `Grammar` for each answer. Safe to use from several threads."""

    def __init__(self, table: TokenTable, pieces: Sequence[bytes]) -> None:
        """`pieces` are the bytes of every token, control tokens as they are written. Raises MissingExtraError."""
        self._library = _llguidance()
        self.n_tokens = len(pieces)
        ends = sorted(token for token in table.end_ids if token < self.n_tokens)
        if not ends:
            raise SettingError(
                "json_schema, regex and grammar need a model with an end token, or an answer cannot end where they do; "
                "leave them out: this one has none"
            )

        self._ends = frozenset(ends)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Any] = OrderedDict()  # compiled, by what was asked
        wrapper = self._library.TokenizerWrapper(_Described(table, pieces, ends[0]))
        self._tokenizer = self._library.LLTokenizer(wrapper, n_vocab=self.n_tokens, eos_token=ends)

    def grammar(self, params: SamplingParams) -> Grammar:
        """A new matcher for one answer. Raises SettingError that says what is wrong and where."""
        name = next(name for name in GRAMMARS if getattr(params, name) is not None)
        key = (name, str(getattr(params, name)))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._compile(name, key[1], params)
                if len(self._known) > _MOST_KNOWN:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return Grammar(self._known[key].deep_copy(), self.n_tokens, self._ends, name, self._tokenizer)

    def _compile(self, name: str, text: str, params: SamplingParams) -> Any:
        """A matcher at its beginning."""
        matcher = self._library.LLMatcher
        if name == "json_schema":
            schema = json.loads(text)
            source = self._schema({} if schema is True else schema)
        elif name == "regex":
            source = matcher.grammar_from_regex(text)
        else:
            source = matcher.grammar_from_lark(lark_of_gbnf(text) if is_gbnf(text) else text)
        # quiet: what is wrong is raised, and a warning on stderr would stand in the middle of an answer
        found = matcher(self._tokenizer, source, log_level=0)
        if found.is_error():
            raise SettingError(self._complaint(name, found.get_error(), params))
        self._try(name, found)
        return found

    def _try(self, name: str, matcher: Any) -> None:
        """Look at what may come first, so that most of what stops an answer is told before it."""
        grammar = Grammar(matcher.deep_copy(), self.n_tokens, self._ends, name, self._tokenizer)
        if not grammar.complete:
            try:
                grammar.mask(np.zeros(self.n_tokens, np.float32))
            except SettingError as error:
                raise SettingError(str(error).replace("stopped the answer", "cannot be used", 1)) from error

    def _schema(self, schema: Any) -> str:
        return str(self._library.LLMatcher.grammar_from_json_schema(schema, defaults=_JSON))

    def _complaint(self, name: str, error: str, params: SamplingParams) -> str:
        if known := _plainly(name, error):
            return f"{name} cannot be used: {known}"
        if name == "json_schema":
            schema = json.loads(str(params.json_schema))
            return f"json_schema cannot be used: at {self._place(schema, error)}: {_last_line(error)}"
        caret = re.search(r"regex parse error:\n {4}(.*)\n( {4} *)\^+\nerror: (.*)", error)
        if name == "regex":
            if caret:
                return f"regex {params.regex!r} cannot be used: character {len(caret[2]) - 3}: {caret[3]}"
            return f"regex {params.regex!r} cannot be used: {_last_line(error)}"
        place = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", error)
        if place and not is_gbnf(str(params.grammar)):
            reason = f"{caret[3]} in a regex" if caret else place[3]
            return f"grammar cannot be used: line {place[1]}, column {place[2]}: {reason}"
        return f"grammar cannot be used: {_last_line(error)}"

    def _place(self, schema: Any, error: str) -> str:
        """The innermost part of a schema that gives the error, as a JSON pointer."""
        found, tries = "#", 0
        if not isinstance(schema, dict):
            return found
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        here = schema
        while True:
            for path, part in _parts(here):
                tries += 1
                if tries > _MOST_TRIES:
                    return found
                if self._library.LLMatcher.validate_grammar(self._schema({**shared, **part})) == error:
                    found, here = found + path, part
                    break
            else:
                return found


# Of each byte of a mask: -inf for the bits that are 0, +inf for those that are 1.
_LIMITS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") > 0,
    np.float32(np.inf),
    np.float32(-np.inf),
)


class Grammar:
    """Where one answer stands in what is allowed."""

    def __init__(self, matcher: Any, n_tokens: int, ends: frozenset[int], name: str, tokenizer: Any) -> None:
        self._matcher, self._ends, self._name, self._tokenizer = matcher, ends, name, tokenizer
        self._words = np.zeros((n_tokens + 31) // 32, np.int32)  # a bit a token, 1 for those that may be next
        self._limits: NDArray[np.float32] | None = None
        self._complete = bool(matcher.is_stopped())

    @property
    def complete(self) -> bool:
        """Whether the answer so far is whole and nothing can follow."""
        return self._complete

    def allows(self, token: int) -> bool:
        """Whether the token may be next."""
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]) == 1)

    def beginning(self, text: str) -> list[int] | None:
        """Tokens that write a text; None where they may not be next."""
        tokens: list[int] = self._tokenizer.tokenize_bytes(text.encode())
        return tokens if self._matcher.validate_tokens(tokens) == len(tokens) else None

    def mask(self, row: NDArray[np.float32]) -> None:
        """Set the logits (n_tokens,) of all tokens that may not be next to -inf."""
        words = self._words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        if self._limits is None:
            self._limits = np.empty((words.nbytes, 8), np.float32)
        # The largest value that each token may have, eight at a time: 75 us for 262,144 tokens whatever the mask, where
        # a copy under a mask of booleans takes up to 1 ms.
        np.take(_LIMITS, words.view(np.uint8), axis=0, out=self._limits, mode="clip")
        np.minimum(row, self._limits.reshape(-1)[: len(row)], out=row)

    def accept(self, token: int) -> None:
        """Take note of the next token. Raises SettingError for one that is not allowed."""
        self._matcher.consume_token(token)
        self._check()
        self._complete = bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            error = self._matcher.get_error()
            reason = _plainly(self._name, error) or _last_line(error)
            raise SettingError(f"{self._name} stopped the answer: {reason}")


def _plainly(name: str, error: str) -> str | None:
    """What llguidance's errors about a whole grammar mean, and what to do; None for others, which name a mistake."""
    if "NoExtension" in error:
        cause = {
            "regex": "its parts contradict each other, as in [a&&b]",
            "grammar": "rules always need themselves or each other again, or contradict each other",
            "json_schema": "it always needs itself again, or asks for things that exclude each other",
        }[name]
        return f"no text fits it ({cause}); give it a way to end"
    if not _TOO_LARGE.search(error):
        return None
    advice = {
        "regex": "use smaller counts in {...} and fewer alternatives, or leave the counts out",
        "grammar": "use fewer alternatives and smaller counts, longer pieces of text in a rule, and rules that repeat by "
        '* or on the left (list ::= item | list "," item)',
        "json_schema": "use fewer values in enum, smaller maxLength and maxItems, or fewer properties",
    }[name]
    return f"it is too large or leaves too much open to be followed; {advice} [{_last_line(error)}]"


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas that a schema is made of, each with its place."""
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        table = schema.get(key)
        for name, part in table.items() if isinstance(table, dict) else ():
            if isinstance(part, dict):
                yield f"/{key}/{name}", part
    for key in ("items", "additionalProperties", "additionalItems"):
        if isinstance(schema.get(key), dict):
            yield f"/{key}", schema[key]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        table = schema.get(key)
        for i, part in enumerate(table if isinstance(table, list) else ()):
            if isinstance(part, dict):
                yield f"/{key}/{i}", part


def _last_line(error: str) -> str:
    """The sentence of an error that may be drawn over several lines."""
    lines = [line for line in error.splitlines() if line.strip(" ^|")]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return " ".join((reasons or lines or ["no reason given"])[-1 if reasons else 0].split())
