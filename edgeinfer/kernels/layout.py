"""The layouts that kernels share: activation tiles, KV pages, thread shares.

Activation tile of S slots, nb blocks of 32 values. One token has a tile of one slot, two have two, three or four have four,
so that they lie side by side in the cache; more have tiles of eight.
    int8    [nb][8 quads][S][4]     four consecutive values of a token side by side, so that one broadcast feeds 16 rows
    float32 [nb][S]                 the block's scale
    [nb] of int32 [S]               -8 x the block's sum: zero points cost nothing
        and float32 [S]             the block's sum x its scale: minima cost one multiply-add
    int32   [2 nb][S]               -32 x the sum of each half block (Q6_K's zero point)

KV page of 64 positions: for each KV head its keys, then for each its values, as the KV type stores them (`kv_f16` and kin).
"""

from __future__ import annotations

from ..runtime.layout import STATE_GROUP_STRIDE, STATE_SLOT_STRIDE, STATE_TABLES, STATE_THREAD, STATE_THREAD_STRIDE
from ..runtime.memory import field, prefetch
from ..runtime.tile import count_of, slots_of
from ..runtime.vec import inner, native, target

SLOTS = 8
PAGE = 64
PAGE_SHIFT = 6
AHEAD = 16 << 10
ASKS = target().arch == "x86_64"  # not measured on other CPUs
ASKS_ALWAYS = target().asks
BLOCK = 256  # positions that attention sums as one unit


@native
def share_start(n, ith, nth):
    """First item of thread ith's share of n items; its end is the next thread's start."""
    return n * ith // nth


@native
def slots_for(m):
    """Slots of the tiles that hold m tokens."""
    slots = 1
    while slots < m and slots < SLOTS:
        slots *= 2
    return slots


@inner
def ask(W, q, lines, least_slots=4):
    """Ask for cache lines of packed weights that W's tokens will meet 16 KiB on, into the second cache; with tiles of fewer
    slots than `least_slots` only where that always pays.

    More than two tokens compute between two reads, and then memory would stand still half of that time: a CPU's own
    prefetchers end at each page. 8 KiB are too few. With one or two tokens AMD's do as well by themselves, and asking takes
    5 to 10 %; Intel's do not: a fifth-generation Xeon decodes 6 to 45 % faster for it (`scripts/TRIED.md`).
    """
    if ASKS and (ASKS_ALWAYS or (slots_of(W) >= least_slots and count_of(W) > 1)):
        for i in range(lines):
            prefetch(q, AHEAD + i * 64)


@native
def ask_part(start, size, part, parts):
    """Ask for a part of the bytes from start on, which are packed weights that are wanted next: nothing else reads memory
    while a group meets its tiles."""
    if ASKS:
        for at in range(size * part // parts, size * (part + 1) // parts, 64):
            prefetch(start, at)


@native
def thread_memory(state, ith):
    """The address of this thread's private memory."""
    return field(state, STATE_THREAD) + ith * field(state, STATE_THREAD_STRIDE)


@native
def page_table(state, slot, group):
    """The address of a sequence's page numbers for a layer group."""
    return (
        field(state, STATE_TABLES) + slot * field(state, STATE_SLOT_STRIDE) + group * field(state, STATE_GROUP_STRIDE)
    )


@native
def page_address(base, page_stride, table, position):
    """The address of the page that holds `position`."""
    return base + field(table, position >> PAGE_SHIFT) * page_stride
