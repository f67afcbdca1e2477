"""Two vocabularies -> whether one model may draft for the other. Must not know what speculation does with the answer.

A draft proposes token ids, so every id must mean the same text in both. Rows that only fill a matrix up may differ in
number: nobody samples them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lazy_array import LazyArray

__all__ = ["VocabularyMatch", "match_vocabularies"]

_KEY = "tokenizer.ggml."
_UNUSED = (0, 5)  # token types of rows that stand for nothing: undefined, unused
_SHOWN = 8


@dataclass(frozen=True)
class VocabularyMatch:
    """What a comparison found. `problems` keep the pair apart, `notes` do not."""

    n_target: int  # tokens
    n_draft: int
    n_differing: int  # ids below both sizes whose text differs
    differing: tuple[tuple[int, str, str], ...]  # the first few: id, the target's text, the draft's
    problems: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    @property
    def compatible(self) -> bool:
        """Whether the draft's proposals mean what the target takes them for."""
        return not self.problems


def match_vocabularies(target: Mapping[str, Any], draft: Mapping[str, Any]) -> VocabularyMatch:
    """Compare the metadata of two files. Never raises: what cannot be compared is a problem."""
    problems: list[str] = []
    notes: list[str] = []
    tokens = [meta.get(_KEY + "tokens") for meta in (target, draft)]
    if not all(isinstance(each, LazyArray) and each.kind == "string" for each in tokens):
        which = "the target" if not isinstance(tokens[0], LazyArray) else "the draft"
        return VocabularyMatch(0, 0, 0, (), (f"{which} has no vocabulary ({_KEY}tokens)",))
    ours, theirs = ([*each.bytes_list()] for each in tokens if isinstance(each, LazyArray))
    for key, what in (("model", "the kind of tokenizer"), ("pre", "the rule that cuts text")):
        a, b = target.get(_KEY + key), draft.get(_KEY + key)
        if a != b:
            message = f"{what} ({_KEY}{key}) is {a!r:.60} in the target and {b!r:.60} in the draft"
            # SentencePiece has no such rule, and a missing one is read as "default"
            same = key == "pre" and ("llama" in (target.get(_KEY + "model"),) or {a, b} == {None, "default"})
            (notes if same else problems).append(message)
    n = min(len(ours), len(theirs))
    kinds = [_kinds(meta, len(each)) for meta, each in ((target, ours), (draft, theirs))]
    differing: list[tuple[int, str, str]] = []
    n_differing = 0
    if ours[:n] != theirs[:n]:
        found = [i for i in range(n) if ours[i] != theirs[i] and not (_unused(kinds[0], i) and _unused(kinds[1], i))]
        n_differing = len(found)
        differing = [(i, _text(ours[i]), _text(theirs[i])) for i in found[:_SHOWN]]
        if found:
            i, a, b = differing[0]
            problems.append(
                f"{n_differing:,} of {n:,} tokens differ, first id {i}: {a!r} in the target, {b!r} in the draft"
            )
    _extra(ours, theirs, kinds, problems, notes)
    _special(target, draft, problems, notes)
    return VocabularyMatch(len(ours), len(theirs), n_differing, tuple(differing), tuple(problems), tuple(notes))


def _extra(
    ours: list[bytes], theirs: list[bytes], kinds: list[NDArray[Any]], problems: list[str], notes: list[str]
) -> None:
    """Tokens that one of the two has beyond the other's last."""
    n = min(len(ours), len(theirs))
    if len(ours) == len(theirs):
        return
    longer, name = (0, "target") if len(ours) > len(theirs) else (1, "draft")
    tokens = (ours, theirs)[longer]
    real = [i for i in range(n, len(tokens)) if not _unused(kinds[longer], i) and not _padding(tokens[i])]
    if real:
        problems.append(
            f"the {name} has {len(real):,} tokens that the other lacks, first id {real[0]}: {_text(tokens[real[0]])!r}"
        )
    else:
        notes.append(f"the {name} has {len(tokens) - n:,} more rows, all of them padding: nothing samples them")


def _special(target: Mapping[str, Any], draft: Mapping[str, Any], problems: list[str], notes: list[str]) -> None:
    """Start and end tokens, and whether a text gets a start token: a draft that sees another text drafts another one."""
    for name, default in (("bos", None), ("eos", None), ("eot", None)):
        a, b = (meta.get(f"{_KEY}{name}_token_id", default) for meta in (target, draft))
        if a != b:
            message = f"{name} is {a!r:.20} in the target and {b!r:.20} in the draft"
            (problems if name == "eos" or (name == "bos" and _adds(target)) else notes).append(message)
    if _adds(target) != _adds(draft):
        notes.append("only one of the two puts a start token before a text; the target's word holds")


def _adds(meta: Mapping[str, Any]) -> bool:
    return meta.get(_KEY + "add_bos_token", meta.get(_KEY + "model") == "llama") is True


def _kinds(meta: Mapping[str, Any], n: int) -> NDArray[Any]:
    """The token types (n,), normal where the file has none."""
    kinds = np.ones(n, np.int64)
    value = meta.get(_KEY + "token_type")
    if isinstance(value, LazyArray) and value.kind not in ("string", "array"):
        given = value.numpy()[:n]
        kinds[: len(given)] = np.nan_to_num(given.astype(np.float64)).clip(-1, 1 << 30).astype(np.int64)
    return kinds


def _unused(kinds: NDArray[Any], index: int) -> bool:
    return int(kinds[index]) in _UNUSED


def _padding(token: bytes) -> bool:
    """Whether a name is one that converters give to rows without a token."""
    return token.startswith((b"[PAD", b"<pad", b"<|extra", b"<unused", b"<reserved")) or not token


def _text(token: bytes) -> str:
    return token.decode(errors="replace")[:80]
