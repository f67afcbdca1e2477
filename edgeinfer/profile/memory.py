"""How many bytes a model needs at a context size, part by part. Knows no board and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.config import ModelConfig

__all__ = ["RUNTIME_BYTES", "MemoryPlan", "plan_memory"]

KV_BYTES = 2  # f16
# Python, NumPy, Numba and the compiled kernels of one chat
RUNTIME_BYTES = 130_000_000


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part. `weights` is exact, `kv` is exact but for page rounding, `scratch` and `runtime` are estimates."""

    n_ctx: int  # positions
    n_batch: int  # most tokens of one forward
    weights: int  # all tensors, once
    kv_per_position: int  # keys and values of all layers, f16
    kv: int  # kv_per_position * n_ctx
    scratch: int  # activations of n_batch tokens in two lanes, and a row of logits in each
    runtime: int  # what the process needs without any model

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.kv + self.scratch + self.runtime


def plan_memory(weights_bytes: int, config: ModelConfig, n_ctx: int, n_batch: int = 512) -> MemoryPlan:
    """The memory that a model of `weights_bytes` takes with a context of `n_ctx` positions.

    KV: n_layer * n_head_kv * (head_dim + head_dim_v) f16 numbers a position; sliding layers are counted in full.
    """
    kv_per_position = config.n_layer * config.n_head_kv * (config.head_dim + config.head_dim_v) * KV_BYTES
    # a token's activations: residual, normed and output rows; q, k, v and the attention's output; gate, up and product
    row = 3 * config.n_embd + 3 * config.n_ff
    row += 2 * config.n_head * config.head_dim + config.n_head_kv * (config.head_dim + config.head_dim_v)
    scratch = 2 * 4 * (min(n_batch, n_ctx) * row + config.n_vocab)
    return MemoryPlan(n_ctx, n_batch, weights_bytes, kv_per_position, kv_per_position * n_ctx, scratch, RUNTIME_BYTES)
