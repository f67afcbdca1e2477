"""What a way of sharing the cores is worth while it is tried."""

from __future__ import annotations

from edgeinfer.schedule.sharing import CHUNKS, STEPS, Sharing

# SmolLM2 on two cores, the first prompts of a load. Per way: rows of prompts, their mean position (this one is a guess, the
# others were measured), tokens of answers, seconds, the gap between two tokens.
RIDE = (296, 150, 8, 0.181, 0.023)
SPLIT = (176, 390, 32, 0.217, 0.0066)


def tried(sharing: Sharing, rows: int, position: int, tokens: int, seconds: float, gap: float, now: float) -> float:
    """One trial of the way at hand, its rows in CHUNKS forwards; the clock behind it."""
    way = sharing.way
    sharing.note(way, now, 9, 9, 1, None)  # what ran before is not counted
    for i in range(CHUNKS):
        share = rows * (i + 1) // CHUNKS - rows * i // CHUNKS
        sharing.note(way, now + seconds / 2, share, share * position, 0, None)
    for i in range(STEPS):
        share = tokens * (i + 1) // STEPS - tokens * i // STEPS
        over = sharing.note(way, now + seconds, 0, 0, share, gap)
        assert over == (i == STEPS - 1 and str(way) == "split 1+1")
    return now + seconds


def test_rows_count_as_what_they_cost_where_they_stand() -> None:
    """The second way that is tried reads on where the first one stopped: rows that look back further are worth more."""
    sharing = Sharing("auto", 2, True)
    now = tried(sharing, *RIDE, now=1.0)
    tried(sharing, *SPLIT, now=now)
    sharing.choose(lambda position: 0.45e-3 + 0.8e-6 * position, 0.0026, 0.026)
    assert str(sharing.way) == "split 1+1"
    worth = {way: figures["worth"] for way, figures in sharing.figures.items()}
    assert worth == {"ride": 1.047, "split 1+1": 1.001}
    sharing.choose(lambda _: 1.1e-3, 0.0026, 0.026)  # all rows as dear as behind the answer's 1,000 positions
    assert str(sharing.way) == "ride"
