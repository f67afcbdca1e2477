"""llama and those who compute like it: LLaMA 1-3.3, Mistral, SmolLM, TinyLlama, Qwen 1.5 to 3, SmolLM3, Granite, Ministral 3.

One description for all: what sets them apart is a few switches, and whether the file holds biases and norms of q and k.
Where a file's rotary pairs are neighbours (LLaMA's own order), q and k rows are reordered when they are packed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import UnsupportedModelError
from ..model.config import ModelConfig
from ..plan.builder import Activations, Builder, Row
from ..plan.program import Rope, Yarn
from ..plan.rotary import yarn_magnitude
from .family import Family, KVGroup

__all__ = ["FAMILIES"]

SMOLLM3_STEP = 4  # every fourth layer does not rotate


def check(config: ModelConfig) -> None:
    """Refuse what no description here computes."""
    if config.head_dim != config.head_dim_v:
        raise UnsupportedModelError(
            f"{config.arch}.attention.key_length is {config.head_dim} and {config.arch}.attention.value_length "
            f"{config.head_dim_v}; the native engine needs one size"
        )
    if config.head_dim % 16:
        raise UnsupportedModelError(
            f"a head size of {config.head_dim} is not a multiple of 16, which the native engine needs"
        )
    if config.recurrent_layers and not config.conv_width:
        raise UnsupportedModelError(
            f"{config.arch}.attention.head_count_kv is 0 for some layers, which only lfm2 models have here"
        )


def check_dense(config: ModelConfig) -> None:
    """Refuse experts too, and layers without attention."""
    check(config)
    if config.n_expert:
        raise UnsupportedModelError(
            f"{config.arch}.expert_count is {config.n_expert}: the native engine runs experts in qwen2moe and qwen3moe "
            f"models only, not {config.n_expert} experts in {config.arch}"
        )
    if config.recurrent_layers:
        raise UnsupportedModelError(f"{config.arch}.attention.head_count_kv is 0 for some layers; wanted above 0")


# ---- what other families use too ----------------------------------------------------------------------------------------


def rope_of(b: Builder, base: float) -> Rope:
    """The rotary table of a base frequency, with the file's scaling of the context."""
    c = b.config
    divisor = float(c.rope_scaling_factor or 1.0)
    short, long = "rope_factors_short.weight", "rope_factors_long.weight"
    rope = Rope(base, c.rope_dim, divisor, "rope_freqs.weight" if b.has("rope_freqs.weight") else "")
    magnitude = 1.0
    if c.rope_scaling_type == "yarn":
        magnitude = yarn_magnitude(divisor) / yarn_magnitude(divisor, c.yarn_log_multiplier)
        yarn = Yarn(c.rope_n_ctx_orig or c.n_ctx_train, c.yarn_beta_fast, c.yarn_beta_slow)
        rope = replace(rope, yarn=yarn)
    elif b.has(short) and b.has(long) and not rope.factors:  # phi3 files name no type of scaling
        n_ctx_short = c.rope_n_ctx_orig or c.n_ctx_train
        rope = replace(rope, factors=short, long_factors=long, n_ctx_short=n_ctx_short)
    elif c.rope_scaling_type == "longrope":
        raise UnsupportedModelError(f"{c.arch}.rope.scaling.type is longrope, but the file lacks {short!r} or {long!r}")
    return replace(rope, magnitude=c.rope_attn_factor or magnitude)


def output_of(b: Builder) -> str:
    """The output matrix: its own tensor, or the token table when they are tied."""
    return "output.weight" if b.has("output.weight") else "token_embd.weight"


def attention_scale(c: ModelConfig) -> float:
    """What scores are multiplied by."""
    return c.attention_scale or c.head_dim**-0.5


def optional(b: Builder, tensor: str) -> str | None:
    """The tensor's name where the file has it."""
    return tensor if b.has(tensor) else None


def gated(b: Builder, h: Activations, block: str) -> Row:
    """silu(gate) * up, from two tensors or, where there is no gate, from the halves of one."""
    gate, up = f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight"
    if b.has(gate):
        return b.gate_up(h, gate, up, "silu")
    upper, lower = b.halves(up, h.cols)
    return b.gate_up(h, upper, lower, "silu")


