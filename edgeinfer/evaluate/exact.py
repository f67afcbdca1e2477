"""The exact forward: float NumPy over dequantized weights, the truth that fast engines are measured against.

Every position of a text at once, no KV cache, no 8-bit activations, no fused steps; weights cost 4 (or 8) bytes each.
It shares no code with the engine on purpose: an error in one cannot hide in the other. Knows no tokenizer, no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError, UnsupportedModelError
from ..model.config import ModelConfig
from ..model.gguf import GGUFFile
from ..model.weights import Weights

__all__ = ["EXACT_FAMILIES", "ExactModel", "TensorSource"]

Array = NDArray[Any]


class TensorSource(Protocol):
    """Where the weights come from; `model.Weights` fits."""

    def has(self, name: str) -> bool:
        """Whether the file holds the tensor."""

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor's values, dequantized, rows first."""


def _silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-np.clip(x, -80, 80)))
    return y


def _gelu_tanh(x: Array) -> Array:
    inner = x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
    y: Array = x.dtype.type(0.5) * x * (1 + np.tanh(inner))
    return y


@dataclass(frozen=True)
class Family:
    """What sets one family of models apart in the exact forward."""

    activation: Callable[[Array], Array]
    rope_pairs: str  # "neighbours" rotates (2i, 2i+1), "halves" rotates (i, i + rope_dim/2)
    scaled_embedding: bool = False  # multiply embeddings by sqrt(n_embd)
    local_pattern: int = 0  # every n-th layer is global, the others slide; 0: none slides
    local_rope_base: float = 0.0  # rope base of sliding layers when the file names none


EXACT_FAMILIES: dict[str, Family] = {
    "llama": Family(_silu, "neighbours"),
    "gemma3": Family(_gelu_tanh, "halves", scaled_embedding=True, local_pattern=6, local_rope_base=10000.0),
}


