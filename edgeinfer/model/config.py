"""FILE -> ModelConfig: the hyper-parameters of a model, checked and named. Must not know how a family computes.

A missing, absurd or contradictory value is refused by the name of its key, before anything is allocated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ModelFileError, UnsupportedModelError
from .gguf import GGUFFile
from .lazy_array import LazyArray
from .purpose import architecture

__all__ = ["ModelConfig"]

ROPE_SCALING_TYPES = ("none", "linear", "yarn", "longrope")
SPECIAL_IDS = ("bos", "eos", "eot", "eom", "unknown")  # those that decide what is generated; the others are not used
# Keys that do not change what is computed from the tokens, or that the tensors say better.
HARMLESS = (
    "vocab_size", "tensor_data_layout", "expert_feed_forward_length", "expert_shared_feed_forward_length", "pooling_type",
    "features_length", "attention.layer_norm_epsilon",
    "use_parallel_residual",  # true in the first Qwen 1.5 files, whose layers have none; llama.cpp does not read it there
)  # fmt: skip
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class ModelConfig:
    """What the file says about the shape of the model. Counts are at least 1 unless said otherwise."""

    arch: str  # general.architecture: "llama", "gemma3"
    name: str  # general.name, or the file's name
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int  # of queries and keys: attention.key_length, or n_embd // n_head
    head_dim_v: int  # of values: attention.value_length, or n_embd // n_head
    n_ff: int
    n_vocab: int  # rows of token_embd: the length of a logits row
    n_tokens: int  # tokens in the file's vocabulary, at most n_vocab; 0 without a tokenizer
    n_ctx_train: int
    rms_eps: float
    rope_dim: int  # leading dimensions of a head that are rotated
    rope_base: float
    rope_base_local: float | None  # of sliding-window layers; None where the family has no second base
    rope_scaling_type: str | None  # "linear", "yarn", "longrope"; None for no scaling
    rope_scaling_factor: float | None
    rope_n_ctx_orig: int | None  # the window before yarn or longrope stretched it
    sliding_window: int  # positions a sliding layer sees, itself included; 0 for none
    sliding_window_pattern: int | None  # every n-th layer is full; None lets the family decide
    attn_logit_softcap: float  # 0.0 for none
    final_logit_softcap: float  # 0.0 for none
    n_expert: int  # 0 for a dense model
    tied_embeddings: bool  # the output matrix is token_embd
    # What only some families have
    rope_attn_factor: float | None = None  # of cosines and sines; None lets the scaling type decide
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_log_multiplier: float = 0.0  # 0.0 for none
    rope_finetuned: bool | None = (
        None  # rope.scaling.finetuned, by which granite says whether it rotates; None for absent
    )
    sliding_layers: tuple[bool, ...] = ()  # layer by layer, where the file says so; else empty
    attention_scale: float = 0.0  # of q k; 0.0 for 1 / sqrt(head_dim)
    attention_temperature: float = 0.0  # by which queries grow with the logarithm of the position; 0.0 for none
    embedding_scale: float = 0.0  # 0.0 for none, as the next two
    residual_scale: float = 0.0
    logit_scale: float = 0.0
    n_expert_used: int = 0
    expert_weights_scale: float = 0.0  # 0.0 for none
    recurrent_layers: tuple[bool, ...] = ()  # those without keys and values (head_count_kv 0); empty: none
    conv_width: int = 0  # tokens that a short convolution sees, itself included; 0 for none
    unread_keys: tuple[str, ...] = ()  # keys of the architecture that nothing above stands for, sorted

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> ModelConfig:
        """Read and check the configuration.

        Raises ModelFileError (a key is missing, out of range or contradicts the tensors) or UnsupportedModelError
        (sound, but nothing here runs it: no language model, sizes that differ per layer, an unknown rope scaling).
        """
        keys = _Keys(file, architecture(file))
        n_layer = keys.count("block_count")
        n_embd = keys.count("embedding_length")
        n_head = keys.count("attention.head_count")
        n_head_kv, recurrent = keys.kv_heads(n_head, n_layer)
        if n_head % n_head_kv:
            raise keys.bad("attention.head_count_kv", n_head_kv, f"a divisor of the head count {n_head}")
        head_dim = keys.count("attention.key_length", 0) or keys.shared(n_embd, n_head)
        rope_dim = keys.count("rope.dimension_count", head_dim)
        if rope_dim > head_dim or rope_dim % 2:
            raise keys.bad("rope.dimension_count", rope_dim, f"an even number up to the head size {head_dim}")
        scaling, factor, n_ctx_orig = keys.rope_scaling()
        window = keys.count("attention.sliding_window", 0, low=0)
        pattern, sliding = keys.sliding(n_layer)
        n_vocab, n_tokens = keys.vocabulary(n_embd)
        keys.layers(n_layer)
        keys.special_ids(n_tokens or n_vocab)
        keys.only("attention.causal", True)
        keys.only("expert_gating_func", 1)  # softmax
        keys.only("rope.scaling.alpha", 0.0)
        keys.only("rope.scaling.yarn_ext_factor", 1.0)
        n_expert = keys.count("expert_count", 0, low=0)
        n_used = keys.count("expert_used_count", 0, low=0)
        if n_expert and not 1 <= n_used <= n_expert:
            raise keys.bad("expert_used_count", n_used or "missing", f"1 to {n_expert}, the number of experts")
        return cls(
            arch=keys.arch,
            name=keys.text("general.name", file.path.stem),
            n_layer=n_layer,
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=head_dim,
            head_dim_v=keys.count("attention.value_length", 0) or keys.shared(n_embd, n_head),
            n_ff=keys.count("feed_forward_length"),
            n_vocab=n_vocab,
            n_tokens=n_tokens,
            n_ctx_train=keys.count("context_length"),
            rms_eps=keys.number("attention.layer_norm_rms_epsilon", None, high=1.0),
            rope_dim=rope_dim,
            rope_base=keys.number("rope.freq_base", 10000.0),
            rope_base_local=keys.number("rope.freq_base_swa", 10000.0) if window else None,
            rope_scaling_type=scaling,
            rope_scaling_factor=factor,
            rope_n_ctx_orig=n_ctx_orig,
            rope_attn_factor=keys.number("rope.scaling.yarn_attn_factor", 0.0)
            or keys.number("rope.scaling.attn_factor", 0.0)
            or None,
            yarn_beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            yarn_beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            yarn_log_multiplier=keys.number("rope.scaling.yarn_log_multiplier", 0.0),
            rope_finetuned=keys.flag("rope.scaling.finetuned"),
            sliding_window=window,
            sliding_window_pattern=pattern,
            sliding_layers=sliding,
            attention_scale=keys.number("attention.scale", 0.0),
            attention_temperature=keys.number("attention.temperature_scale", 0.0),
            embedding_scale=keys.number("embedding_scale", 0.0),
            residual_scale=keys.number("residual_scale", 0.0),
            logit_scale=keys.number("logit_scale", 0.0),
            attn_logit_softcap=keys.number("attn_logit_softcapping", 0.0),
            final_logit_softcap=keys.number("final_logit_softcapping", 0.0),
            n_expert=n_expert,
            n_expert_used=n_used if n_expert else 0,
            expert_weights_scale=keys.number("expert_weights_scale", 0.0),
            recurrent_layers=recurrent,
            conv_width=keys.count("shortconv.l_cache", 0, low=2),
            tied_embeddings="output.weight" not in file.tensors,
            unread_keys=keys.unread(),  # last: what stands above has asked for its keys
        )


class _Keys:
    """Typed, checked access to the keys of one file; short names stand for "{arch}.name"."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file = file
        self.arch = arch
        self._read: set[str] = set()

    def key(self, name: str) -> str:
        full = name if name.startswith(("general.", "tokenizer.")) else f"{self.arch}.{name}"
        self._read.add(full)
        return full

    def unread(self) -> tuple[str, ...]:
        """Keys of the architecture that were not asked for and may change what the model computes."""
        harmless = {f"{self.arch}.{name}" for name in HARMLESS}
        return tuple(
            sorted(k for k in self.file.metadata if k.startswith(f"{self.arch}.") and k not in self._read | harmless)
        )

    def bad(self, name: str, value: object, wanted: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {self.key(name)} is {value}; wanted {wanted}")

    def raw(self, name: str) -> object:
        """The stored value, None when absent; of a per-layer array its one value, where all are equal."""
        value = self.file.metadata.get(self.key(name))
        if not isinstance(value, LazyArray):
            return value
        if value.kind in ("string", "array") or not len(value):
            raise self.bad(name, f"an array of {len(value)} {value.kind}s", "a number")
        numbers = set(value.numpy().tolist())
        if len(numbers) > 1:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key(name)} differs from layer to layer ({_some(numbers)}); "
                "edgeinfer runs models whose layers are all alike"
            )
        return numbers.pop()

    def count(self, name: str, default: int | None = None, low: int = 1, high: int = (1 << 31) - 1) -> int:
        """A whole number in [low, high]; required where there is no default."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise self.bad(name, "missing", f"a whole number from {low}")
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.bad(name, value, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float | None, high: float = math.inf) -> float:
        """A finite number of at least 0 and below `high`, above 0 unless the default is 0."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise self.bad(name, "missing", "a number above 0")
            return default
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not math.isfinite(value)
            or not 0 <= value < high
            or (value == 0 and default != 0)
        ):
            raise self.bad(name, value, f"a number {'from' if default == 0 else 'above'} 0, below {high}")
        return float(value)

    def text(self, name: str, default: str | None) -> str:
        value = self.file.metadata.get(self.key(name))
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.bad(name, "missing" if value is None else value, "text")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.raw(name)
        if value is not None and type(value) is not bool:
            raise self.bad(name, value, "true or false")
        return value if isinstance(value, bool) else None

    def only(self, name: str, wanted: object) -> None:
        """Refuse a key with another value than the one that is computed here; absent is fine."""
        value = self.raw(name)
        if value is not None and value != wanted:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key(name)} is {value}; edgeinfer computes models with {wanted} only"
            )

    def layered(self, name: str, n_layer: int) -> list[object] | None:
        """The values of a key that is an array with one for each layer; None where it is none."""
        value = self.file.metadata.get(self.key(name))
        if not isinstance(value, LazyArray) or value.kind in ("string", "array"):
            return None
        if len(value) != n_layer:
            raise self.bad(name, f"an array of {len(value)}", f"one value for each of {n_layer} layers")
        return list(value.numpy().tolist())

    def kv_heads(self, n_head: int, n_layer: int) -> tuple[int, tuple[bool, ...]]:
        """(heads of keys and values, which layers have none); an array of 0 and one other number is a hybrid model."""
        name = "attention.head_count_kv"
        values = self.layered(name, n_layer)
        if values is None or 0 not in values or len(set(values)) != 2:
            return self.count(name, n_head), ()
        heads = max(v for v in values if isinstance(v, int))
        if heads < 1:
            raise self.bad(name, values, "whole numbers from 0")
        return heads, tuple(v == 0 for v in values)

    def sliding(self, n_layer: int) -> tuple[int | None, tuple[bool, ...]]:
        """(every n-th layer is full, or which layers slide)."""
        name = "attention.sliding_window_pattern"
        values = self.layered(name, n_layer)
        if values is not None:
            return None, tuple(bool(v) for v in values)
        return self.count(name, 0, low=0) or None, ()

    def shared(self, n_embd: int, n_head: int) -> int:
        """The head size of a file that does not give one."""
        if n_embd % n_head:
            raise self.bad("attention.head_count", n_head, f"a divisor of the embedding length {n_embd}")
        return n_embd // n_head

    def rope_scaling(self) -> tuple[str | None, float | None, int | None]:
        """(type, factor, original context), by the new keys or the old one; None where positions are not scaled."""
        factor = self.number("rope.scaling.factor", 0.0) or self.number("rope.scale_linear", 0.0) or 1.0
        kind = self.text("rope.scaling.type", "linear")
        if kind not in ROPE_SCALING_TYPES:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key('rope.scaling.type')} is {kind!r}; wanted one of "
                f"{', '.join(ROPE_SCALING_TYPES)}"
            )
        n_ctx_orig = self.count("rope.scaling.original_context_length", 0, low=0) or None
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return None, None, n_ctx_orig
        return kind, factor, n_ctx_orig

    def vocabulary(self, n_embd: int) -> tuple[int, int]:
        """(rows of the embedding matrix, tokens that the vocabulary names)."""
        embedding = self.file.tensor("token_embd.weight")
        if len(embedding.shape) != 2 or embedding.shape[1] != n_embd:
            raise self.bad("embedding_length", n_embd, f"what token_embd.weight of shape {embedding.shape} has")
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        n_tokens = len(tokens) if isinstance(tokens, LazyArray) else 0
        if n_tokens > embedding.shape[0]:
            raise self.bad(
                "tokenizer.ggml.tokens", f"{n_tokens} tokens long", f"at most {embedding.shape[0]}, its rows"
            )
        return embedding.shape[0], n_tokens

    def layers(self, n_layer: int) -> None:
        """Refuse a block count that the tensors contradict."""
        present = {int(match[1]) for name in self.file.tensors if (match := _BLOCK.match(name))}
        if len(present) != n_layer or present != set(range(n_layer)):
            raise self.bad("block_count", n_layer, f"the number of layers with tensors, {len(present)}")

    def special_ids(self, n_tokens: int) -> None:
        """Refuse end and start tokens that are not in the vocabulary."""
        for kind in SPECIAL_IDS:
            name = f"tokenizer.ggml.{kind}_token_id"
            value = self.file.metadata.get(name)
            if value is not None and (type(value) is not int or not 0 <= value < n_tokens):
                raise self.bad(name, value, f"a token id below {n_tokens}")


def _some(numbers: Iterable[float]) -> str:
    shown = sorted(numbers)
    return ", ".join(f"{n:g}" for n in shown[:4]) + (", ..." if len(shown) > 4 else "")
