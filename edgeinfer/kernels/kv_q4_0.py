"""Keys and values as 4 bits with one f16 scale for 32 dimensions of a position: x = d (q - 8).

d = -(the value of largest magnitude) / 8, so that this value is exact and all 16 steps are used, as in Q4_0.

A byte holds dimensions i (low) and i + 16 (high) of a block of 32. Keys: [4][head_dim / 2][16 positions], then scales
[4][head_dim / 32][16]. Values: [64][head_dim / 2], scales [64][head_dim / 32]. For boards short of memory: it costs accuracy.
"""

from __future__ import annotations

import numpy as np

from ..runtime.memory import load_half, load_u8, load_u16, prefetch, store_u8, store_u16
from ..runtime.simd import (
    add_f,
    bits,
    fma,
    from_u8,
    load_f16,
    load_f32,
    load_i8,
    max_f,
    min_f,
    mul_f,
    round_f,
    splat_f,
    store_f16,
    store_i8,
    sub_f,
    sum_f,
    to_bytes,
    to_f16,
    to_f32,
    to_float,
    to_int,
    top_f,
)  # fmt: skip
from ..runtime.tile import count_of, tile_add_scaled, tile_fma, tile_zero_f
from ..runtime.vec import native
from .layout import PAGE

f4 = np.float32
LOW, HIGH = bits(0, 15), bits(4, 15)


@native
def head_bytes(head_dim):
    """Bytes of one head's keys, or values, in a page."""
    return PAGE * (head_dim // 2) + PAGE * (head_dim // 32) * 2


@native
def low_values(x):
    """The low nibbles of 16 bytes, less 8, as float32."""
    return add_f(to_float(LOW(from_u8(x))), splat_f(f4(-8.0)))


@native
def high_values(x):
    """The high nibbles of 16 bytes, less 8, as float32."""
    return add_f(to_float(HIGH(from_u8(x))), splat_f(f4(-8.0)))


@native
def key_scores(W, keys, at, queries, head_dim, ahead):
    """q . k of T queries with positions at .. at+15 and at+16 .. at+31 of a page; blocks of 32 dimensions ascending.

    The same part of the keys at `ahead` is asked for meanwhile.
    """
    T = count_of(W)
    k = keys + (at >> 4) * 8 * head_dim
    other = k + head_dim * 8
    blocks = head_dim // 32
    scales = keys + PAGE * (head_dim // 2) + (at >> 4) * blocks * 32
    a = tile_zero_f(W)
    b = tile_zero_f(W)
    for block in range(blocks):
        sa = tile_zero_f(W)
        sb = tile_zero_f(W)
        for i in range(16):
            d = block * 32 + i
            prefetch(ahead, at * (head_dim // 2) + (block * 16 + i) * 32)
            x = load_i8(k, (block * 16 + i) * 16)
            y = load_i8(other, (block * 16 + i) * 16)
            sa = tile_fma(sa, low_values(x), queries + d * T * 4, 4)
            sb = tile_fma(sb, low_values(y), queries + d * T * 4, 4)
            sa = tile_fma(sa, high_values(x), queries + (d + 16) * T * 4, 4)
            sb = tile_fma(sb, high_values(y), queries + (d + 16) * T * 4, 4)
        a = tile_add_scaled(a, sa, to_f32(load_f16(scales, block * 32)))
        b = tile_add_scaled(b, sb, to_f32(load_f16(scales, (blocks + block) * 32)))
    return a, b


@native
def fetch_value(values, at, d, head_dim):
    """Ask for dimensions d .. d+31 of the value at a position of a page."""
    prefetch(values, at * (head_dim // 2) + (d >> 1))


@native
def value_at(values, at, d, head_dim):
    """Dimensions d .. d+15 of the value at a position of a page."""
    scale = splat_f(load_half(values, PAGE * (head_dim // 2) + (at * (head_dim // 32) + (d >> 5)) * 2))
    x = load_i8(values, at * (head_dim // 2) + (d >> 5) * 16)
    if d & 16 == 0:
        return mul_f(low_values(x), scale)
    return mul_f(high_values(x), scale)


@native
def block_scale(x, work):
    """The f16 scale of 32 float32 at x, written to work; returns its inverse, 0 for a block of zeros."""
    v0 = load_f32(x, 0)
    v1 = load_f32(x, 64)
    zero = splat_f(f4(0.0))
    nan = sum_f(fma(v1, zero, mul_f(v0, zero)))
    top = top_f(max_f(v0, v1))
    bottom = -top_f(max_f(sub_f(zero, v0), sub_f(zero, v1)))
    extreme = top if top > -bottom else bottom
    store_f16(work, 0, to_f16(splat_f(extreme / f4(-8.0) + nan)))
    scale = load_half(work, 0)
    return f4(1.0) / scale if scale != f4(0.0) else f4(0.0)


@native
def nibbles(x, inverse):
    """16 float32 as 0 .. 15."""
    q = add_f(round_f(mul_f(load_f32(x, 0), inverse)), splat_f(f4(8.0)))
    return to_bytes(to_int(max_f(splat_f(f4(0.0)), min_f(splat_f(f4(15.0)), q))))


@native
def quantize_head(x, head_dim, bytes_at, scales_at):
    """head_dim float32 at x to nibbles and f16 scales."""
    for b in range(head_dim // 32):
        inverse = splat_f(block_scale(x + b * 128, scales_at + b * 32))
        store_i8(scales_at, b * 32 + 8, nibbles(x + b * 128, inverse))
        store_i8(bytes_at, b * 16, nibbles(x + b * 128 + 64, inverse))
        for i in range(16):
            both = load_u8(scales_at, b * 32 + 8 + i) | load_u8(bytes_at, b * 16 + i) << 4
            store_u8(bytes_at, b * 16 + i, both)


@native
def put_key(keys, at, x, head_dim, work):
    """Store head_dim float32 at x as the key of a position."""
    scales = work + head_dim
    quantize_head(x, head_dim, work, scales)
    k = keys + (at >> 4) * 8 * head_dim + (at & 15)
    for i in range(head_dim // 2):
        store_u8(k, i * 16, load_u8(work, i))
    blocks = head_dim // 32
    s = keys + PAGE * (head_dim // 2) + (at >> 4) * blocks * 32 + (at & 15) * 2
    for b in range(blocks):
        store_u16(s, b * 32, load_u16(scales, b * 32))


@native
def put_value(values, at, x, head_dim, work):
    """Store head_dim float32 at x as the value of a position."""
    scales = work + head_dim
    quantize_head(x, head_dim, work, scales)
    for i in range(0, head_dim // 2, 16):
        store_i8(values, at * (head_dim // 2) + i, load_i8(work, i))
    blocks = head_dim // 32
    for b in range(blocks):
        store_u16(values, PAGE * (head_dim // 2) + (at * blocks + b) * 2, load_u16(scales, b * 32))
