from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.errors import ContextOverflowError, SettingError, TemplateError
from edgeinfer.schedule.overflow import POLICIES, Dropped, Fitted, fit, fit_ids, head
from edgeinfer.schedule.summary import Summary
from tests.fakes import BOS, ByteTokenizer, ToyTemplate

N_CTX = 64
TOY: Any = ToyTemplate(ByteTokenizer())


def encode(messages: Sequence[Any]) -> list[int]:
    ids: list[int] = TOY.encode(messages)
    return ids


def say(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def prompt_of(n: int) -> list[dict[str, str]]:
    """One message whose prompt is n tokens."""
    return [say("user", "x" * (n - len(encode([say("user", "")]))))]


def text_of(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < 256).decode()


def answered(fitted: Fitted, n_ctx: int = N_CTX) -> tuple[list[int], str, Dropped | None, int]:
    """Answer as the scheduler does: the tokens, the reason for the end, what was dropped, the most tokens held at once."""
    answer: list[int] = []
    n_start, most = 0, 0
    while True:
        assert 1 <= len(fitted.ids) < n_ctx
        if answer:
            n = min(len(answer), len(fitted.ids) // 2)
            assert fitted.ids[len(fitted.ids) - n :] == answer[len(answer) - n :]  # it goes on from where it was
        n_start = len(fitted.ids) - len(answer)
        while n_start + len(answer) < n_ctx and len(answer) < fitted.n_most:
            answer.append(1000 + len(answer))
            most = max(most, n_start + len(answer))
        if len(answer) == fitted.n_most or fitted.shift is None:
            return answer, "length", fitted.dropped, most
        more = fitted.shift(answer)
        if more is None:
            return answer, "length", fitted.dropped, most
        fitted = more


# the edges of the context


@pytest.mark.parametrize("policy", ["error", "drop-oldest-turns", "summarise", "shift"])
@pytest.mark.parametrize(("n", "max_tokens", "n_out"), [
    (62, 1, 1), (62, 10, 2), (62, None, 2), (63, 1, 1), (63, 10, 1), (63, None, 1), (40, 10, 10), (40, None, 24),
])  # fmt: skip
def test_one_turn_that_fits_runs_to_exactly_the_context(
    policy: str, n: int, max_tokens: int | None, n_out: int
) -> None:
    messages = prompt_of(n)
    fitted = fit(messages, encode, N_CTX, policy=policy, max_tokens=max_tokens, summarise=lambda m, k: "never asked")
    assert fitted.ids == encode(messages)
    answer, reason, dropped, most = answered(fitted)
    assert (len(answer), reason, dropped) == (n_out, "length", None)
    assert most == n + n_out


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n", [64, 65])
@pytest.mark.parametrize("max_tokens", [1, 10, None])
def test_one_turn_without_room_is_refused_with_both_numbers(policy: str, n: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextOverflowError, match=rf"the prompt is {n} tokens.* holds 64"):
        fit(prompt_of(n), encode, N_CTX, policy=policy, max_tokens=max_tokens, summarise=lambda m, k: "")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_refusal_says_that_no_policy_helps_against_one_long_message(policy: str) -> None:
    long, system, old = say("user", "x" * 99), say("system", "be brief"), [say("user", "a"), say("assistant", "b")]
    for messages, says in (
        ([long], ", never the last one: shorten the last message or load the model with a larger n_ctx"),
        ([*old, long], ", never the last one: shorten the last message or load"),
        ([system, *old, long], ", never the last one and the system message: shorten these or load"),
    ):
        with pytest.raises(ContextOverflowError) as refused:
            fit(messages, encode, N_CTX, policy=policy, summarise=lambda m, k: "")
        if policy == "error":
            assert str(refused.value).endswith("answer; shorten the prompt or load the model with a larger n_ctx")
        else:
            assert f"the overflow policy {policy!r} cannot help here, because it leaves out" in str(refused.value)
            assert says in str(refused.value)


@pytest.mark.parametrize(("n", "max_tokens", "n_out"), [
    (62, 1, 1), (62, 10, 2), (62, None, 2), (63, 1, 1), (63, 10, 1), (63, None, 1), (1, None, 63),
])  # fmt: skip
def test_a_plain_prompt_that_fits(n: int, max_tokens: int | None, n_out: int) -> None:
    answer, reason, dropped, most = answered(fit_ids(range(n), N_CTX, max_tokens=max_tokens))
    assert (len(answer), reason, dropped, most) == (n_out, "length", None, n + n_out)


@pytest.mark.parametrize("n", [64, 65])
def test_a_plain_prompt_without_room_is_refused(n: int) -> None:
    with pytest.raises(ContextOverflowError, match=rf"the prompt is {n} tokens and the context holds 64"):
        fit_ids(range(n), N_CTX)


@pytest.mark.parametrize("n", [62, 63, 64, 65, 200])
@pytest.mark.parametrize(("max_tokens", "n_out"), [(1, 1), (10, 10), (100, 100), (None, 64)])
def test_a_shifted_answer_gets_its_tokens_and_ends(n: int, max_tokens: int | None, n_out: int) -> None:
    fitted = fit_ids(range(n), N_CTX, policy="shift", max_tokens=max_tokens, n_head=3)
    assert fitted.ids[:3] == [0, 1, 2]
    assert fitted.ids[-1] == n - 1
    answer, reason, dropped, most = answered(fitted)
    assert (len(answer), reason) == (n_out, "length")
    assert most <= N_CTX
    if n + n_out <= N_CTX:
        assert dropped is None
    else:
        assert dropped is not None
        assert dropped.n_prompt == n
        assert (dropped.n_tokens > 0) == (n >= N_CTX)
        assert dropped.messages == ()
        assert (dropped.n_shifts > 0) == (dropped.n_shifted > 0)


def test_what_a_shift_keeps() -> None:
    fitted = fit_ids(range(60), N_CTX, policy="shift", n_head=2)
    assert fitted.shift is not None
    answer = [100, 101, 102, 103]
    more = fitted.shift(answer)
    assert more is not None
    assert more.ids == [0, 1, *range(33, 60), *answer]  # the head, and the newest (64 - 2) // 2
    assert more.dropped == Dropped("shift", 60, 0, n_shifts=1, n_shifted=31)
    assert more.shift is not None
    answer += range(104, 104 + N_CTX - len(more.ids))
    again = more.shift(answer)
    assert again is not None
    assert again.ids == [0, 1, *answer[-31:]]
    assert again.dropped == Dropped("shift", 60, 0, n_shifts=2, n_shifted=62)
    assert "shifted 2 times by 62 tokens" in again.dropped.sentence()


def test_a_context_too_small_to_shift() -> None:
    with pytest.raises(ContextOverflowError, match="63 of which must stay"):
        fit_ids(range(60), N_CTX, policy="shift", n_head=63)
    answer, _, dropped, most = answered(fit_ids(range(9), 2, policy="shift"), 2)
    assert (len(answer), most) == (2, 2)
    assert dropped is not None
    assert dropped.n_tokens == 8


@pytest.mark.parametrize("policy", ["drop-oldest-turns", "summarise"])
def test_a_plain_prompt_has_no_turns(policy: str) -> None:
    with pytest.raises(SettingError, match="a plain prompt has no turns"):
        fit_ids([1], N_CTX, policy=policy)


def test_unknown_policies() -> None:
    with pytest.raises(SettingError, match="overflow is 'forget'; wanted one of error, drop-oldest-turns"):
        fit([say("user", "hi")], encode, N_CTX, policy="forget")
    with pytest.raises(SettingError, match="needs a model"):
        fit([say("user", "hi")], encode, N_CTX, policy="summarise")


# whole turns


TALK = [
    say("system", "Be brief."),
    say("user", "first question"),
    say("assistant", "first answer"),
    say("user", "second question"),
    say("assistant", ""),
    say("tool", "result of a tool"),
    say("assistant", "second answer"),
    say("system", "A note."),
    say("user", "third question"),
    say("assistant", "third answer"),
    say("user", "last question"),
]


def without(*gone: int) -> list[int]:
    return encode([m for i, m in enumerate(TALK) if i not in gone])


def test_whole_turns_go_oldest_first_and_system_text_stays() -> None:
    whole = without()
    for n_ctx in range(len(whole) + 20, 0, -1):
        try:
            fitted = fit(TALK, encode, n_ctx, policy="drop-oldest-turns", max_tokens=10)
        except ContextOverflowError:
            assert n_ctx <= len(without(1, 2, 3, 4, 5, 6, 8, 9))
            continue
        gone = fitted.dropped.messages if fitted.dropped else ()
        assert gone in ((), (1, 2), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 8, 9))
        assert fitted.ids == without(*gone)
        assert "Be brief." in text_of(fitted.ids)
        assert "A note." in text_of(fitted.ids)
        assert text_of(fitted.ids).endswith("user: last question\nassistant: ")
        assert fitted.n_most == min(10, n_ctx - len(fitted.ids)) >= 1
        if fitted.dropped:
            assert fitted.dropped.n_prompt == len(whole)
            assert fitted.dropped.n_tokens == len(whole) - len(fitted.ids)
        if not gone:
            assert len(whole) + min(10, n_ctx // 4) <= n_ctx


def test_what_is_left_out_is_said() -> None:
    fitted = fit(TALK, encode, 170, policy="drop-oldest-turns", max_tokens=10)
    assert fitted.dropped is not None
    assert fitted.dropped.messages == (1, 2, 3, 4, 5, 6)
    n = len(without()) - len(fitted.ids)
    assert fitted.dropped.sentence() == f"to fit the context, the 6 oldest messages ({n} tokens) were left out"


def test_a_greeting_before_the_first_question_is_a_turn() -> None:
    talk = [
        say("assistant", "Hello, how can I help you today?"),
        say("user", "a"),
        say("assistant", "b"),
        say("user", "c"),
    ]
    fitted = fit(talk, encode, 60, policy="drop-oldest-turns", max_tokens=1)
    assert fitted.dropped is not None
    assert fitted.dropped.messages == (0,)


def test_the_last_turn_and_the_system_text_never_go() -> None:
    talk = [say("system", "s" * 30), say("user", "a"), say("assistant", "b"), say("user", "q" * 30)]
    with pytest.raises(ContextOverflowError, match=r"the prompt is \d+ tokens, \d+ without the turns that may go,"):
        fit(talk, encode, N_CTX, policy="drop-oldest-turns")


def test_room_for_the_answer_is_made_but_not_for_more_than_a_quarter() -> None:
    talk = [say("user", "a" * 10), say("assistant", "b" * 10), say("user", "c")]
    n = len(encode(talk))
    for max_tokens, room in ((1, 1), (5, 5), (None, (n + 5) // 4), (1000, (n + 5) // 4)):
        fitted = fit(talk, encode, n + 5, policy="drop-oldest-turns", max_tokens=max_tokens)
        assert (fitted.dropped is None) == (room <= 5)


def test_the_beginning_stays_the_same_over_several_turns() -> None:
    talk, cuts = [say("system", "Be brief.")], []
    for i in range(60):
        talk += [say("user", f"question {i:03}")]
        fitted = fit(talk, encode, 400, policy="drop-oldest-turns")
        cuts.append(len(fitted.dropped.messages) if fitted.dropped else 0)
        talk += [say("assistant", f"answer {i:03}")]
    assert cuts == sorted(cuts)
    assert cuts[-1] > 0
    assert len(set(cuts)) < 15  # not a new one with every turn


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.integers(0, 60)), max_size=12
    ),
    n_ctx=st.integers(40, 400),
    max_tokens=st.none() | st.integers(1, 500),
    policy=st.sampled_from(POLICIES),
)
def test_any_conversation(sizes: list[tuple[str, int]], n_ctx: int, max_tokens: int | None, policy: str) -> None:
    talk = [*(say(role, chr(97 + i) * n) for i, (role, n) in enumerate(sizes)), say("user", "?")]
    whole = encode(talk)
    try:
        fitted = fit(talk, encode, n_ctx, policy=policy, max_tokens=max_tokens, summarise=lambda m, k: "S" * min(k, 9))
    except ContextOverflowError:
        assert len(whole) >= n_ctx
        return
    assert len(fitted.ids) < n_ctx
    gone = fitted.dropped.messages if fitted.dropped else ()
    assert all(talk[i]["role"] != "system" for i in gone)
    rest = [i for i in range(len(talk)) if talk[i]["role"] != "system" and i not in gone]
    assert gone == tuple(i for i in range(rest[0]) if talk[i]["role"] != "system")
    if gone:
        assert policy != "error"
        assert rest[0] == 0 or talk[rest[0]]["role"] == "user"
    answer, reason, _, most = answered(fitted, n_ctx)
    assert reason == "length"
    assert 1 <= len(answer) <= (max_tokens or n_ctx)
    assert most <= n_ctx


# shift in a conversation


def test_an_answer_that_fills_the_context_makes_further_turns_go() -> None:
    talk = [say("system", "s"), *(m for i in range(6) for m in (say("user", f"q{i}"), say("assistant", f"a{i}" * 5)))]
    talk.append(say("user", "go on"))
    fitted = fit(talk, encode, 240, policy="shift", max_tokens=1000)
    seen = [fitted.dropped.messages if fitted.dropped else ()]
    answer: list[int] = []
    while True:
        n_start = len(fitted.ids) - len(answer)
        answer += [1000] * (240 - len(fitted.ids))
        assert n_start + len(answer) == 240
        more = fitted.shift(answer) if fitted.shift else None
        if more is None:
            break
        fitted = more
        assert fitted.dropped is not None
        seen.append(fitted.dropped.messages)
        assert fitted.ids[: len(encode(talk[:1])) - len("assistant: ")] == encode(talk[:1])[: -len("assistant: ")]
    assert len(seen) > 1
    assert all(set(a) < set(b) for a, b in itertools.pairwise(seen))
    assert seen[-1] == tuple(range(1, 13))  # all but system and the question
    assert fitted.dropped is not None
    assert fitted.dropped.n_shifts == len(seen) - 1
    assert len(answer) == 240 - len(encode([talk[0], talk[-1]]))


# summaries


def summarised(
    talk: list[dict[str, str]], n_ctx: int, text: str = "They met.", coder: Callable[..., Any] = encode
) -> Fitted:
    return fit(talk, coder, n_ctx, policy="summarise", max_tokens=8, summarise=lambda messages, n: text)


def talk_of(n: int, system: bool) -> list[dict[str, str]]:
    turns = [m for i in range(n) for m in (say("user", f"question {i}"), say("assistant", f"answer {i}"))]
    return [*([say("system", "Be brief.")] if system else []), *turns, say("user", "last")]


def test_a_summary_joins_the_system_message() -> None:
    fitted = summarised(talk_of(12, True), 250)
    assert text_of(fitted.ids).startswith(
        "system: Be brief.\n\nSummary of the earlier conversation, which no longer fits: They met.\nuser: question"
    )
    assert fitted.dropped is not None
    assert fitted.dropped.summary == "They met."
    assert fitted.dropped.sentence().endswith("were left out and summarised")
    assert len(fitted.ids) + 8 <= 250


def test_a_summary_becomes_the_system_message_or_joins_the_question() -> None:
    assert text_of(summarised(talk_of(12, False), 250).ids).startswith("system: Summary of")

    def no_system(messages: Any) -> list[int]:
        if messages[0]["role"] == "system":
            raise TemplateError("System role not supported")
        return encode(messages)

    fitted = summarised(talk_of(12, False), 250, coder=no_system)
    assert text_of(fitted.ids).startswith(
        "user: Summary of the earlier conversation, which no longer fits: They met.\n\nquestion"
    )


@pytest.mark.parametrize("text", ["", "  ", "long " * 100])
def test_an_empty_or_endless_summary_is_left_out(text: str) -> None:
    fitted = summarised(talk_of(12, True), 250, text)
    assert fitted.dropped is not None
    assert fitted.dropped.summary == ""
    assert "Summary" not in text_of(fitted.ids)
    assert fitted.n_most == 8


def test_a_context_that_cannot_even_hold_the_request_drops() -> None:
    def ask(messages: Any, n: int) -> str:
        raise ContextOverflowError("too long")

    fitted = fit(talk_of(6, True), encode, N_CTX + 20, policy="summarise", summarise=Summary(ask, N_CTX))
    assert fitted.dropped is not None
    assert fitted.dropped.summary == ""


def test_summaries_are_remembered_and_grow() -> None:
    asked: list[tuple[str, int]] = []

    def ask(messages: list[dict[str, Any]], n_tokens: int) -> str:
        asked.append((messages[0]["content"], n_tokens))
        return f"summary {len(asked)}"

    summary = Summary(ask, 4000)
    old = [say("user", "my name is Ada"), say("assistant", "hello Ada")]
    assert summary(old, 50) == summary(old, 50) == "summary 1"
    assert len(asked) == 1
    assert "user: my name is Ada\nassistant: hello Ada" in asked[0][0]
    assert asked[0][1] == 50
    assert summary([*old, say("user", "more")], 50) == "summary 2"
    assert asked[1][0].endswith("Summary so far: summary 1\nuser: more")  # what was read is not read again
    assert summary(old, 60) == "summary 3"  # another length is another summary


def test_a_long_history_is_summarised_in_parts() -> None:
    asked: list[str] = []

    def ask(messages: list[dict[str, Any]], n_tokens: int) -> str:
        asked.append(messages[0]["content"])
        return "s"

    Summary(ask, 500)([say("user", f"{i} " * 100) for i in range(10)] + [say("user", "x" * 5000)], 20)
    assert 5 <= len(asked) <= 11
    assert max(map(len, asked)) < 1200
    assert "x ... x" in asked[-1]


# the pinned head


def test_the_head_is_the_system_text() -> None:
    talk = [say("system", "You are a ship."), say("user", "Hello")]
    ids = encode(talk)
    assert text_of(ids[: head(talk, encode, ids)]) == "system: You are a ship.\nuser: "
    assert ids[0] == BOS
    assert head(talk[1:], encode, encode(talk[1:])) == 0
    alone = [say("system", "Only this.")]
    assert text_of(encode(alone)[: head(alone, encode, encode(alone))]) == "system: Only this.\n"


def test_a_template_that_refuses_gives_no_head() -> None:
    def refuse(messages: Any) -> list[int]:
        raise TemplateError("no")

    assert head([say("system", "a"), say("user", "b")], refuse, [1, 2, 3]) == 0
