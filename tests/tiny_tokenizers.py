"""Small tokenizers built from a few lines of metadata, for tests that need no model file."""

from __future__ import annotations

from typing import Any

from edgeinfer.model.bpe import TEXT_OF_BYTES
from edgeinfer.model.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def bpe_metadata(
    merges: tuple[str, ...] = (),
    control: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"),
    user_defined: tuple[str, ...] = (),
    **keys: Any,
) -> dict[str, Any]:
    """Byte-level byte pairs: control tokens first, then user-defined ones, the 256 bytes, and what `merges` make."""
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*control, *user_defined, *TEXT_OF_BYTES, *made]
    types = [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined) + [NORMAL] * (256 + len(made))
    metadata = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "token_type": types, "merges": list(merges)}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | keys).items() if value is not None}


def spm_metadata(
    words: tuple[str, ...] = (),
    control: tuple[str, ...] = ("<s>", "</s>"),
    user_defined: tuple[str, ...] = (),
    **keys: Any,
) -> dict[str, Any]:
    """SentencePiece: <unk>, control and user-defined tokens, 256 bytes, ASCII and the space mark, then `words`.

    Earlier words have higher scores; the single characters have the lowest.
    """
    singles = ["▁", *map(chr, range(33, 127))]
    words = tuple(word for word in words if len(word) > 1)
    special = ["<unk>", *control, *user_defined]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *singles, *words]
    types = [UNKNOWN] + [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined) + [BYTE] * 256
    types += [NORMAL] * (len(singles) + len(words))
    scores = [0.0] * (len(special) + 256) + [-1e6] * len(singles) + [-1.0 - i for i in range(len(words))]
    metadata = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    ids = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | ids | keys).items() if value is not None}


def wordpiece_metadata(words: tuple[str, ...] = (), **keys: Any) -> dict[str, Any]:
    """WordPiece: [PAD], [UNK], [CLS], [SEP] and [MASK], then `words`, whose beginnings are marked by "▁"."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokens = [*special, *words]
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL] + [NORMAL] * len(words)
    metadata = {"model": "bert", "pre": "bert-bge", "tokens": tokens, "token_type": types, "cls_token_id": 2}
    ids = {"unknown_token_id": 1, "seperator_token_id": 3, "mask_token_id": 4, "padding_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | ids | keys).items() if value is not None}


def unigram_metadata(scored: dict[str, float], user_defined: tuple[str, ...] = (), **keys: Any) -> dict[str, Any]:
    """Unigram: <pad>, </s> and <unk>, user-defined tokens, then tokens with their scores."""
    tokens = ["<pad>", "</s>", "<unk>", *user_defined, *scored]
    types = [CONTROL, CONTROL, UNKNOWN] + [USER_DEFINED] * len(user_defined) + [NORMAL] * len(scored)
    scores = [0.0] * (3 + len(user_defined)) + [*scored.values()]
    metadata = {"model": "t5", "tokens": tokens, "token_type": types, "scores": scores, "add_space_prefix": True}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | keys).items() if value is not None}


def chain(*words: str) -> tuple[str, ...]:
    """Each word after all its beginnings, so that merges from the left lead to it."""
    return tuple(word[:n] for word in words for n in range(2, len(word) + 1))


def bpe(*args: Any, **keys: Any) -> Tokenizer:
    """A tokenizer of `bpe_metadata`."""
    return Tokenizer(bpe_metadata(*args, **keys))


def spm(*args: Any, **keys: Any) -> Tokenizer:
    """A tokenizer of `spm_metadata`."""
    return Tokenizer(spm_metadata(*args, **keys))


def wordpiece(*args: Any, **keys: Any) -> Tokenizer:
    """A tokenizer of `wordpiece_metadata`."""
    return Tokenizer(wordpiece_metadata(*args, **keys))


def unigram(*args: Any, **keys: Any) -> Tokenizer:
    """A tokenizer of `unigram_metadata`."""
    return Tokenizer(unigram_metadata(*args, **keys))


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What the file calls the tokens."""
    return [tokenizer.token_text(index) or "" for index in ids]
