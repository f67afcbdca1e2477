"""qwen2moe and qwen3moe: the attention of their dense kin, and a few of many experts instead of one feed-forward part.

qwen2moe leaves the chosen weights as softmax over all experts gave them, and adds an expert that every token uses, scaled by
the sigmoid of a number of its own; qwen3moe makes the chosen weights sum to 1.
"""

from __future__ import annotations

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..plan.builder import Activations, Builder, Row
from . import llama
from .family import Family

__all__ = ["FAMILIES"]


def check(config: ModelConfig) -> None:
    """Refuse a file without experts."""
    llama.check(config)
    if not config.n_expert:
        raise UnsupportedModelError(f"{config.arch}.expert_count is 0 or missing; a {config.arch} model has experts")


def experts(b: Builder, h: Activations, blk: str, x: Row) -> None:
    """x += sum over the chosen experts of weight * down(silu(gate h) * (up h)), and the shared expert's part."""
    c = b.config
    routes = b.route(
        h, f"{blk}.ffn_gate_inp.weight", c.n_expert_used, c.arch == "qwen3moe", c.expert_weights_scale or 1.0
    )
    chosen = b.experts_up(h, routes, f"{blk}.ffn_gate_exps.weight", f"{blk}.ffn_up_exps.weight")
    shared = None
    if b.has(f"{blk}.ffn_up_shexp.weight"):
        gate = b.linear(h, [f"{blk}.ffn_gate_inp_shexp.weight"], "shared_gate")
        shared = b.gate_up(h, f"{blk}.ffn_gate_shexp.weight", f"{blk}.ffn_up_shexp.weight", "silu"), gate
    b.experts_down(chosen, routes, f"{blk}.ffn_down_exps.weight", x)
    if shared:
        f, gate = shared
        b.linear(b.quantize(f, gate=gate), [f"{blk}.ffn_down_shexp.weight"], x, "add")


def build(b: Builder) -> None:
    """Rotary pairs are halves of a head."""
    llama.describe(b, neighbours=False, block=experts)


FAMILIES = tuple(Family(name, llama.groups, build, check, ("n_expert",)) for name in ("qwen2moe", "qwen3moe"))
