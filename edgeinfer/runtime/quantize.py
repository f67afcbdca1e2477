"""Eight tokens' activations to bytes at once: the layout of a tile (`kernels/layout.py`) holds them side by side, so that what
is one number a token, its scale and its sums, is one vector of eight here, and nothing is stored four bytes at a time.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from .simd import FX, IX, ROUNDER, emit_dot, emit_fma, emit_to_bytes
from .vec import ADDRESS, F32, I32, const, generic_op, join, part, pointer, splat, unpack

__all__ = ["store_block_of_8"]

F8, I8X32 = ir.VectorType(F32, 8), ir.VectorType(I32, 8)
LARGEST = float(np.finfo(np.float32).max)


def _shuffle(b, x, y, lanes):
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def _larger(b, x, y):
    return b.select(b.icmp_signed(">", x, y), x, y)


def _tops(b, rows):
    """The largest of each of 8 vectors of 16 non-negative integers, as one vector: halves of two, then of four, ..."""
    n = 16
    while len(rows) > 1:
        n //= 2
        # Lanes of a group of n that belongs to one row: its first half of both vectors beside its second half of both.
        low = [i for group in range(16 // (2 * n)) for i in range(group * 2 * n, group * 2 * n + n)]
        both = low + [i + 16 for i in low]
        rest = [i + n for i in both]
        rows = [
            _larger(b, _shuffle(b, rows[i], rows[i + 1], both), _shuffle(b, rows[i], rows[i + 1], rest))
            for i in range(0, len(rows), 2)
        ]
    last = rows[0]
    even, odd = list(range(0, 16, 2)), list(range(1, 16, 2))
    return _larger(b, _shuffle(b, last, last, even), _shuffle(b, last, last, odd))


def _quads(b, rows):
    """Two vectors of [2 quads][8 tokens] words from 8 tokens' 16 bytes."""
    words = join(b, [b.bitcast(x, ir.VectorType(I32, 4)) for x in rows])  # [8 tokens][4 quads]
    return [_shuffle(b, words, words, [4 * t + q + i for i in (0, 1) for t in range(8)]) for q in (0, 2)]


def _store(b, value, address, offset):
    b.store(value, pointer(b, address, offset, value.type), align=1)


def _block_rule(x0, x1, _acts, _scales, _sums, _halves):
    def emit(b, first, second, acts, scales, sums, halves):
        v0, v1 = unpack(b, first), unpack(b, second)
        sizes = []
        for x, y in zip(v0, v1, strict=True):
            x, y = (b.and_(b.bitcast(v, IX), const(IX, 0x7FFFFFFF)) for v in (x, y))
            sizes.append(_larger(b, x, y))
        largest = b.bitcast(_tops(b, sizes), F8)
        not_finite = b.fsub(largest, largest)  # 0, or NaN
        inverse = b.fdiv(const(F8, 127.0), largest)
        inverse = b.select(b.fcmp_ordered("<", inverse, const(F8, LARGEST)), inverse, const(F8, LARGEST))
        inverse = b.select(b.fcmp_ordered(">", largest, const(F8, 0.0)), inverse, const(F8, 0.0))
        rounder = const(FX, ROUNDER)
        rows = [[], []]
        for t in range(8):
            times = splat(b, b.extract_element(inverse, I32(t)))
            for half, v in zip(rows, (v0[t], v1[t]), strict=True):
                half.append(emit_to_bytes(b, b.bitcast(emit_fma(b, v, times, rounder), IX)))
        scale = b.fadd(b.fmul(largest, const(F8, float(np.float32(1.0 / 127.0)))), not_finite)
        totals = []
        for h in (0, 1):
            total = const(IX, 0)
            for q, words in enumerate(_quads(b, rows[h])):
                _store(b, words, acts, h * 128 + q * 64)
                total = emit_dot(b, total, const(IX, 0x01010101), words, False)
            totals.append(b.add(part(b, total, 0, 8), part(b, total, 8, 8)))
        both = b.add(*totals)
        times_scale = b.fmul(b.sitofp(both, F8), scale)
        _store(b, scale, scales, 0)
        _store(b, join(b, [b.mul(both, const(I8X32, -8)), b.bitcast(times_scale, I8X32)]), sums, 0)
        _store(b, b.mul(join(b, totals), const(IX, -32)), halves, 0)
        return I32(0)

    return types.int32, [x0, x1, *[ADDRESS] * 4], emit


# store_block_of_8(x0, x1, acts, scales, sums, halves): 32 floats of each of 8 tokens, first and second 16, to a block's places.
store_block_of_8 = generic_op(6, _block_rule)
