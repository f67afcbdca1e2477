"""olmo2 (and OLMo 3): norms stand behind attention and feed-forward part, not before; q and k are normalized as whole rows.

OLMo 3 adds sliding layers, which rotate without the context's scaling.
"""

from __future__ import annotations

from ..model.config import ModelConfig
from ..plan.builder import Builder, Row
from ..plan.program import Rope
from . import llama
from .family import Family, KVGroup

__all__ = ["FAMILY"]

PATTERN = 4  # every fourth layer is full
FULL, SLIDING = 0, 1


def is_sliding(config: ModelConfig, layer: int) -> bool:
    """Whether a layer sees only the window."""
    if not config.sliding_window:
        return False
    if config.sliding_layers:
        return config.sliding_layers[layer]
    pattern = config.sliding_window_pattern or PATTERN
    return layer % pattern < pattern - 1


def groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """Full layers, then sliding ones."""
    sliding = sum(is_sliding(config, i) for i in range(config.n_layer))
    return (KVGroup(config.n_layer - sliding), KVGroup(sliding, config.sliding_window))


def build(b: Builder) -> None:
    """x += norm(attention(x)); x += norm(ffn(x)), layer by layer."""
    c = b.config
    full = llama.rope_of(b, c.rope_base)
    local = Rope(c.rope_base_local or c.rope_base, c.rope_dim)
    x = b.embed("token_embd.weight")
    pending: tuple[Row, str] | None = None  # a block's result that the next step adds
    for i in range(c.n_layer):
        blk = f"blk.{i}"
        h = b.norm(x, None, add=pending[0], add_weight=pending[1]) if pending else b.quantize(x)
        x = b.added(x) if pending else x
        sliding = is_sliding(c, i)
        rope = local if sliding else full
        q, k, v = b.qkv(h, blk, neighbours=False)
        b.norm_in_place(q, f"{blk}.attn_q_norm.weight")
        b.norm_in_place(k, f"{blk}.attn_k_norm.weight")
        kv = b.rope_kv(k, v, SLIDING if sliding else FULL, rope)
        a = b.attention(q, kv, rope, llama.attention_scale(c), c.sliding_window if sliding else 0)
        o = b.linear(b.quantize(a), [f"{blk}.attn_output.weight"], "o")
        h = b.norm(x, None, add=o, add_weight=f"{blk}.post_attention_norm.weight")
        x = b.added(x)
        f = llama.gated(b, h, blk)
        pending = b.linear(b.quantize(f), [f"{blk}.ffn_down.weight"], "down"), f"{blk}.post_ffw_norm.weight"
    last, weight = pending if pending else (None, None)
    b.logits(b.norm(x, "output_norm.weight", rows="out", add=last, add_weight=weight), llama.output_of(b))


FAMILY = Family("olmo2", groups, build, llama.check_dense, ("sliding_layers",))
