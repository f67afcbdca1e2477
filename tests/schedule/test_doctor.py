from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgeinfer.schedule.doctor import Divergence, KnownTexts, Report, diagnose, find_divergence, visible
from edgeinfer.schedule.prefix_tree import Ids

LONG = " and so on, as it was agreed on the last meeting of the whole committee of the ship" * 3


def ids(text: str) -> Ids:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def report(ours: str, theirs: str) -> Report:
    found = find_divergence(ids(ours), [ids(theirs)])
    assert found is not None
    return diagnose(found, decode)


def test_a_clock_at_the_top() -> None:
    found = report(f"You are a ship. Time: 12:05. {LONG}", f"You are a ship. Time: 12:01. {LONG}")
    assert (found.token, found.ours, found.theirs) == (26, "5", "1")
    assert (found.before, found.after) == ("u are a ship. Time: 12:0", ". " + LONG[:22])
    assert found.n_prompt == found.n_cached == 29 + len(LONG)
    assert found.n_evaluated == found.n_prompt - 26
    assert found.n_again == found.n_evaluated - 1
    assert (found.cause, found.avoidable) == ("clock", True)
    assert found.paragraph() == (
        f"the prompt left the cached text at token 26 of {found.n_prompt}: {found.n_evaluated} tokens were evaluated anew, "
        f'{found.n_again} of them unchanged; there it says "u are a ship. Time: 12:0[5].  and so on, as it was ", '
        'cached was "[1]". It looks like a clock: '
        "put it at the end of the prompt, or round it, so that what comes before stays cached."
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),
    [
        ("at 9:59:58 ", "at 10:00:01 ", "clock"),
        ("at 3 pm ", "at 4 pm ", "clock"),
        ("2026-11-29 12:00 ", "2026-11-29 12:01 ", "clock"),
        ("on 2026-11-29 ", "on 2026-11-30 ", "date"),
        ("on 29.11.2026 ", "on 30.11.2026 ", "date"),
        ("on Nov 29 ", "on Dec 1 ", "date"),
        ("on Sunday ", "on Monday ", "date"),
        ("id 123e4567-e89b-12d3-a456-426614174000 ", "id 123e4567-e89b-12d3-a456-4266aaaaaaaa ", "uuid"),
        ("id 9f86d081884c ", "id 7d865e959b24 ", "id"),
        ("id call_Xy12abCDefgh ", "id call_Zz98qrSTuvwx ", "id"),
        ("it is 21 degrees ", "it is 22 degrees ", "number"),
        ("by Ada ", "by Bob ", "changed"),
        ("by Ada ", "by Ada 12:00 who knows ", "removed"),
        ("by Ada who knows ", "by Ada ", "added"),
    ],
)
def test_causes(ours: str, theirs: str, cause: str) -> None:
    assert report(f"Start: {ours}{LONG}", f"Start: {theirs}{LONG}").cause == cause


def test_dropped_turns_are_seen_however_long_they_were() -> None:
    found = report(f"system text. {LONG}", f"system text. {'user: a question' * 100}{LONG}")
    assert found.cause == "removed"
    assert found.ours == ""
    assert found.theirs == ("user: a question" * 3)[:40] + "..."
    assert "turns that were dropped" in found.hint


def test_the_same_text_in_other_tokens() -> None:
    tail = list(range(1000, 1100))
    ours, theirs = np.array([1, 2, 10, 11, *tail], np.int32), np.array([1, 2, 12, *tail], np.int32)
    found = find_divergence(ours, [theirs])
    assert found is not None
    pieces = {1: "a", 2: "b", 10: "he", 11: "llo", 12: "hello"}
    assert diagnose(found, lambda tokens: "".join(pieces.get(t, "x") for t in tokens)).cause == "tokens"


def test_another_question_is_nobodys_fault() -> None:
    shared = "system: you are a helpful ship. " * 20
    found = report(
        f"{shared} what is the capital of France, and why is it that?{'?' * 70}", f"{shared} {'tell me a tale ' * 9}"
    )
    assert not found.avoidable
    assert (found.cause, found.n_again, found.after) == ("other text", 0, "")
    assert found.token == len(shared) + 1


def test_nothing_to_say() -> None:
    known = ids("a" * 200)
    assert find_divergence(ids("b" * 200), [known]) is None  # nothing in common
    assert find_divergence(ids("a" * 300), [known]) is None  # goes on from it
    assert find_divergence(ids("a" * 100 + "b" * 300), [ids("a" * 130)]) is None  # little was lost
    assert find_divergence(ids("a" * 100 + "b" * 20), [known]) is None  # a short new part
    assert find_divergence(ids("a" * 100 + "b" * 200), [known], n_reused=150) is None  # found elsewhere
    assert find_divergence(ids("a" * 100 + "b" * 200), []) is None


def test_the_text_that_goes_on_alike_is_chosen() -> None:
    prompt = ids(f"Time: 12:05. {LONG}")
    near, far = ids(f"Time: 12:01. {LONG}"), ids(f"Time: 12:05 is the time. {'z' * 200}")
    for known in ([near, far], [far, near]):
        found = find_divergence(prompt, known)
        assert found is not None
        assert found.n_again > 200


def test_the_ids_are_found_at_whole_places_only() -> None:
    tail = np.arange(1000, 1100, dtype=np.int32)
    between = np.frombuffer(b"\x07" + tail[:20].tobytes() + b"\0\0\0", np.int32)  # the same bytes, but other ids
    head = np.array([5], np.int32)
    found = find_divergence(np.concatenate([head, tail]), [np.concatenate([head, between, tail])])
    assert found is not None
    assert (found.token, found.n_again, found.ours) == (1, 100, ())
    assert found.theirs == tuple(between)


def test_known_texts_replace_their_own_beginnings() -> None:
    known = KnownTexts(3)
    for n in (10, 20, 20, 30):
        known.add(ids("a" * n))
    assert [len(text) for text in known._texts] == [30]
    known.add(ids("a" * 5))
    assert [len(text) for text in known._texts] == [30, 5]
    for letter in "bcd":
        known.add(ids(letter * 70))
    assert [chr(text[0]) for text in known._texts] == ["b", "c", "d"]
    known.clear()
    assert known.divergence(ids("b" * 200), 0) is None


def test_control_characters_are_made_visible() -> None:
    assert (
        visible("a\nb\tc\x1b[2J\\n \u202e\u2028é 日本 👩\u200d🚀")
        == "a\\nb\\tc\\x1b[2J\\\\n \\u202e\\u2028é 日本 👩\u200d🚀"
    )
    assert visible("\ud800") == "\\ud800"


def test_a_report_is_one_line() -> None:
    found = Divergence(3, 100, 100, 90, (10, 27), (13,), (65, 10), (9, 66))
    text = diagnose(found, decode).paragraph()
    assert "\n" not in text
    assert 'says "A\\n[\\n\\x1b]\\tB", cached was "[\\r]"' in text
