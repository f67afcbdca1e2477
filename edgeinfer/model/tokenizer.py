"""Text <-> token ids, as the model file describes it. Must not know templates, the engine or numba.

    with GGUFFile.open("model.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
    ids = tokenizer.encode("Hello")  # with BOS and EOS as the file asks
    text = tokenizer.decode(ids)

Ids equal llama.cpp's, with one difference: text never becomes a control token by merging, only by being parsed as one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, SettingError, UnsupportedModelError
from .bpe import BYTE_OF, BytePairEncoder
from .detokenizer import Detokenizer
from .pretokenizers import rule_named
from .special_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SpecialTokens, end_ids, token_kinds
from .spm import SPACE, ScoreEncoder
from .string_table import StringTable

__all__ = ["Tokenizer"]

_KEY = "tokenizer.ggml."
_SURROGATES = re.compile("[\ud800-\udfff]")


class HasMetadata(Protocol):
    """An open model file, as far as a tokenizer looks at it."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata by key."""


class Tokenizer:
    """The vocabulary of one model file, and how text is cut into it. Safe to use from several threads."""

    kind: str  # "bpe" (byte-level, merges by rank) or "spm" (merges by score)
    pre: str  # the rule that cuts text into words; "default" for spm, which has none
    n_vocab: int
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]  # EOS, EOT, EOM and what else ends an answer
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Build from the metadata of a GGUF file; see `from_gguf`."""
        self._vocab = self._read_vocab(metadata)
        self.n_vocab = n = len(self._vocab)
        model = metadata.get(_KEY + "model")
        self.kind = {"gpt2": "bpe", "llama": "spm"}.get(model, "") if isinstance(model, str) else ""
        if not self.kind:
            raise UnsupportedModelError(
                f"{_KEY}model is {model!r}; known are 'gpt2' (byte pairs) and 'llama' (SentencePiece)"
                if model is not None
                else f"the file names no {_KEY}model, so its tokens cannot be used for text"
            )
        self.bos_id = self._id_of(metadata, "bos", 1 if self.kind == "spm" else None)
        self.eos_id = self._id_of(metadata, "eos", 2 if self.kind == "spm" else None)
        self.unknown_id = self._id_of(metadata, "unknown", 0 if self.kind == "spm" else None)
        self.padding_id = self._id_of(metadata, "padding", None)
        self._kinds = token_kinds(_numbers(metadata, _KEY + "token_type"), self._vocab)
        self.end_ids = end_ids(metadata, self._vocab, self._kinds, self.eos_id)
        self.special = SpecialTokens(self._vocab, self._kinds, self._strip_right(metadata))
        self._encoder: BytePairEncoder | ScoreEncoder
        if self.kind == "bpe":
            name = metadata.get(_KEY + "pre")
            if name is None:
                warnings.warn(
                    f"the file has no {_KEY}pre, so text is cut by the rule 'default'; answers may be worse than they "
                    "could be. A newer conversion of the model has the key",
                    stacklevel=3,
                )
                name = "default"
            self.pre, rule = str(name), rule_named(str(name))
            self._encoder = BytePairEncoder(self._vocab, self._read_merges(metadata), rule, self._is_text)
            self.add_bos = rule.add_bos
            self.add_space_prefix = False  # llama.cpp reads the key for byte pairs too, and never uses it
        else:
            self.pre = "default"
            scores = _numbers(metadata, _KEY + "scores")
            if scores is not None and len(scores) < n:
                raise ModelFileError(f"{_KEY}scores has {len(scores)} entries; wanted one for each of {n} tokens")
            scores = np.zeros(n, np.float32) if scores is None else scores.astype(np.float32, copy=False)
            self._encoder = ScoreEncoder(self._vocab, scores, self.unknown_id, self._is_text)
            self.add_bos = True
            self.add_space_prefix = _flag(metadata, _KEY + "add_space_prefix", True)
        self.add_bos = _flag(metadata, _KEY + "add_bos_token", self.add_bos)
        self.add_eos = _flag(metadata, _KEY + "add_eos_token", False)

    @classmethod
    def from_gguf(cls, file: HasMetadata) -> Tokenizer:
        """The tokenizer of an open file; it keeps nothing of the file, which may be closed.

        Raises ModelFileError (no vocabulary, contradictory arrays) or UnsupportedModelError (a kind or rule not known
        here, by name). Warns when the file names no rule for cutting text.
        """
        return cls(file.metadata)

    # -- text -> ids --------------------------------------------------------------------------------------------------

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`.

        With `special`, BOS and EOS are added as the file asks (never a second BOS) and control tokens written in the
        text are read as such; without, the text is nothing but text. User-defined tokens are read in both cases. Lone
        surrogates, which no file can hold, are read as U+FFFD.
        """
        ids = self.encode_fragment(text, control=special)
        if special:
            if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
            if self.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
                ids.append(self.eos_id)
        return ids

    def encode_fragment(self, text: str, masked: str | None = None, *, control: bool) -> list[int]:
        """The ids of `text` with nothing added; control tokens are read where `control`, and only inside `masked`.

        `masked` has the length of `text` and differs from it in characters that must not be part of a control token.
        """
        if not isinstance(text, str):
            raise SettingError(f"the text to encode is {type(text).__name__}; wanted a string")
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        ids: list[int] = []
        prefix = self.add_space_prefix
        for piece in self.special.split(text, masked, control=control):
            if isinstance(piece, int):
                ids.append(piece)
                prefix = self.add_space_prefix
            else:
                ids += self._encoder.encode(" " + piece if prefix else piece)
                prefix = False
        return ids

    # -- ids -> text --------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of `ids`, without control tokens unless `special`. Raises SettingError for an unknown id.

        The space that encoding puts before a text is taken off, so that `decode(encode(text))` is `text`.
        """
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise SettingError(f"the ids to decode are {type(ids).__name__}; wanted a list of ints")
        stream = self.stream(special=special)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, after: int | None = None, special: bool = False) -> Detokenizer:
        """A streaming `decode`. `after` is the id that stands before the first one, such as the prompt's last.

        Without it the ids begin a text, and a leading space that comes from encoding is taken off.
        """
        return Detokenizer(self, after, special)

    def piece(self, token_id: int, special: bool = False) -> bytes:
        """The bytes that a token adds to a text; of a control token none unless `special`.

        Raises SettingError for an id that is not in the vocabulary.
        """
        if not isinstance(token_id, (int, np.integer)) or not 0 <= token_id < self.n_vocab:
            raise SettingError(f"token id {token_id!r} is not in the vocabulary; wanted 0 to {self.n_vocab - 1}")
        kind = int(self._kinds[token_id])
        token = self._vocab[token_id]
        if kind & (CONTROL | UNKNOWN):
            return token if special else b""
        if kind & USER_DEFINED:
            return token
        if kind & NORMAL:
            if self.kind == "spm":
                return token.replace(SPACE.encode(), b" ")
            return b"".join(
                BYTE_OF[c].to_bytes(1, "little") if c in BYTE_OF else c.encode() for c in token.decode(errors="replace")
            )
        if kind & BYTE:
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return b""
        return b""  # unused and undefined tokens stand for nothing

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control, unknown or user-defined one: read before the text around it is encoded."""
        return bool(self._kinds[token_id] & (CONTROL | UNKNOWN | USER_DEFINED))

    def token_text(self, token_id: int | None) -> str | None:
        """The name of a token as the file writes it; None for None."""
        return None if token_id is None else self._vocab[token_id].decode(errors="replace")

    # -- reading the file ---------------------------------------------------------------------------------------------

    def _is_text(self, token_id: int) -> bool:
        return not self._kinds[token_id] & (CONTROL | UNKNOWN)

    def _read_vocab(self, metadata: Mapping[str, Any]) -> StringTable:
        tokens = metadata.get(_KEY + "tokens")
        if tokens is None:
            raise ModelFileError(f"the file has no {_KEY}tokens: it brings no vocabulary and cannot read or write text")
        return _table(tokens, _KEY + "tokens", last_wins=True)

    def _read_merges(self, metadata: Mapping[str, Any]) -> StringTable:
        merges = metadata.get(_KEY + "merges")
        if merges is None:
            raise ModelFileError(f"the file has no {_KEY}merges, without which its byte-pair vocabulary cannot be used")
        return _table(merges, _KEY + "merges")

    def _id_of(self, metadata: Mapping[str, Any], name: str, default: int | None) -> int | None:
        for index in (metadata.get(f"{_KEY}{name}_token_id"), default):
            if isinstance(index, int) and 0 <= index < self.n_vocab:
                return index
        return None

    def _strip_right(self, metadata: Mapping[str, Any]) -> list[int]:
        """Phi-3 drops white space after its control tokens; no key of the file says so, only its name."""
        name = metadata.get("general.name")
        if not isinstance(name, str) or not re.search("phi-?3", name.lower()):
            return []
        kept = {b"<unk>", b"<s>", b"<|endoftext|>"}
        special = np.flatnonzero(self._kinds & (CONTROL | UNKNOWN | USER_DEFINED)).tolist()
        return [index for index in special if self._vocab[index] not in kept]

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, pre={self.pre!r}, n_vocab={self.n_vocab})"


def _table(value: Any, key: str, *, last_wins: bool = False) -> StringTable:
    try:
        return StringTable.of(value, last_wins=last_wins)
    except (TypeError, AttributeError):
        raise ModelFileError(f"{key} is not an array of strings") from None


def _numbers(metadata: Mapping[str, Any], key: str) -> NDArray[Any] | None:
    value = metadata.get(key)
    if value is None:
        return None
    try:
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    except TypeError:
        array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ModelFileError(f"{key} is not an array of numbers")
    return array


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    return value if isinstance(value, bool) else default