class ExactModel:
    """A GGUF model's forward pass in plain float arithmetic.

    `hidden(ids)` gives the normed state of every position, `logits(ids)` the logits, `log_prob_chunks(ids)` the log
    probabilities a few positions at a time (a large vocabulary times a long text does not fit in memory).

    Raises UnsupportedModelError for a family or a RoPE scaling that it has no formula for.
    """

    def __init__(self, weights: TensorSource, config: ModelConfig, dtype: type[np.floating[Any]] = np.float32) -> None:
        family = EXACT_FAMILIES.get(config.arch)
        if family is None:
            known = ", ".join(sorted(EXACT_FAMILIES))
            raise UnsupportedModelError(f"the exact forward knows {known}; the file's architecture is {config.arch!r}")
        if (config.rope_scaling_type or "none") not in ("none", "linear"):
            raise UnsupportedModelError(
                f"the exact forward has no formula for RoPE scaling {config.rope_scaling_type!r}; wanted none or linear"
            )
        if config.arch == "gemma3" and config.n_layer == 62:
            raise UnsupportedModelError("the exact forward does not know the attention scale of the 27B Gemma 3")
        self.config = config
        self.dtype = np.dtype(dtype)
        self._family = family
        self._weights = weights
        self._cache: dict[str, Array] = {}
        self._on_close: Callable[[], None] | None = None

    @classmethod
    def open(cls, path: Path, dtype: type[np.floating[Any]] = np.float32) -> ExactModel:
        """The exact forward of a GGUF file, which `close` closes. Raises what reading the file raises."""
        file = GGUFFile.open(path)
        try:
            config = ModelConfig.from_gguf(file)
            model = cls(Weights(file, config), config, dtype)
        except BaseException:
            file.close()
            raise
        model._on_close = file.close
        return model

    def __enter__(self) -> ExactModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the dequantized weights, and close the file if `open` opened it."""
        self._cache.clear()
        if self._on_close is not None:
            self._on_close()

    def hidden(self, ids: Sequence[int]) -> Array:
        """The state after the last norm at every position of `ids`, as an array (len(ids), n_embd)."""
        n = len(ids)
        if n == 0 or min(ids) < 0 or max(ids) >= self.config.n_vocab:
            raise SettingError(f"token ids must be 1 or more numbers from 0 to {self.config.n_vocab - 1}")
        x = self._weight("token_embd.weight")[np.asarray(ids)]
        if self._family.scaled_embedding:
            x = x * self.dtype.type(np.sqrt(self.config.n_embd))
        for layer in range(self.config.n_layer):
            x = x + self._attention(layer, x)
            x = x + self._feed_forward(layer, x)
        return self._norm(x, "output_norm")

    def output(self, hidden: Array) -> Array:
        """The logits of hidden states: (n, n_embd) -> (n, n_vocab)."""
        name = "token_embd.weight" if self.config.tied_embeddings else "output.weight"
        logits = hidden @ self._weight(name).T
        cap = self.config.final_logit_softcap
        if cap:
            logits = np.tanh(logits / cap) * cap
        return logits

    def logits(self, ids: Sequence[int], last: bool = False) -> Array:
        """The logits of every position (len(ids), n_vocab), or of the last one only (1, n_vocab)."""
        hidden = self.hidden(ids)
        return self.output(hidden[-1:] if last else hidden)

    def log_prob_chunks(self, ids: Sequence[int], rows: int = 64) -> Iterator[Array]:
        """Yield the log probabilities of successive positions, at most `rows` of them (k, n_vocab) at a time."""
        hidden = self.hidden(ids)
        for start in range(0, len(ids), rows):
            yield log_softmax(self.output(hidden[start : start + rows]))

    # one layer

    def _attention(self, layer: int, x: Array) -> Array:
        """The attention branch: (n, n_embd) -> (n, n_embd), without the residual."""
        config, n = self.config, len(x)
        groups = config.n_head // config.n_head_kv
        h = self._norm(x, f"blk.{layer}.attn_norm")
        q = self._linear(h, f"blk.{layer}.attn_q").reshape(n, config.n_head, config.head_dim)
        k = self._linear(h, f"blk.{layer}.attn_k").reshape(n, config.n_head_kv, config.head_dim)
        v = self._linear(h, f"blk.{layer}.attn_v").reshape(n, config.n_head_kv, config.head_dim_v)
        if self._weights.has(f"blk.{layer}.attn_q_norm.weight"):
            q = self._norm(q, f"blk.{layer}.attn_q_norm")
            k = self._norm(k, f"blk.{layer}.attn_k_norm")
        window = self._window(layer)
        cos, sin = self._rotation(n, local=window > 0)
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        seen = np.tri(n, dtype=bool)
        if window:
            seen &= ~np.tri(n, k=-window, dtype=bool)  # position i sees i-window+1 .. i
        scale = self.dtype.type(1 / np.sqrt(config.head_dim))
        out = np.empty((n, config.n_head, config.head_dim_v), self.dtype)
        for head in range(config.n_head):
            scores = (q[:, head] * scale) @ k[:, head // groups].T
            cap = config.attn_logit_softcap
            if cap:
                scores = np.tanh(scores / cap) * cap
            scores = np.where(seen, scores, -np.inf)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = (scores / scores.sum(axis=-1, keepdims=True)) @ v[:, head // groups]
        y = self._linear(out.reshape(n, -1), f"blk.{layer}.attn_output")
        return self._optional_norm(y, f"blk.{layer}.post_attention_norm")

    def _feed_forward(self, layer: int, x: Array) -> Array:
        """The gated feed-forward branch: (n, n_embd) -> (n, n_embd), without the residual."""
        h = self._norm(x, f"blk.{layer}.ffn_norm")
        gate = self._family.activation(self._linear(h, f"blk.{layer}.ffn_gate"))
        y = self._linear(gate * self._linear(h, f"blk.{layer}.ffn_up"), f"blk.{layer}.ffn_down")
        return self._optional_norm(y, f"blk.{layer}.post_ffw_norm")

    def _window(self, layer: int) -> int:
        """How many positions the layer sees, itself included; 0 for all."""
        pattern = self._family.local_pattern and (self.config.sliding_window_pattern or self._family.local_pattern)
        if not pattern or not self.config.sliding_window or layer % pattern == pattern - 1:
            return 0
        return self.config.sliding_window

    # parts

    def _rotation(self, n: int, local: bool) -> tuple[Array, Array]:
        """Cosine and sine (n, 1, rope_dim/2) of every position and pair."""
        dim, config = self.config.rope_dim, self.config
        base = config.rope_base
        if local:
            base = config.rope_base_local or self._family.local_rope_base
        frequency = float(base) ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if not local and config.rope_scaling_type == "linear" and config.rope_scaling_factor:
            frequency /= config.rope_scaling_factor
        if self._weights.has("rope_freqs.weight"):
            frequency /= self._weight("rope_freqs.weight").astype(np.float64)
        angle = np.arange(n, dtype=np.float64)[:, None, None] * frequency
        return np.cos(angle).astype(self.dtype), np.sin(angle).astype(self.dtype)

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotary embedding of x (n, heads, head_dim); values past rope_dim pass through."""
        dim = self.config.rope_dim
        if self._family.rope_pairs == "neighbours":
            first, second = slice(0, dim, 2), slice(1, dim, 2)
        else:
            first, second = slice(0, dim // 2), slice(dim // 2, dim)
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def _norm(self, x: Array, name: str) -> Array:
        """RMS norm over the last axis: x / sqrt(mean(x^2) + eps) * weight."""
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        y: Array = x / np.sqrt(mean + self.dtype.type(self.config.rms_eps)) * self._weight(f"{name}.weight")
        return y

    def _optional_norm(self, x: Array, name: str) -> Array:
        return self._norm(x, name) if self._weights.has(f"{name}.weight") else x

    def _linear(self, x: Array, name: str) -> Array:
        """x @ weight.T (+ bias): (n, cols) -> (n, rows)."""
        y = x @ self._weight(f"{name}.weight").T
        if self._weights.has(f"{name}.bias"):
            y = y + self._weight(f"{name}.bias")
        return y

    def _weight(self, name: str) -> Array:
        found = self._cache.get(name)
        if found is None:
            found = self._cache[name] = self._weights.float32(name).astype(self.dtype, copy=False)
        return found


def log_softmax(logits: Array) -> Array:
    """Log probabilities along the last axis, in the logits' own float type."""
    shifted: Array = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted
