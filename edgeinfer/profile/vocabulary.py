"""What a file says about its tokenizer, found without building one: special tokens, ends, and what is odd about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import EdgeInferError
from ..model.gguf import GGUFFile
from ..model.lazy_array import LazyArray
from ..model.pretokenizers import rule_named
from ..model.special_tokens import end_ids, token_kinds
from ..model.tokenizer_keys import KINDS

__all__ = ["Vocabulary", "plain", "tokenizer_facts"]

TOKENIZER_KINDS = {
    "gpt2": "BPE",
    "gemma4": "BPE",
    "llama": "SPM",
    "bert": "WPM",
    "t5": "UGM",
    "rwkv": "RWKV",
    "plamo2": "PLaMo-2",
}
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding", "separator", "seperator", "cls", "mask")
FILL = ("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
TYPE_NAMES = {1: "normal", 2: "unknown", 3: "control", 4: "user-defined", 5: "unused", 6: "byte"}
MAX_TOKENS = 1 << 20  # looking at more takes seconds and a gigabyte, and only a hostile file has them
_KEY = "tokenizer.ggml."


class Vocabulary:
    """All tokens of a file: by number and by text, where the last of a text wins, as in the tokenizer."""

    def __init__(self, tokens: LazyArray) -> None:
        self.tokens = tokens.bytes_list()
        self.last = dict(zip(self.tokens, range(len(self.tokens)), strict=True))

    def __len__(self) -> int:
        return len(self.tokens)

    def text(self, index: int) -> str | None:
        """The token's text; None for an id that does not exist."""
        return self.tokens[index].decode(errors="replace") if 0 <= index < len(self) else None

    def find(self, string: bytes) -> int:
        """The id of the token, or -1."""
        return self.last.get(string, -1)


def plain(value: object) -> Any:
    """A metadata value as JSON can hold it: long arrays by their kind and length, odd floats as text."""
    if isinstance(value, LazyArray):
        if len(value) > 64 or value.kind == "array":
            return {"kind": value.kind, "length": len(value)}
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def tokenizer_facts(file: GGUFFile, n_rows: int | None) -> dict[str, Any]:
    """The tokenizer's kind, its rule, its special ids, the ids that end an answer, what is odd, and what does not run.

    `n_rows` is the number of rows of the embedding matrix, where there is one.
    """
    meta = file.metadata
    model, pre, tokens, merges = (meta.get(_KEY + name) for name in ("model", "pre", "tokens", "merges"))
    problems: list[str] = []
    oddities: list[str] = []
    specials: dict[str, Any] = {}
    fill: dict[str, Any] = {}
    ends: list[dict[str, Any]] = []
    types = _types(meta)
    if isinstance(tokens, LazyArray) and len(tokens) > MAX_TOKENS:
        problems.append(
            f"its vocabulary has {len(tokens):,} tokens; wanted at most {MAX_TOKENS:,}, which is far above any"
        )
    elif isinstance(tokens, LazyArray) and tokens.kind == "string":
        vocab = Vocabulary(tokens)
        ids = {name: meta.get(f"{_KEY}{name}_token_id") for name in (*SPECIAL, *FILL)}
        known = {name: {"id": i, "text": vocab.text(i)} for name, i in ids.items() if type(i) is int}
        specials = {name: token for name, token in known.items() if name in SPECIAL}
        fill = {name: token for name, token in known.items() if name in FILL}
        try:
            ends = [{"id": i, "text": vocab.text(i)} for i in sorted(_end_ids(file, vocab, ids["eos"], types))]
            if model == "gpt2":
                rule_named(str(pre) if pre is not None else "default")
        except EdgeInferError as error:
            problems.append(str(error))
        if not isinstance(model, str) or model not in KINDS:
            problems.append(f"its tokenizer is {plain(model)!r}; known are {', '.join(map(repr, KINDS))}")
        if model in ("gpt2", "gemma4") and merges is None:
            problems.append(f"it has no {_KEY}merges, without which its byte-pair vocabulary cannot be used")
        oddities = _oddities(meta, vocab, types, known, ends, n_rows)
    else:
        problems.append(f"it has no vocabulary ({_KEY}tokens)")
    counts = Counter(types.tolist()) if types is not None else Counter()
    return {
        "model": plain(model),
        "kind": TOKENIZER_KINDS.get(model, "unknown") if isinstance(model, str) else None,
        "pre": plain(pre),
        "n_tokens": len(tokens) if isinstance(tokens, LazyArray) else 0,
        "n_merges": len(merges) if isinstance(merges, LazyArray) else 0,
        "types": {TYPE_NAMES.get(kind, f"type {kind}"): n for kind, n in sorted(counts.items())[:16]},
        "add_bos": plain(meta.get(_KEY + "add_bos_token")),
        "add_eos": plain(meta.get(_KEY + "add_eos_token")),
        "add_space_prefix": plain(meta.get(_KEY + "add_space_prefix")),
        "special": specials,
        "fill": fill,
        "ends": ends,
        "oddities": oddities,
        "problems": problems,
    }


