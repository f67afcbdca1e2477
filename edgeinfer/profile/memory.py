"""How many bytes a model needs at a context size, part by part. Knows no board and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..arch import ARCHS
from ..engine.kv import REWIND
from ..model.config import ModelConfig
from ..plan.packing import KV_PAGE, KV_TYPES

__all__ = ["CONTEXTS", "RUNTIME_BYTES", "MemoryPlan", "plan_memory", "windows_of"]

# Python, NumPy, Numba and the compiled kernels of one chat
RUNTIME_BYTES = 130_000_000
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)  # that plans are shown for, as far as the model was trained


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part. `weights` is exact, `kv` is exact but for page rounding, `scratch` and `runtime` are estimates."""

    n_ctx: int  # positions
    n_batch: int  # most tokens of one forward
    kv_type: str  # "f16", "q8_0" or "q4_0"
    weights: int  # all tensors, once
    kv_per_position: int  # keys and values of all layers
    kv: int  # of one sequence of n_ctx positions; layers with a window keep only that much
    scratch: int  # activations of n_batch tokens in two lanes, and a row of logits in each
    runtime: int  # what the process needs without any model

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.kv + self.scratch + self.runtime


def windows_of(config: ModelConfig) -> list[tuple[int, int, int]]:
    """(layers, positions they look back or 0 for all, bytes of a layer's page) of each group of layers, as the family says.

    A page is KV_PAGE positions. 0 bytes stand for keys and values; a layer that carries state has pages of its own size.
    """
    family = ARCHS.get(config.arch)
    if family is None:
        return [(config.n_layer, 0, 0)]
    return [(g.n_layer, g.window, g.state_bytes) for g in family.groups(config)]


def plan_memory(
    weights_bytes: int,
    config: ModelConfig,
    n_ctx: int,
    n_batch: int = 512,
    kv_type: str = "f16",
    windows: Sequence[tuple[int, int, int]] | None = None,
) -> MemoryPlan:
    """The memory that a model of `weights_bytes` takes with a context of `n_ctx` positions.

    KV: n_head_kv * (head_dim + head_dim_v) numbers a layer and position, of 2, 34/32 or 18/32 bytes. `windows` is what
    `windows_of` gives (default: every layer keeps every position); such a group keeps its window, the positions that a
    rewind may go back, and what one forward adds.
    """
    per_layer = config.n_head_kv * (config.head_dim + config.head_dim_v) * KV_TYPES[kv_type] // 32
    kv = 0
    for n_layer, window, page_bytes in windows if windows is not None else [(config.n_layer, 0, 0)]:
        kept = -(-(window + REWIND + n_batch) // KV_PAGE) * KV_PAGE + KV_PAGE if window else n_ctx
        kept = min(n_ctx, kept)
        kv += n_layer * (-(-kept // KV_PAGE) * page_bytes if page_bytes else kept * per_layer)
    # a token's activations: residual, normed and output rows; q, k, v and the attention's output; gate, up and product
    row = 3 * config.n_embd + 3 * config.n_ff
    row += 2 * config.n_head * config.head_dim + config.n_head_kv * (config.head_dim + config.head_dim_v)
    scratch = 2 * 4 * (min(n_batch, n_ctx) * row + config.n_vocab)
    return MemoryPlan(n_ctx, n_batch, kv_type, weights_bytes, config.n_layer * per_layer, kv, scratch, RUNTIME_BYTES)
