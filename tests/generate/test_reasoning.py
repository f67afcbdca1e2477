"""Thinking told from the answer, token by token: every cut of the text, marks as tokens and as text, the budget."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.generate.reasoning import Channels, Headed, Splitter, choose_reasoning
from edgeinfer.model.thinking import FORMATS, Thinking, find_format
from tests.thinkers import THINK, marked, spelled


def split(splitter: Splitter, pieces: list[tuple[int | None, str]]) -> tuple[str, str]:
    """What (token, text) pieces come to."""
    thoughts, answers = "", ""
    for token, text in pieces:
        thought, answer = splitter.push(token, text)
        thoughts, answers = thoughts + thought, answers + answer
    thought, answer = splitter.flush()
    return thoughts + thought, answers + answer


def cuts(text: str, n: int) -> list[tuple[int | None, str]]:
    return [(65, text[i : i + n]) for i in range(0, len(text), n)]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize(
    ("text", "opened", "thoughts", "answer"),
    [
        ("<think>\nhm, 1 < 2\n</think>\n\nYes.", False, "hm, 1 < 2\n", "Yes."),
        ("\n<think>hm</think>Yes.", False, "hm", "Yes."),
        ("hm\n</think>\n\nYes.", True, "hm\n", "Yes."),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("Yes. <think> is a tag, </think> too.", False, "", "Yes. <think> is a tag, </think> too."),
        (" \n Yes.", False, "", " \n Yes."),  # the white space of a plain answer is its own
        ("<thinking>", False, "", "<thinking>"),
        ("<thi", False, "", "<thi"),
        ("<think>never ends </thin", False, "never ends </thin", ""),
        ("<think>a</think>b</think>c<think>d", False, "a", "b</think>c<think>d"),
        ("a </ b <</think>c", True, "a </ b <", "c"),
        ("", False, "", ""),
    ],
)
def test_marks_spelled_in_text(text: str, opened: bool, thoughts: str, answer: str, n: int) -> None:
    assert split(Splitter(spelled(), opened=opened), cuts(text, n)) == (thoughts, answer)


@pytest.mark.parametrize("hidden", [False, True])  # a control token has no text, a user-defined one its own
def test_marks_that_are_tokens(hidden: bool) -> None:
    _, thinking = marked()
    start, end = ((index, "" if hidden else text) for text, index in thinking.marks.items())
    pieces = [start, (1, "\n"), (2, "say <think> and </think>"), end, (3, "\n\nYes"), (4, ", <think>.")]
    assert split(Splitter(thinking, opened=False), pieces) == ("say <think> and </think>", "Yes, <think>.")
    again = [(1, " "), start, (2, "a"), end, (3, "b"), start, (4, "c"), end, (5, " d")]
    assert split(Splitter(thinking, opened=False), again) == ("ac", "bd")
    assert split(Splitter(thinking, opened=False), [(1, "\n"), (2, "plain"), end, (3, " x")]) == ("", "\nplainx")


def test_only_what_may_begin_a_mark_is_held_back() -> None:
    splitter = Splitter(spelled(), opened=True)
    assert [splitter.push(1, text)[0] for text in ("a <", "b", " </th", "ough", "</think", ">")] == [
        "a ", "<b", " ", "</though", "", ""
    ]  # fmt: skip
    assert splitter.thinking is False


def test_channels_of_gpt_oss() -> None:
    _, thinking = marked(FORMATS[0])
    channel, message, end, start = ((index, text) for text, index in thinking.marks.items())
    pieces = [
        channel, (1, "analysis"), message, (2, "The user says hi."), end, start, (3, "assistant"),
        channel, (4, "final"), message, (5, "Hello"), (6, "!"),
    ]  # fmt: skip
    assert split(Channels(thinking, opened=False), pieces) == ("The user says hi.", "Hello!")
    call = [
        channel, (1, "analysis"), message, (2, "I call."), end, start, (3, "assistant"),
        channel, (4, "commentary to=functions.f"), (5, " json"), message, (6, "{}"),
    ]  # fmt: skip
    assert split(Channels(thinking, opened=False), call) == (
        "I call.",
        "<|channel|>commentary to=functions.f json<|message|>{}",
    )
    early = [(1, " to"), (2, "=functions.f"), channel, (3, "commentary"), message, (4, "{}")]
    assert split(Channels(thinking, opened=False), early) == ("", "to=functions.f<|channel|>commentary<|message|>{}")
    assert split(Channels(thinking, opened=False), [(1, "plain"), (2, " text")]) == ("", "plain text")


def pieces_of(thinking: Thinking, text: str) -> list[tuple[int | None, str]]:
    """A text as tokens: its marks, whose text is hidden as that of control tokens, and the words between."""
    parts = re.split("(" + "|".join(map(re.escape, thinking.marks)) + "| )", text)
    return [(thinking.marks[part], "") if part in thinking.marks else (65, part) for part in parts if part]


@pytest.mark.parametrize(
    ("name", "opened", "text", "thoughts", "answer"),
    [
        ("kimi-k3", True, "hm hm<|close|>think<|sep|><|open|>response<|sep|>Yes, so.<|close|>response<|sep|><|close|>message"
         "<|sep|>", "hm hm", "Yes, so."),
        ("kimi-k3", False, "Yes.<|close|>response<|sep|>", "", "Yes."),
        ("kimi-k3", True, 'x<|close|>think<|sep|><|open|>response<|sep|>Ok<|close|>response<|sep|><|open|>tools<|sep|>'
         '<|open|>call tool="f"<|sep|>{}<|close|>call<|sep|>', "x",
         'Ok<|open|>tools<|sep|><|open|>call tool="f"<|sep|>{}<|close|>call<|sep|>'),
        ("solar", False, "<|think|>hm hm<|end|><|begin|>assistant<|content|>Yes, so.<|end|>", "hm hm", "Yes, so."),
        ("solar", False, "<|content|>Yes.", "", "Yes."),
        ("solar", False, "<|think|>x<|end|><|begin|>assistant<|tool_calls|>{}", "x", "<|begin|>assistant<|tool_calls|>{}"),
        ("muse", False, " to=self<|message|>hm hm<|eom|><|start|>assistant to=user<|message|>Yes, so.", "hm hm", "Yes, so."),
        ("muse", False, " to=user<|message|>Yes.", "", "Yes."),
        ("muse", False, "<|message|>Yes.", "", "Yes."),
        ("muse", False, " to=self<|message|>x<|eom|><|start|>assistant to=web.find<|message|><f>", "x",
         "<|start|>assistant to=web.find<|message|><f>"),
        ("muse", False, "plain text", "", "plain text"),
        ("muse", False, " to=day, to=night", "", " to=day, to=night"),
        ("solar", False, "<|think|>never ends", "never ends", ""),
    ],
)  # fmt: skip
def test_messages_with_heads(name: str, opened: bool, text: str, thoughts: str, answer: str) -> None:
    _, thinking = marked(next(known for known in FORMATS if known.name == name))
    assert split(Headed(thinking, opened=opened), pieces_of(thinking, text)) == (thoughts, answer)


@pytest.mark.parametrize("name", ["kimi-k3", "solar", "muse"])
def test_a_budget_ends_a_headed_thinking_and_opens_the_answer(name: str) -> None:
    _, thinking = marked(next(known for known in FORMATS if known.name == name))
    assert thinking.format is not None
    texts = {index: text for text, index in thinking.marks.items()}
    start = {"kimi-k3": "", "solar": "<|think|>", "muse": "to=self<|message|>"}[name]
    tokens = [token for token, _ in pieces_of(thinking, start) if token != 65]
    if name == "muse":
        tokens = [*b"to=self", *tokens]
    splitter = Headed(thinking, opened=name == "kimi-k3", budget=3)
    taken, thoughts, answer = drive(splitter, [*tokens, *b"ponder", *b" ok"], texts)
    assert (thoughts, answer) == ("pon", "der ok")
    assert tuple(taken[len(tokens) + 3 :][: len(thinking.close_ids)]) == thinking.close_ids


def test_gemma_names_its_channel() -> None:
    _, thinking = marked(find_format("<channel|>"))
    start, end = ((index, "") for index in thinking.marks.values())
    for pieces in ([(1, "thought\n"), (2, "hm")], [(1, "tho"), (2, "ught"), (3, "\nhm")]):
        assert split(Splitter(thinking, opened=False), [start, *pieces, end, (4, "Yes.")]) == ("hm", "Yes.")
    assert split(Splitter(thinking, opened=False), [start, (1, "though"), end, (4, "Yes.")]) == ("though", "Yes.")


# -- the budget -------------------------------------------------------------------------------------------------------


def drive(splitter: Splitter, tokens: list[int], texts: dict[int, str]) -> tuple[list[int], str, str]:
    """Feed tokens, taking the forced ones first."""
    taken, thoughts, answers, left = [], "", "", list(tokens)
    while left:
        forced = splitter.force()
        token = left.pop(0) if forced is None else forced
        taken.append(token)
        thought, answer = splitter.push(token, texts.get(token) or chr(token))
        thoughts, answers = thoughts + thought, answers + answer
    return taken, thoughts, answers


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_the_end_mark_is_forced_when_the_budget_is_used_up(budget: int) -> None:
    tokenizer, thinking = marked()
    texts = {index: text for text, index in thinking.marks.items()}
    start, end = thinking.marks.values()
    taken, thoughts, answer = drive(
        Splitter(thinking, opened=False, budget=budget), [start, *b"ponder", *b" ok"], texts
    )
    assert thoughts == "ponder"[:budget]
    assert taken[1 + budget : 4 + budget] == [end, 10, 10]
    assert answer == "ponder ok"[budget:]
    assert tokenizer.decode(taken).startswith("<think>" + "ponder"[:budget] + "</think>\n\n")


def test_a_budget_holds_for_all_thinking_of_an_answer_and_never_forces_for_ever() -> None:
    _, thinking = marked()
    start, end = thinking.marks.values()
    texts = {index: text for text, index in thinking.marks.items()}
    taken, thoughts, answer = drive(
        Splitter(thinking, opened=False, budget=2), [start, *b"ab", *b"cd", start, *b"ef"], texts
    )
    assert (thoughts, taken.count(end)) == ("ab", 2)
    assert answer == "cdef"
    odd = Thinking(THINK, close_ids=(63,))  # a vocabulary that cannot spell the mark
    taken, thoughts, _ = drive(Splitter(odd, opened=True, budget=1), list(b"abc"), {})
    assert (bytes(taken), thoughts) == (b"a?bc", "a?bc")


# -- what is asked for ------------------------------------------------------------------------------------------------


def test_choices() -> None:
    switched = Thinking(THINK, on={"enable_thinking": True}, off={"enable_thinking": False})
    budgeted = Thinking(THINK, on={"thinking_budget": -1}, off={"thinking_budget": 0}, takes_budget=True)
    assert choose_reasoning(switched).variables == {}
    assert choose_reasoning(switched, True).variables == {"enable_thinking": True}
    off = choose_reasoning(switched, False)
    assert (off.variables, off.budget) == ({"enable_thinking": False}, None)
    assert choose_reasoning(spelled(), False).budget == 0  # no switch: the thinking is ended where it begins
    assert choose_reasoning(budgeted, None, 7).variables == {"thinking_budget": 7}
    assert choose_reasoning(budgeted, False, 7).variables == {"thinking_budget": 0}
    plain = choose_reasoning(None, False, 5)
    assert (plain.splitter([1]), plain.budget) == (None, None)
    assert choose_reasoning(Thinking(None, on={"thinking": True}, off={"thinking": False}), True).splitter([1]) is None


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((None, True), "knows no thinking"),
        ((None, "yes"), "thinking is 'yes'; wanted True, False or None"),
        ((None, None, -1), "think_budget is -1; wanted a whole number"),
        ((None, None, True), "think_budget is True"),
        ((None, None, 1.5), "think_budget is 1.5"),
    ],
)
def test_what_cannot_be_had_is_refused(arguments: tuple[Any, ...], match: str) -> None:
    with pytest.raises(SettingError, match=match):
        choose_reasoning(*arguments)
