"""gemma3: norms before and after each block, q and k normalized per head, five sliding layers to one full, GELU.

Sliding layers rotate with their own base frequency and see `sliding_window` positions. Half-split rotary order in the file.
"""

from __future__ import annotations

import math

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..plan.builder import Builder, Row
from ..plan.program import Rope
from . import llama
from .family import Family, KVGroup

__all__ = ["FAMILY"]

PATTERN = 6  # every sixth layer is full
FULL, SLIDING = 0, 1
_27B = 62  # layers of the one size whose scale comes from n_embd / n_head


def is_sliding(config: ModelConfig, layer: int) -> bool:
    """Whether a layer sees only the window."""
    pattern = config.sliding_window_pattern or PATTERN
    return config.sliding_window > 0 and layer % pattern < pattern - 1


def groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """Full layers, then sliding ones."""
    sliding = sum(is_sliding(config, i) for i in range(config.n_layer))
    return (KVGroup(config.n_layer - sliding), KVGroup(sliding, config.sliding_window))


def check(config: ModelConfig) -> None:
    """Refuse what this description does not compute."""
    llama.check(config)
    if config.n_layer == 0:
        raise UnsupportedModelError("a gemma3 model without layers")


def build(b: Builder) -> None:
    """x += post_norm(attention(norm(x))); x += post_norm(ffn(norm(x))), layer by layer."""
    c = b.config
    full = llama.rope_of(b, c.rope_base)
    # Scaling applies to the full layers only.
    local = Rope(c.rope_base_local or c.rope_base, c.rope_dim)
    scale = (c.n_embd // c.n_head) ** -0.5 if c.n_layer == _27B else c.head_dim**-0.5
    x = b.embed("token_embd.weight", math.sqrt(c.n_embd))
    n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    pending: tuple[Row, str] | None = None  # a block's result that the next norm adds
    for i in range(c.n_layer):
        blk = f"blk.{i}"
        h = b.norm(
            x,
            f"{blk}.attn_norm.weight",
            add=pending[0] if pending else None,
            add_weight=pending[1] if pending else None,
        )
        x = b.added(x) if pending else x
        sliding = is_sliding(c, i)
        rope = local if sliding else full
        qkv = b.linear(h, [f"{blk}.attn_{part}.weight" for part in "qkv"], "qkv")
        kv = b.rope_kv(
            qkv.part(n_q, n_kv),
            qkv.part(n_q + n_kv, n_kv),
            SLIDING if sliding else FULL,
            rope,
            f"{blk}.attn_k_norm.weight",
        )
        a = b.attention(qkv, kv, rope, scale, c.sliding_window if sliding else 0, f"{blk}.attn_q_norm.weight")
        o = b.linear(b.quantize(a), [f"{blk}.attn_output.weight"], "o")
        h = b.norm(x, f"{blk}.ffn_norm.weight", add=o, add_weight=f"{blk}.post_attention_norm.weight")
        x = b.added(x)
        f = b.gate_up(h, f"{blk}.ffn_gate.weight", f"{blk}.ffn_up.weight", "gelu")
        pending = b.linear(b.quantize(f), [f"{blk}.ffn_down.weight"], "down"), f"{blk}.post_ffw_norm.weight"
    last, weight = pending if pending else (None, None)
    b.logits(b.norm(x, "output_norm.weight", rows="out", add=last, add_weight=weight), llama.output_of(b))


FAMILY = Family("gemma3", groups, build, check)
