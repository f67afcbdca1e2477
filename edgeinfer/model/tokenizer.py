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

from ..errors import ModelFileError, SettingError, UnsupportedModelError
from .bpe import BYTE_OF, BytePairEncoder
from .charsmap import CharacterMap
from .detokenizer import Detokenizer
from .merging import MARK
from .pretokenizers import PreTokenizer, rule_named
from .special_tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SpecialTokens,
    end_ids,
    stripping,
    token_kinds,
)
from .spm import ScoreEncoder
from .string_table import StringTable
from .tokenizer_keys import KINDS, TokenizerKeys
from .unigram import UnigramEncoder
from .wordpiece import WordPieceEncoder

__all__ = ["Tokenizer"]

_KEY = "tokenizer.ggml."
_SURROGATES = re.compile("[\ud800-\udfff]")

# what a file need not say: special ids by kind
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "bpe": {},
    "spm": {"bos": 1, "eos": 2, "unknown": 0},
    "wordpiece": {"cls": 101, "unknown": 100, "seperator": 102, "padding": 0},
    "unigram": {"eos": 1, "unknown": 2, "padding": 0},
}


class HasMetadata(Protocol):
    """An open model file, as far as a tokenizer looks at it."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata by key."""


class Tokenizer:
    """The vocabulary of one model file, and how text is cut into it. Safe to use from several threads."""

    kind: str  # "bpe" (merges by rank), "spm" (merges by score), "wordpiece" (BERT) or "unigram" (T5)
    pre: str  # the rule that cuts text into words before byte pairs are merged; "default" for the other kinds
    n_vocab: int
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]  # EOS, EOT, EOM and what else ends an answer
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool  # whether a text is encoded as if a space stood before it
    prefix_after_special: bool  # whether that holds for the text after each special token

    def __init__(self, metadata: Mapping[str, Any], pre: str | None = None) -> None:
        """Build from the metadata of a GGUF file; see `from_gguf`."""
        keys = TokenizerKeys(metadata)
        vocab = keys.strings("tokens", last_wins=True)
        if vocab is None:
            raise ModelFileError(f"the file has no {_KEY}tokens: it brings no vocabulary and cannot read or write text")
        self._vocab = vocab
        self.n_vocab = n = len(vocab)
        model = keys.text("model")
        self.kind = KINDS.get(model or "", "")
        if not self.kind:
            raise UnsupportedModelError(
                f"{_KEY}model is {model!r}; known are {', '.join(map(repr, KINDS))}"
                if model is not None
                else f"the file names no {_KEY}model, so its tokens cannot be used for text"
            )
        ids = _DEFAULT_IDS[self.kind]
        self.bos_id = keys.token_id("bos", n, ids.get("bos"))
        self.eos_id = keys.token_id("eos", n, ids.get("eos"))
        self.unknown_id = keys.token_id("unknown", n, ids.get("unknown"))
        self.padding_id = keys.token_id("padding", n, ids.get("padding"))
        self._last_id = self.eos_id  # what add_eos adds
        self._kinds = token_kinds(keys.numbers("token_type", at_least=n), vocab, metadata)
        self.end_ids = end_ids(metadata, vocab, self._kinds, self.eos_id)
        self.special = SpecialTokens(vocab, self._kinds, *stripping(metadata, vocab, self._kinds))
        self.pre, self.prefix_after_special = "default", False
        self._marks_spaces = True  # whether tokens write a space as U+2581
        self._encoder: BytePairEncoder | ScoreEncoder | WordPieceEncoder | UnigramEncoder
        if pre is not None and self.kind != "bpe":
            raise SettingError(
                f"a pre-tokenizer ({pre!r}) was given, but the file's vocabulary is of the kind {self.kind!r}, which has "
                "none; leave it out"
            )
        make = {
            "bpe": self._make_bpe,
            "spm": self._make_spm,
            "wordpiece": self._make_wordpiece,
            "unigram": self._make_unigram,
        }
        make[self.kind](keys, pre)

    def _make_bpe(self, keys: TokenizerKeys, pre: str | None) -> None:
        rule = self._rule(keys, pre)
        merges = keys.strings("merges")
        if merges is None and self.pre == "kimi-k2":  # whose words are tokens, or single bytes
            merges = StringTable.of(())
        if merges is None:
            raise ModelFileError(f"the file has no {_KEY}merges, without which its byte-pair vocabulary cannot be used")
        self._encoder = BytePairEncoder(self._vocab, merges, rule, self._is_text)
        self._marks_spaces = rule.marks_spaces
        self.add_bos = keys.flag("add_bos_token", rule.add_bos) or rule.always_bos
        self.add_eos = keys.flag("add_eos_token", False)
        self.add_space_prefix = False  # llama.cpp reads the key for byte pairs too, and never uses it

    def _rule(self, keys: TokenizerKeys, pre: str | None) -> PreTokenizer:
        """The rule that the user names, else the file; `pre` becomes its name."""
        if pre is not None:
            self.pre = pre
            return rule_named(pre, override=True)
        name = "gemma4" if keys.text("model") == "gemma4" else keys.text("pre")
        if name is None:
            warnings.warn(
                f"the file has no {_KEY}pre, so text is cut by the rule 'default'; answers may be worse than they "
                "could be. A newer conversion of the model has the key, and --pre NAME (pre=NAME in Python) names a rule",
                stacklevel=5,
            )
            name = "default"
        self.pre = name
        return rule_named(name)

    def _make_spm(self, keys: TokenizerKeys, _: str | None) -> None:
        scores = keys.numbers("scores", at_least=self.n_vocab)
        scores = np.zeros(self.n_vocab, np.float32) if scores is None else scores[: self.n_vocab].astype(np.float32)
        self._encoder = ScoreEncoder(self._vocab, scores, self.unknown_id, self._is_text)
        self.add_bos = keys.flag("add_bos_token", True)
        self.add_eos = keys.flag("add_eos_token", False)
        self.add_space_prefix = self.prefix_after_special = keys.flag("add_space_prefix", True)

    def _make_wordpiece(self, keys: TokenizerKeys, _: str | None) -> None:
        lower = keys.flag("normalizer.lowercase", True)
        self._encoder = WordPieceEncoder(
            self._vocab,
            self.unknown_id,
            self._is_text,
            lower=lower,
            strip_accents=keys.flag("normalizer.strip_accents", lower),
        )
        if self.bos_id is None:
            self.bos_id = keys.token_id("cls", self.n_vocab, _DEFAULT_IDS["wordpiece"]["cls"])
        self._last_id = keys.token_id("seperator", self.n_vocab, _DEFAULT_IDS["wordpiece"]["seperator"])
        self.add_bos = self.add_eos = self.add_space_prefix = True  # BERT was trained with [CLS] and [SEP], always

    def _make_unigram(self, keys: TokenizerKeys, _: str | None) -> None:
        if self.unknown_id is None:
            raise ModelFileError(f"the file names no {_KEY}unknown_token_id, which its kind of vocabulary needs")
        scores = keys.numbers("scores", at_least=self.n_vocab)
        scores = np.zeros(self.n_vocab) if scores is None else scores[: self.n_vocab].astype(np.float64)
        ordinary = scores[(self._kinds & NORMAL) != 0]
        usable = np.where(self._kinds & (NORMAL | UNUSED), scores, np.nan)
        usable[(self._kinds & USER_DEFINED) != 0] = 0.0  # they cost nothing
        merge_spaces = keys.flag("remove_extra_whitespaces", False)
        self.add_space_prefix = keys.flag("add_space_prefix", False)
        self._encoder = UnigramEncoder(
            self._vocab,
            usable,
            float(ordinary.min()) if len(ordinary) else 0.0,
            self.unknown_id,
            CharacterMap(keys.numbers("precompiled_charsmap")),
            add_space_prefix=self.add_space_prefix,
            merge_spaces=merge_spaces,
        )
        self.add_space_prefix |= merge_spaces
        self.add_bos = keys.flag("add_bos_token", False)
        self.add_eos = keys.flag("add_eos_token", True)

    @classmethod
    def from_gguf(cls, file: HasMetadata, pre: str | None = None) -> Tokenizer:
        """The tokenizer of an open file; it keeps nothing of the file, which may be closed.

        `pre` is the rule for cutting text into words, by the name that `tokenizer.ggml.pre` has for it, where the
        file names none, a wrong one, or one that is not known here. Raises ModelFileError (no vocabulary,
        contradictory arrays), UnsupportedModelError (a kind or rule not known here, by name) or SettingError (`pre`
        is not known, or the kind has no rules). Warns when neither says how to cut text.
        """
        return cls(file.metadata, pre)

    # -- text -> ids --------------------------------------------------------------------------------------------------

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of `text`.

        With `special`, BOS and EOS ([CLS] and [SEP] for "wordpiece") are added as the file asks (never a second BOS)
        and control tokens written in the text are read as such; without, the text is nothing but text. User-defined
        tokens are read in both cases. Lone surrogates, which no file can hold, are read as U+FFFD.
        """
        ids = self.encode_fragment(text, control=special)
        if special:
            if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
            if self.add_eos and self._last_id is not None and ids[-1:] != [self._last_id]:
                ids.append(self._last_id)
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
            elif isinstance(self._encoder, ScoreEncoder):
                ids += self._encoder.encode(piece, prefix)
                prefix = False
            else:
                ids += self._encoder.encode(piece)
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
            if self._marks_spaces:
                return token.replace(MARK.encode(), b" ")
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

    def _is_text(self, token_id: int) -> bool:
        return not self._kinds[token_id] & (CONTROL | UNKNOWN)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, pre={self.pre!r}, n_vocab={self.n_vocab})"
