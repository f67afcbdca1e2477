"""Rotary position embedding (Su et al., 2021) in the half-split order: x[i], x[i + rope_dim/2] turn by position x frequency.

Families that pair neighbours have their query and key rows reordered when they are packed, so this is the only order here.
The table holds, for each position, rope_dim/2 cosines and then rope_dim/2 sines (float32).
"""

from __future__ import annotations

from ..plan.fields import indices
from ..runtime.layout import STATE_N, STATE_POSITIONS, STATE_SLOTS
from ..runtime.memory import field, field_f, load_float, store_float
from ..runtime.simd import fma, load_f32, mul_f, splat_f, store_f32, sub_f
from ..runtime.vec import native
from . import kv_f16, kv_q4_0, kv_q8_0
from .layout import PAGE, page_address, page_table, share_start, thread_memory
from .norm import inverse_rms

(K, K_STRIDE, V, ROPE, HEAD_DIM, ROPE_DIM, N_KV, GROUP, BASE, PAGE_STRIDE, NORM, EPS, TMP) = indices(
    "rope_kv", "k k_stride v rope head_dim rope_dim n_kv group base page_stride norm eps tmp"
)


@native
def normalize_head(x, weight, out, head_dim, eps):
    """out = x * weight / rms(x), or a copy when there is no weight."""
    if weight != 0:
        r = splat_f(inverse_rms(x, head_dim, eps))
        for i in range(0, head_dim * 4, 64):
            store_f32(out, i, mul_f(mul_f(load_f32(x, i), r), load_f32(weight, i)))
    else:
        for i in range(0, head_dim * 4, 64):
            store_f32(out, i, load_f32(x, i))


@native
def rotate(x, table, rope_dim):
    """Turn the first rope_dim values of a head in place; `table` is the position's row."""
    half = rope_dim // 2
    if half & 15 == 0:
        for i in range(0, half * 4, 64):
            a = load_f32(x, i)
            b = load_f32(x, half * 4 + i)
            cos = load_f32(table, i)
            sin = load_f32(table, half * 4 + i)
            store_f32(x, i, sub_f(mul_f(a, cos), mul_f(b, sin)))
            store_f32(x, half * 4 + i, fma(a, sin, mul_f(b, cos)))
    else:
        for i in range(0, half * 4, 4):
            a = load_float(x, i)
            b = load_float(x, half * 4 + i)
            cos = load_float(table, i)
            sin = load_float(table, half * 4 + i)
            store_float(x, i, a * cos - b * sin)
            store_float(x, half * 4 + i, a * sin + b * cos)


def make_rope_kv(kv):
    """The kernel that writes keys and values for a KV type."""
    head_bytes, put_key, put_value = kv.head_bytes, kv.put_key, kv.put_value

    def rope_kv(step, state, ith, nth):
        """Key and value of every token and KV head into the pages of the token's sequence."""
        n_kv = field(step, N_KV)
        head_dim = field(step, HEAD_DIM)
        rope_dim = field(step, ROPE_DIM)
        positions = field(state, STATE_POSITIONS)
        slots = field(state, STATE_SLOTS)
        tmp = thread_memory(state, ith) + field(step, TMP)
        work = tmp + head_dim * 4
        size = head_bytes(head_dim)
        n = field(state, STATE_N) * n_kv
        for i in range(share_start(n, ith, nth), share_start(n, ith + 1, nth)):
            t = i // n_kv
            head = i % n_kv
            position = field(positions, t)
            table = page_table(state, field(slots, t), field(step, GROUP))
            page = page_address(field(step, BASE), field(step, PAGE_STRIDE), table, position)
            offset = t * field(step, K_STRIDE) + head * head_dim * 4
            normalize_head(field(step, K) + offset, field(step, NORM), tmp, head_dim, field_f(step, EPS))
            rotate(tmp, field(step, ROPE) + position * rope_dim * 4, rope_dim)
            put_key(page + head * size, position & (PAGE - 1), tmp, head_dim, work)
            put_value(page + (n_kv + head) * size, position & (PAGE - 1), field(step, V) + offset, head_dim, work)

    return rope_kv


KERNELS = {
    "rope_kv": make_rope_kv(kv_f16),
    "rope_kv.q8_0": make_rope_kv(kv_q8_0),
    "rope_kv.q4_0": make_rope_kv(kv_q4_0),
}
