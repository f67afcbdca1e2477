"""llama: LLaMA 1-3, Mistral, SmolLM, TinyLlama. Rotary pairs are neighbours in the file, so q and k rows are reordered."""

from __future__ import annotations

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..plan.builder import Builder
from ..plan.program import Rope
from .family import Family, KVGroup

__all__ = ["FAMILY"]


def check(config: ModelConfig) -> None:
    """Refuse what this description does not compute."""
    if config.n_expert:
        raise UnsupportedModelError(
            f"a {config.arch} model with {config.n_expert} experts is not supported by the native engine yet"
        )
    if config.head_dim != config.head_dim_v:
        raise UnsupportedModelError(
            f"key size {config.head_dim} and value size {config.head_dim_v} differ; the native engine needs one size"
        )
    if config.head_dim % 16:
        raise UnsupportedModelError(
            f"a head size of {config.head_dim} is not a multiple of 16, which the native engine needs"
        )
    if config.rope_scaling_type not in (None, "linear"):
        raise UnsupportedModelError(
            f"rope scaling {config.rope_scaling_type!r} is not supported by the native engine yet"
        )


def rope_of(b: Builder, base: float) -> Rope:
    """The rotary table of a base frequency, with the file's linear scaling and frequency factors."""
    c = b.config
    divisor = float(c.rope_scaling_factor or 1.0) if c.rope_scaling_type == "linear" else 1.0
    factors = "rope_freqs.weight" if b.has("rope_freqs.weight") else ""
    return Rope(base, c.rope_dim, divisor, factors)


def output_of(b: Builder) -> str:
    """The output matrix: its own tensor, or the token table when they are tied."""
    return "output.weight" if b.has("output.weight") else "token_embd.weight"


def build(b: Builder) -> None:
    """x += attention(norm(x)); x += down(silu(gate) * up)(norm(x)), layer by layer."""
    c = b.config
    rope = rope_of(b, c.rope_base)
    x = b.embed("token_embd.weight")
    n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    for i in range(c.n_layer):
        h = b.norm(x, f"blk.{i}.attn_norm.weight")
        names = [f"blk.{i}.attn_{part}.weight" for part in "qkv"]
        qkv = b.linear(h, names, "qkv", pair_heads=[c.n_head, c.n_head_kv, 0])
        kv = b.rope_kv(qkv.part(n_q, n_kv), qkv.part(n_q + n_kv, n_kv), 0, rope)
        a = b.attention(qkv, kv, rope, c.head_dim**-0.5)
        b.linear(b.quantize(a), [f"blk.{i}.attn_output.weight"], x, "add")
        h = b.norm(x, f"blk.{i}.ffn_norm.weight")
        f = b.gate_up(h, f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight", "silu")
        b.linear(b.quantize(f), [f"blk.{i}.ffn_down.weight"], x, "add")
    b.logits(b.norm(x, "output_norm.weight", rows="out"), output_of(b))


def groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """All layers look back to the beginning."""
    return (KVGroup(config.n_layer),)


FAMILY = Family("llama", groups, build, check)
