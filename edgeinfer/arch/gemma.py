"""gemma2 and gemma3: norms before and after each block, sliding and full layers in turn, GELU, scaled embeddings.

gemma2 caps scores and logits, and every second layer slides; gemma3 normalizes q and k per head, slides in five of six layers,
and its sliding layers rotate with a base frequency of their own. Rotary pairs are halves of a head.
"""

from __future__ import annotations

import math

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..plan.builder import Builder, Row
from ..plan.program import Rope
from . import llama
from .family import Family, KVGroup

__all__ = ["FAMILIES"]

PATTERN = {"gemma2": 2, "gemma3": 6}  # every n-th layer is full
DEFAULT_WINDOW = {"gemma2": 4096, "gemma3": 0}  # where the file names none
FULL, SLIDING = 0, 1
_27B = {"gemma2": 46, "gemma3": 62}  # layers of the one size whose scale comes from n_embd / n_head


def window_of(config: ModelConfig) -> int:
    """How many positions a sliding layer sees; 0 where none slides."""
    return config.sliding_window or DEFAULT_WINDOW[config.arch]


def is_sliding(config: ModelConfig, layer: int) -> bool:
    """Whether a layer sees only the window."""
    if config.sliding_layers:
        return window_of(config) > 0 and config.sliding_layers[layer]
    pattern = config.sliding_window_pattern or PATTERN[config.arch]
    return window_of(config) > 0 and layer % pattern < pattern - 1


def groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """Full layers, then sliding ones."""
    sliding = sum(is_sliding(config, i) for i in range(config.n_layer))
    return (KVGroup(config.n_layer - sliding), KVGroup(sliding, window_of(config)))


def check(config: ModelConfig) -> None:
    """Refuse what this description does not compute."""
    llama.check_dense(config)
    if config.n_layer == 0:
        raise UnsupportedModelError(f"a {config.arch} model without layers")


def build(b: Builder) -> None:
    """x += post_norm(attention(norm(x))); x += post_norm(ffn(norm(x))), layer by layer."""
    c = b.config
    full = llama.rope_of(b, c.rope_base)
    # gemma3: scaling applies to the full layers only.
    local = full if c.arch == "gemma2" else Rope(c.rope_base_local or c.rope_base, c.rope_dim)
    scale = (c.n_embd // c.n_head if c.n_layer == _27B[c.arch] else c.head_dim) ** -0.5
    x = b.embed("token_embd.weight", math.sqrt(c.n_embd))
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
        q, k, v = b.qkv(h, blk, neighbours=False)
        kv = b.rope_kv(k, v, SLIDING if sliding else FULL, rope, llama.optional(b, f"{blk}.attn_k_norm.weight"))
        a = b.attention(
            q, kv, rope, c.attention_scale or scale, window_of(c) if sliding else 0,
            llama.optional(b, f"{blk}.attn_q_norm.weight"),
        )  # fmt: skip
        o = b.linear(b.quantize(a), [f"{blk}.attn_output.weight"], "o")
        h = b.norm(x, f"{blk}.ffn_norm.weight", add=o, add_weight=f"{blk}.post_attention_norm.weight")
        x = b.added(x)
        f = b.gate_up(h, f"{blk}.ffn_gate.weight", f"{blk}.ffn_up.weight", "gelu")
        pending = b.linear(b.quantize(f), [f"{blk}.ffn_down.weight"], "down"), f"{blk}.post_ffw_norm.weight"
    last, weight = pending if pending else (None, None)
    b.logits(b.norm(x, "output_norm.weight", rows="out", add=last, add_weight=weight), llama.output_of(b))


FAMILIES = tuple(Family(name, groups, build, check, ("sliding_layers",)) for name in PATTERN)
