"""Keys and values as int8 with one f16 scale for 32 dimensions of a position: x = d q, d = max|x| / 127.

Keys: int8 [4][head_dim][16 positions], then scales [4][head_dim / 32][16]. Values: int8 [64][head_dim], then scales
[64][head_dim / 32].
A value that is not finite makes its scale NaN, so that it reaches the logits.
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_u8, load_u16, prefetch, store_u8, store_u16
from ..runtime.simd import (
    from_i8,
    load_f16,
    load_f32,
    load_i8,
    mul_f,
    round_f,
    splat_f,
    store_f16,
    store_i8,
    to_bytes,
    to_f16,
    to_f32,
    to_float,
    to_int,
    top_magnitude,
)  # fmt: skip
from ..runtime.tile import count_of, tile_add_scaled, tile_fma, tile_zero_f
from ..runtime.vec import native
from .layout import PAGE

f4 = np.float32


@native
def head_bytes(head_dim):
    """Bytes of one head's keys, or values, in a page."""
    return PAGE * head_dim + PAGE * (head_dim // 32) * 2


@native
def key_scores(W, keys, at, queries, head_dim, ahead):
    """q . k of T queries with positions at .. at+15 and at+16 .. at+31 of a page; blocks of 32 dimensions ascending.

    The same part of the keys at `ahead` is asked for meanwhile.
    """
    T = count_of(W)
    k = keys + (at >> 4) * 16 * head_dim
    other = k + head_dim * 16
    blocks = head_dim // 32
    scales = keys + PAGE * head_dim + (at >> 4) * blocks * 32
    a = tile_zero_f(W)
    b = tile_zero_f(W)
    for block in range(blocks):
        sa = tile_zero_f(W)
        sb = tile_zero_f(W)
        for d in range(block * 32, block * 32 + 32):
            prefetch(ahead, at * head_dim + d * 32)
            sa = tile_fma(sa, to_float(from_i8(load_i8(k, d * 16))), queries + d * T * 4, 4)
            sb = tile_fma(sb, to_float(from_i8(load_i8(other, d * 16))), queries + d * T * 4, 4)
        a = tile_add_scaled(a, sa, to_f32(load_f16(scales, block * 32)))
        b = tile_add_scaled(b, sb, to_f32(load_f16(scales, (blocks + block) * 32)))
    return a, b


@native
def fetch_value(values, at, d, head_dim):
    """Ask for dimensions d .. d+31 of the value at a position of a page."""
    prefetch(values, at * head_dim + d)


@native
def value_at(values, at, d, head_dim):
    """Dimensions d .. d+15 of the value at a position of a page."""
    scale = load_half(values, PAGE * head_dim + (at * (head_dim // 32) + (d >> 5)) * 2)
    return mul_f(to_float(from_i8(load_i8(values, at * head_dim + d))), splat_f(scale))


@native
def block_scale(x, work, largest_value):
    """The f16 scale of 32 float32 at x, written to work; returns its inverse, 0 for a block of zeros."""
    largest = top_magnitude(load_f32(x, 0), load_f32(x, 64))
    not_finite = largest - largest  # 0, or NaN
    store_f16(work, 0, to_f16(splat_f(largest / largest_value + not_finite)))
    scale = load_half(work, 0)
    return f4(1.0) / scale if scale > f4(0.0) else f4(0.0)


@native
def quantize_head(x, head_dim, bytes_at, scales_at):
    """head_dim float32 at x to int8 and f16 scales."""
    for b in range(head_dim // 32):
        inverse = splat_f(block_scale(x + b * 128, scales_at + b * 32, f4(127.0)))
        store_i8(bytes_at, b * 32, to_bytes(to_int(round_f(mul_f(load_f32(x, b * 128), inverse)))))
        store_i8(bytes_at, b * 32 + 16, to_bytes(to_int(round_f(mul_f(load_f32(x, b * 128 + 64), inverse)))))


@native
def put_key(keys, at, x, head_dim, work):
    """Store head_dim float32 at x as the key of a position."""
    scales = work + head_dim
    quantize_head(x, head_dim, work, scales)
    k = keys + (at >> 4) * 16 * head_dim + (at & 15)
    for d in range(head_dim):
        store_u8(k, d * 16, load_u8(work, d))
    blocks = head_dim // 32
    s = keys + PAGE * head_dim + (at >> 4) * blocks * 32 + (at & 15) * 2
    for b in range(blocks):
        store_u16(s, b * 32, load_u16(scales, b * 32))


@native
def put_value(values, at, x, head_dim, work):
    """Store head_dim float32 at x as the value of a position."""
    scales = work + head_dim
    quantize_head(x, head_dim, work, scales)
    for d in range(0, head_dim, 16):
        store_i8(values, at * head_dim + d, load_i8(work, d))
    blocks = head_dim // 32
    for b in range(blocks):
        store_u16(values, PAGE * head_dim + (at * blocks + b) * 2, load_u16(scales, b * 32))