def feed_forward(b: Builder, h: Activations, block: str, x: Row, scale: float = 1.0) -> None:
    """x += scale * down(silu(gate) * up)."""
    b.linear(b.quantize(gated(b, h, block), scale), [f"{block}.ffn_down.weight"], x, "add")


def describe(
    b: Builder,
    neighbours: bool,
    block: Callable[[Builder, Activations, str, Row], None] | None = None,
    rotates: Callable[[int], bool] = lambda layer: True,
) -> None:
    """x += attention(norm(x)); x += feed_forward(norm(x)), layer by layer; `block` is another feed-forward part."""
    c = b.config
    rope = rope_of(b, c.rope_base)
    # A temperature is a factor of the queries alone: a table of their own holds it.
    of_queries = rope
    if c.attention_temperature:
        n_ctx = c.rope_n_ctx_orig or c.n_ctx_train
        of_queries = replace(rope, temperature=c.attention_temperature, temperature_n_ctx=n_ctx)
    residual = c.residual_scale or 1.0
    x = b.embed("token_embd.weight", c.embedding_scale or 1.0)
    for i in range(c.n_layer):
        blk = f"blk.{i}"
        turn = rotates(i)
        h = b.norm(x, f"{blk}.attn_norm.weight")
        q, k, v = b.qkv(h, blk, neighbours)
        kv = b.rope_kv(k, v, 0, rope if turn else None, optional(b, f"{blk}.attn_k_norm.weight"))
        a = b.attention(
            q, kv, of_queries if turn else None, attention_scale(c), c.sliding_window,
            optional(b, f"{blk}.attn_q_norm.weight"),
        )  # fmt: skip
        b.linear(b.quantize(a, residual), [f"{blk}.attn_output.weight"], x, "add")
        h = b.norm(x, f"{blk}.ffn_norm.weight")
        if block is None:
            feed_forward(b, h, blk, x, residual)
        else:
            block(b, h, blk, x)
    scale = 1.0 / c.logit_scale if c.logit_scale else 1.0
    b.logits(b.norm(x, "output_norm.weight", rows="out", scale=scale), output_of(b))


def groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """All layers look back to the beginning, or as far as the window."""
    return (KVGroup(config.n_layer, config.sliding_window),)


# ---- the families -------------------------------------------------------------------------------------------------------


def _llama(b: Builder) -> None:
    describe(b, neighbours=True)


def _qwen(b: Builder) -> None:
    describe(b, neighbours=False)


def _smollm3(b: Builder) -> None:
    describe(b, neighbours=True, rotates=lambda layer: (layer + 1) % SMOLLM3_STEP != 0)


def _granite(b: Builder) -> None:
    turn = b.config.rope_finetuned is not False  # how llama.cpp's converter spells "no positions"
    describe(b, neighbours=True, rotates=lambda layer: turn)


def _check_granite(config: ModelConfig) -> None:
    check_dense(config)
    if not config.logit_scale:
        raise UnsupportedModelError("granite.logit_scale is missing; a granite model needs it")


def _check_mistral3(config: ModelConfig) -> None:
    check_dense(config)
    if config.attention_temperature and config.rope_dim != config.head_dim:
        raise UnsupportedModelError(
            f"mistral3.attention.temperature_scale is {config.attention_temperature:g} where mistral3.rope.dimension_count, "
            f"{config.rope_dim}, is not the whole head of {config.head_dim}"
        )


FAMILIES = (
    Family("llama", groups, _llama, check_dense),
    Family("mistral3", groups, _llama, _check_mistral3, ("attention_temperature",)),
    Family("qwen2", groups, _qwen, check_dense),
    Family("qwen3", groups, _qwen, check_dense),
    Family("smollm3", groups, _smollm3, check_dense),
    Family("granite", groups, _granite, _check_granite, ("embedding_scale", "residual_scale", "logit_scale")),
)
