"""lfm2: a hybrid whose layers are gated short convolutions, but for a few that attend; q and k are normalized per head.

A convolution carries the last tokens' values from call to call, so its KV group holds state instead of keys and values.
"""

from __future__ import annotations

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..plan.builder import Builder
from ..plan.packing import CONV_RING, conv_page_bytes
from . import llama
from .family import Family, KVGroup

__all__ = ["FAMILY"]

ATTENTION, CONVOLUTION = 0, 1


def is_convolution(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has a convolution in the place of attention."""
    return bool(config.recurrent_layers) and config.recurrent_layers[layer]


def groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """Layers that attend, then convolutions."""
    n = sum(config.recurrent_layers)
    keep = CONV_RING - (config.conv_width - 1)
    state = KVGroup(n, state_bytes=conv_page_bytes(config.n_embd), keep=keep)
    return (KVGroup(config.n_layer - n), state)


def check(config: ModelConfig) -> None:
    """Refuse what this description does not compute."""
    llama.check(config)
    if config.n_expert:
        raise UnsupportedModelError(
            f"lfm2.expert_count is {config.n_expert}: the native engine runs lfm2 without experts"
        )
    if not 2 <= config.conv_width <= CONV_RING // 2:
        raise UnsupportedModelError(
            f"lfm2.shortconv.l_cache is {config.conv_width or 'missing'}; the native engine runs 2 to {CONV_RING // 2}"
        )


def build(b: Builder) -> None:
    """x += attention or convolution(norm(x)); x += feed_forward(norm(x)), layer by layer."""
    c = b.config
    rope = llama.rope_of(b, c.rope_base)
    x = b.embed("token_embd.weight")
    for i in range(c.n_layer):
        blk = f"blk.{i}"
        h = b.norm(x, f"{blk}.attn_norm.weight")
        if is_convolution(c, i):
            bcx = b.linear(h, [f"{blk}.shortconv.in_proj.weight"], "bcx")
            y = b.short_conv(bcx, f"{blk}.shortconv.conv.weight", CONVOLUTION)
            b.linear(b.quantize(y), [f"{blk}.shortconv.out_proj.weight"], x, "add")
        else:
            q, k, v = b.qkv(h, blk, neighbours=False)
            kv = b.rope_kv(k, v, ATTENTION, rope, f"{blk}.attn_k_norm.weight")
            a = b.attention(q, kv, rope, llama.attention_scale(c), norm=f"{blk}.attn_q_norm.weight")
            b.linear(b.quantize(a), [f"{blk}.attn_output.weight"], x, "add")
        llama.feed_forward(b, b.norm(x, f"{blk}.ffn_norm.weight"), blk, x)
    # Its last norm goes by a name of its own.
    b.logits(b.norm(x, "token_embd_norm.weight", rows="out"), llama.output_of(b))


FAMILY = Family("lfm2", groups, build, check, ("recurrent_layers", "conv_width"))
