"""Which tokens are more than text: control and user-defined tokens, their places in a text, and which end an answer.

The rules are llama.cpp's, whose converter wrote the files. Must not know how the text between them is encoded.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .string_table import StringTable

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "SpecialTokens",
    "end_ids",
    "stripping",
    "token_kinds",
]

# bits of a token's kind
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 4, 8, 16, 32
_KIND_OF_TYPE = np.zeros(256, np.uint8)  # index: tokenizer.ggml.token_type; others are undefined and have no text
_KIND_OF_TYPE[1:7] = NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE

# names that end a turn whatever the file calls them; files that type them as text are common
_END_NAMES = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
    *("<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
# these are ordinary text in some vocabularies (Gemma: an HTML tag), so only the file's own word makes them ends
_END_NAMES_IF_CONTROL = ("</s>", "<eos>")
# fill-in-the-middle padding, repository and file marks: a chat has left its answer when it writes one
_FILL_NAMES = (
    ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ("<|file_sep|>",),
)
_FILL_KEYS = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")
# what stands around the text that is to be filled in, by the keys that may name it; control tokens whatever the file says
_AROUND_NAMES = (
    (
        ("fim_pre_token_id", "prefix_token_id"),
        ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        ("<|code_prefix|>", "<|prefix|>"),
    ),
    (
        ("fim_suf_token_id", "suffix_token_id"),
        ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        ("<|code_suffix|>", "<|suffix|>"),
    ),
    (
        ("fim_mid_token_id", "middle_token_id"),
        ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        ("<|code_middle|>", "<|middle|>"),
    ),
    *(((key,), names, ()) for key, names in zip(_FILL_KEYS, _FILL_NAMES, strict=True)),
)
# gpt-oss: parts of an answer, to be shown
_SHOWN_NAMES = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

_WHITE = " \t\n\v\f\r"


def token_kinds(
    types: NDArray[Any] | None, vocab: StringTable, metadata: Mapping[str, Any] | None = None
) -> NDArray[np.uint8]:
    """The kind bits of each token, (n_vocab,), from `tokenizer.ggml.token_type` and the names known above.

    `metadata` may name tokens around a gap by key; without it they are left as the file types them, which is enough to
    tell the ends of an answer.
    """
    n = len(vocab)
    if types is None:
        kinds = np.full(n, NORMAL, np.uint8)
    elif len(types) < n:
        raise ModelFileError(f"tokenizer.ggml.token_type has {len(types)} entries; wanted one for each of {n} tokens")
    else:
        kinds = _KIND_OF_TYPE[np.clip(types[:n], 0, 255).astype(np.uint8)]
    for name in _END_NAMES:
        if (index := vocab.find(name.encode())) >= 0:
            kinds[index] |= CONTROL
    for keys, *names in _AROUND_NAMES if metadata is not None else ():
        if not any(_given_id(metadata or {}, key, n) is not None for key in keys):
            found = (vocab.find(name.encode()) for row in names for name in row)
            kinds[[index for index in found if index >= 0][:1]] |= CONTROL
    for name in _SHOWN_NAMES:
        if (index := vocab.find(name.encode())) >= 0:
            kinds[index] = USER_DEFINED
    return kinds


def _given_id(metadata: Mapping[str, Any], key: str, n: int) -> int | None:
    index = metadata.get(f"tokenizer.ggml.{key}")
    return index if isinstance(index, int) and 0 <= index < n else None


def end_ids(
    metadata: Mapping[str, Any], vocab: StringTable, kinds: NDArray[np.uint8], eos: int | None
) -> frozenset[int]:
    """The ids that end an answer: EOS, EOT and EOM as the file names them, and the known names.

    May change the kind of "<|end|>" where it turns out to end a part of an answer only.
    """
    named = {name: index for name in _END_NAMES if (index := vocab.find(name.encode())) >= 0}
    for name in _END_NAMES_IF_CONTROL:
        if (index := vocab.find(name.encode())) >= 0 and kinds[index] & CONTROL:
            named[name] = index
    if "<|end|>" in named and ({"<|return|>", "<|call|>"} <= set(named) or {"<|calls|>", "<|flush|>"} <= set(named)):
        index = named.pop("<|end|>")  # harmony: ends a part of the answer, not the answer
        kinds[index] = USER_DEFINED
    if "<|tool_response>" in named:
        named.pop("</s>", None)
    ids = set(named.values())
    for key, names in zip(_FILL_KEYS, _FILL_NAMES, strict=True):
        found = [_given_id(metadata, key, len(vocab)), *(vocab.find(name.encode()) for name in names)]
        ids.update([index for index in found if index is not None and index >= 0][:1])
    for key in ("eot_token_id", "eom_token_id"):
        if (given := _given_id(metadata, key, len(vocab))) is not None:
            ids.add(given)
    if eos is not None:
        ids.add(eos)
    return frozenset(ids)


def stripping(metadata: Mapping[str, Any], vocab: StringTable, kinds: NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """The tokens that take the white space after them, and those that take the white space before them.

    No key of a file says so, only the name of the model, its family or its pre-tokenizer.
    """
    name, family, pre = (
        value if isinstance(value := metadata.get(key), str) else ""
        for key in ("general.name", "general.architecture", "tokenizer.ggml.pre")
    )
    if re.search("jina-v2-(?:de|es|code)", pre) or re.search("nomic-bert-moe|jina-bert-v3", family):
        return [], [index for index in [vocab.find(b"<mask>")] if index >= 0]
    if re.search("phi-?3", name.lower()):
        kept = {b"<unk>", b"<s>", b"<|endoftext|>"}
        special = np.flatnonzero(kinds & (CONTROL | UNKNOWN | USER_DEFINED)).tolist()
        return [index for index in special if vocab[index] not in kept], []
    if "modern-bert" in name.lower():
        return [], [index for index in [vocab.find(b"[MASK]")] if index >= 0]
    return [], []


class SpecialTokens:
    """Finds the special tokens of a vocabulary in a text: control tokens where asked, user-defined ones always."""

    def __init__(
        self,
        vocab: StringTable,
        kinds: NDArray[np.uint8],
        strip_right: Iterable[int] = (),
        strip_left: Iterable[int] = (),
    ) -> None:
        """White space after a token of `strip_right` belongs to it, and that before one of `strip_left`."""
        self._ids: dict[str, int] = {}
        self._control: set[str] = set()
        for index in np.flatnonzero(kinds & (CONTROL | UNKNOWN | USER_DEFINED)).tolist():
            text = vocab[index].decode(errors="replace")
            if text:
                self._ids[text] = index
                if kinds[index] & (CONTROL | UNKNOWN):
                    self._control.add(text)
        self._strip_right, self._strip_left = (
            {text for text, index in self._ids.items() if index in stripped}
            for stripped in (frozenset(strip_right), frozenset(strip_left))
        )
        # for each first character, the lengths to try
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}
        self._firsts = re.compile("[" + re.escape("".join(sorted(lengths))) + "]") if lengths else None
        self.control_firsts = frozenset(text[0] for text in self._control)
        self._sorted_control = sorted(self._control)

    @property
    def texts(self) -> list[str]:
        """The texts of all special tokens."""
        return list(self._ids)

    def occurring(self, text: str, *, control: bool) -> dict[str, list[int]]:
        """Every special token that occurs in `text`, and the places where it starts, overlapping ones too."""
        found: dict[str, list[int]] = {}
        if self._firsts is None:
            return found
        for match in self._firsts.finditer(text):
            start = match.start()
            for length in self._lengths[match[0]]:
                piece = text[start : start + length]
                if piece in self._ids and len(piece) == length and (control or piece not in self._control):
                    found.setdefault(piece, []).append(start)
        return found

    def is_control(self, text: str) -> bool:
        """Whether `text` is the text of a control token."""
        return text in self._control

    def begins_control(self, text: str) -> bool:
        """Whether `text` is the beginning of a control token, without being all of it."""
        at = bisect_right(self._sorted_control, text)
        return at < len(self._sorted_control) and self._sorted_control[at].startswith(text)

    def split(self, text: str, masked: str | None = None, *, control: bool) -> list[int | str]:
        """Cut `text` at its special tokens: ids and the texts between them.

        Longer tokens go first, over the whole text, as llama.cpp does it. `masked`, of the same length, is where
        control tokens are looked for: a character differs from `text` where it must not be part of one.
        """
        masked = text if masked is None else masked
        tokens = self.occurring(text, control=control)
        if masked != text:
            tokens = {token: places for token, places in tokens.items() if token not in self._control}
            tokens |= {t: p for t, p in self.occurring(masked, control=control).items() if t in self._control}
        pieces: list[int | tuple[int, int]] = [(0, len(text))] if text else []
        for token in sorted(tokens, key=lambda token: (-len(token.encode()), self._ids[token])):
            where = masked if token in self._control else text
            strip, strip_before = token in self._strip_right, token in self._strip_left
            cut: list[int | tuple[int, int]] = []
            for piece in pieces:
                if isinstance(piece, int):
                    cut.append(piece)
                    continue
                start, end = piece
                while (at := where.find(token, start, end)) >= 0:
                    before = at
                    while strip_before and before > start and text[before - 1] in _WHITE:
                        before -= 1
                    if before > start:
                        cut.append((start, before))
                    cut.append(self._ids[token])
                    start = at + len(token)
                    while strip and start < end and text[start] in _WHITE:
                        start += 1
                if start < end:
                    cut.append((start, end))
            pieces = cut
        return [piece if isinstance(piece, int) else text[piece[0] : piece[1]] for piece in pieces]