def _types(meta: Mapping[str, Any]) -> NDArray[Any] | None:
    value = meta.get(_KEY + "token_type")
    numeric = isinstance(value, LazyArray) and value.kind not in ("string", "array")
    return value.numpy() if numeric and isinstance(value, LazyArray) else None


def _end_ids(file: GGUFFile, vocab: Any, eos: object, types: NDArray[Any] | None) -> frozenset[int]:
    """The ids that end an answer; `vocab` is a Vocabulary, which does what `end_ids` asks of a table."""
    if type(eos) is not int:
        eos = 2 if file.metadata.get(_KEY + "model") == "llama" and len(vocab) > 2 else None
    return end_ids(file.metadata, vocab, token_kinds(types, vocab, file.metadata), eos)


def _oddities(
    meta: Mapping[str, Any],
    vocab: Vocabulary,
    types: NDArray[Any] | None,
    known: Mapping[str, Mapping[str, Any]],
    ends: list[dict[str, Any]],
    n_rows: int | None,
) -> list[str]:
    """What a reader of a bug report should see at once, in sentences."""
    found, n, model = [], len(vocab), meta.get(_KEY + "model")
    for name, token in known.items():
        if token["text"] is None:
            found.append(f"{name} is token {token['id']}, which the vocabulary of {n:,} tokens does not have")
        elif name in ("bos", "eos", "eot", "eom") and types is not None and token["id"] < len(types):
            kind = int(types[token["id"]])
            if kind != 3:
                found.append(f"{name} ({token['id']}) is typed {TYPE_NAMES.get(kind, kind)}, not control")
    if "eos" not in known and not ends:
        found.append("no token ends an answer: it goes on until the limit")
    by_key = {known[name]["id"] for name in ("eos", "eot", "eom") if name in known}
    if by_name := [token for token in ends if token["id"] not in by_key]:
        listed = ", ".join(f"{token['id']} {token['text']!r}" for token in by_name[:4])
        found.append(f"ends an answer by its name, though no key says so: {listed}")
    if known.get("bos", {}).get("id", -1) == known.get("eos", {}).get("id", -2):
        found.append(f"bos and eos are one token, {known['bos']['id']}")
    if model == "gpt2" and meta.get(_KEY + "pre") is None:
        found.append(f"{_KEY}pre is missing: text is cut by the rule 'default', which may make answers worse")
    if n_rows is not None and n_rows > n:
        found.append(f"{n_rows - n:,} of {n_rows:,} embedding rows have no token; they are never sampled")
    if types is None or len(types) < n:
        found.append(f"{_KEY}token_type " + ("is missing" if types is None else f"has {len(types):,} of {n:,} entries"))
    elif (n_unknown := int((types == 2).sum())) > 1:
        found.append(f"{n_unknown:,} tokens are typed unknown; text never becomes one of them")
    scores = meta.get(_KEY + "scores")
    if model == "llama" and (not isinstance(scores, LazyArray) or len(scores) < n):
        found.append(f"{_KEY}scores is missing or too short: text cannot be cut as in training")
    if model == "llama" and types is not None and (n_bytes := int((types == 6).sum())) != 256:
        found.append(f"{n_bytes} byte tokens, wanted 256: characters without a token of their own may be lost")
    return found + _twins(vocab)


def _twins(vocab: Vocabulary) -> list[str]:
    """Tokens with one text, with none, or with bytes that are no text."""
    tokens, found = vocab.tokens, []
    distinct = len(vocab.last)
    empty = tokens.count(b"")
    if (n := len(tokens) - distinct - max(empty - 1, 0)) > 0:
        first = next(i for i, token in enumerate(tokens) if token and vocab.last[token] != i)
        text, second = tokens[first], tokens.index(tokens[first], first + 1)
        found.append(
            f"{n:,} tokens repeat the text of another, first {first} and {second}: {text.decode(errors='replace')!r}"
        )
    if empty:
        found.append(f"{empty:,} tokens have no text, first {tokens.index(b'')}")
    try:
        b"\n".join(tokens).decode()
    except UnicodeDecodeError:
        bad = [i for i, token in enumerate(tokens) if not _is_text(token)]
        found.append(f"{len(bad):,} tokens are not UTF-8, first {bad[0]}")
    return found


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
