"""Keys and values as f16: keys [4][head_dim][16 positions], so that scores need no sum across lanes; values [64][head_dim]."""

from __future__ import annotations

from ..runtime.memory import load_u16, prefetch, store_u16
from ..runtime.simd import load_f16, load_f32, store_f16, to_f16, to_f32
from ..runtime.tile import count_of, tile_fma, tile_zero_f
from ..runtime.vec import native
from .layout import PAGE


@native
def head_bytes(head_dim):
    """Bytes of one head's keys, or values, in a page."""
    return PAGE * 2 * head_dim


@native
def key_scores(W, keys, at, queries, head_dim, ahead):
    """q . k of T queries with positions at .. at+15 and at+16 .. at+31 of a page; dimensions ascending.

    The same part of the keys at `ahead` is asked for meanwhile.
    """
    T = count_of(W)
    k = keys + (at >> 4) * 32 * head_dim
    other = k + head_dim * 32
    a = tile_zero_f(W)
    b = tile_zero_f(W)
    for d in range(head_dim):
        prefetch(ahead, at * head_dim * 2 + d * 64)
        a = tile_fma(a, to_f32(load_f16(k, d * 32)), queries + d * T * 4, 4)
        b = tile_fma(b, to_f32(load_f16(other, d * 32)), queries + d * T * 4, 4)
    return a, b


@native
def fetch_value(values, at, d, head_dim):
    """Ask for dimensions d .. d+31 of the value at a position of a page."""
    prefetch(values, (at * head_dim + d) * 2)


@native
def value_at(values, at, d, head_dim):
    """Dimensions d .. d+15 of the value at a position of a page."""
    return to_f32(load_f16(values, (at * head_dim + d) * 2))


@native
def put_key(keys, at, x, head_dim, work):
    """Store head_dim float32 at x as the key of a position."""
    for d in range(0, head_dim, 16):
        store_f16(work, d * 2, to_f16(load_f32(x, d * 4)))
    k = keys + (at >> 4) * 32 * head_dim + (at & 15) * 2
    for d in range(head_dim):
        store_u16(k, d * 32, load_u16(work, d * 2))


@native
def put_value(values, at, x, head_dim, work):
    """Store head_dim float32 at x as the value of a position."""
    for d in range(0, head_dim, 16):
        store_f16(values, (at * head_dim + d) * 2, to_f16(load_f32(x, d * 4)))
