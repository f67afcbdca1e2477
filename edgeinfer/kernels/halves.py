"""Blocks whose halves of 16 values have integer scales of their own (Q3_K, Q6_K): w = d sc (q - z).

The integer sums of both halves become floats, and three multiplications a token follow. Where a conversion costs as much as
two products (ARM) they are scaled as integers first.
"""

from __future__ import annotations

from ..runtime.simd import mul_f, store_f32, store_i32, to_float
from ..runtime.tile import (
    narrow,
    rows_f32,
    rows_i32,
    tile_add_by_token,
    tile_add_ints,
    tile_add_times_i,
    tile_dot_pair,
    tile_scale,
    tile_times_f,
    tile_times_i,
    tile_zero_f,
)  # fmt: skip
from ..runtime.vec import inner, native
from .layout import SLOTS

__all__ = ["add_halves", "gemm_halves", "unpack_halves"]


@inner
def _add_floats(acc, a, c, d, s, u, xd):
    return tile_add_by_token(acc, tile_add_ints(tile_times_f(a, s), c, u), xd)


@inner
def _add_integers(acc, a, c, d, s, u, xd):
    return tile_scale(acc, tile_add_times_i(tile_times_i(a, s), c, u), d, xd)


@inner
def _scaled(d, s):
    return mul_f(d, to_float(s))  # exact: 11 bits times 8


@inner
def _as_it_is(_d, s):
    return s


@native
def _unpack_floats(d, m, scale, s, u):
    store_f32(m, 0, _scaled(scale, s))
    store_f32(m, 64, _scaled(scale, u))


@native
def _unpack_integers(d, m, scale, s, u):
    store_f32(d, 0, scale)
    store_i32(m, 0, s)
    store_i32(m, 64, u)


if narrow():
    _add, _factor, _rows, unpack_halves = _add_integers, _as_it_is, rows_i32, _unpack_integers
else:
    _add, _factor, _rows, unpack_halves = _add_floats, _scaled, rows_f32, _unpack_floats


@inner
def add_halves(acc, a, c, d, s, u, xd):
    """acc += (a s + c u) d times the tokens' scales at xd: integer sums a, c and scales s, u of both halves, f32 d."""
    return _add(acc, a, c, d, _factor(d, s), _factor(d, u), xd)


def gemm_halves(start):
    """The product with unpacked bytes; `start` holds the zero point. m holds two vectors a block, d one where it is used."""

    @native
    def gemm(W, w, d, m, xq, xd, xs, xh, nb):
        acc = tile_zero_f(W)
        for b in range(nb):
            x = xq + b * 32 * SLOTS
            a = start(W, xh + b * 8 * SLOTS)
            c = start(W, xh + b * 8 * SLOTS + 4 * SLOTS)
            for v in range(0, 4, 2):
                y = x + v * 4 * SLOTS
                u = w + b * 512 + v * 64
                a = tile_dot_pair(a, rows_i32(W, u, 0), y, rows_i32(W, u, 64), y + 4 * SLOTS)
                y += 16 * SLOTS
                c = tile_dot_pair(c, rows_i32(W, u, 256), y, rows_i32(W, u, 320), y + 4 * SLOTS)
            s = _rows(W, m, b * 128)
            acc = _add(acc, a, c, rows_f32(W, d, b * 64), s, _rows(W, m, b * 128 + 64), xd + b * 4 * SLOTS)
        return acc

    return gemm
