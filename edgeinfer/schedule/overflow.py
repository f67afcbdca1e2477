"""What happens when prompt and answer do not fit in the context. Nothing is left out unless a policy was asked for.

    error               the prompt is refused; an answer that fills the context ends there with "length" (the default)
    drop-oldest-turns   chat: the oldest turns are left out of the prompt
    summarise           chat: the same, and a summary of them, made by the model, takes their place
    shift               chat: as drop-oldest-turns, and again whenever the answer fills the context
                        completion: the oldest tokens behind a pinned head are left out, of the prompt and whenever the
                        answer fills the context; what is kept is evaluated anew, stored keys are not rotated

A turn is a user message and all that follows it up to the next one (answers, tool calls, tool results); what stands
before the first user message is a turn too. Turns go whole and oldest first; the first one is not special. System and
developer messages stay wherever they are, and so do tools, which a template writes anew each time. The last turn stays:
when it and the system text alone are too long, the prompt is refused.

How much goes: an answer is to have room for max_tokens, at most a quarter of the context (and a quarter where max_tokens
is not given); when that is not there, turns go until it is. The cut moves in steps of about a quarter of the context, so
that the next turns find the same beginning in the prefix cache. Where nothing more can go, an answer of one token at
least must fit. Where it ends, with n_ctx 64, one turn, and max_tokens 1 / 10 / none:

    prompt of   error, drop-oldest-turns, summarise     shift (completion)
    62          1 / 2 / 2 tokens                        1 / 10 / at most 64 tokens
    63          1 / 1 / 1                               1 / 10 / at most 64
    64, 65      ContextOverflowError                    1 / 10 / at most 64

A shifted answer ends at max_tokens, and without it after n_ctx tokens: it never goes on for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ContextOverflowError, SettingError, TemplateError
from .turns import PINNED, Encode, Summarise, Turns

__all__ = ["POLICIES", "Dropped", "Fitted", "check_policy", "fit", "fit_ids", "head"]

POLICIES = ("error", "drop-oldest-turns", "shift", "summarise")


@dataclass(frozen=True)
class Dropped:
    """What was left out to make a prompt and its answer fit."""

    policy: str
    n_prompt: int  # tokens of the prompt as it was asked for
    n_tokens: int  # of these, how many are not in the prompt that was answered (a summary counted against them)
    messages: tuple[int, ...] = ()  # places in the caller's list of the messages that were left out
    n_shifts: int = 0  # times that the answer filled the context and went on
    n_shifted: int = 0  # tokens of prompt and answer that were left out by that
    summary: str = ""  # what stands in for the messages

    def sentence(self) -> str:
        """It in one sentence."""
        parts = []
        if self.messages:
            of = f"the {len(self.messages)} oldest messages" if len(self.messages) > 1 else "the oldest message"
            parts.append(f"{of} ({self.n_tokens} tokens) {'were' if len(self.messages) > 1 else 'was'} left out")
            if self.summary:
                parts[-1] += " and summarised"
        elif self.n_tokens:
            parts.append(f"{self.n_tokens} tokens of the prompt were left out")
        if self.n_shifts:
            times = "once" if self.n_shifts == 1 else f"{self.n_shifts} times"
            parts.append(f"the context was shifted {times} by {self.n_shifted} tokens in all")
        return "to fit the context, " + ", and ".join(parts)


@dataclass(frozen=True)
class Fitted:
    """A prompt that fits, and what to do when its answer fills the context."""

    ids: list[int]
    n_most: int  # tokens of the answer, after which it ends with "length"
    dropped: Dropped | None = None
    # Called with the whole answer so far when prompt and answer fill the context before n_most: the prompt to go on from
    # (it ends with the answer so far), or None: the answer ends with "length".
    shift: Callable[[Sequence[int]], Fitted | None] | None = None


def check_policy(policy: str, kind: str = "chat") -> None:
    """Raise SettingError for a policy that does not exist, or that a "completion" cannot follow."""
    if policy not in POLICIES:
        raise SettingError(f"overflow is {policy!r}; wanted one of {', '.join(POLICIES)}")
    if kind == "completion" and policy not in ("error", "shift"):
        raise SettingError(
            f"overflow {policy!r} is for conversations: a plain prompt has no turns; wanted error or shift"
        )


def refusal(n_prompt: int, n_ctx: int, why: str = "", remedy: str = "shorten the prompt") -> ContextOverflowError:
    return ContextOverflowError(
        f"the prompt is {n_prompt} tokens{why} and the context holds {n_ctx}, of which at least one is for the "
        f"answer; {remedy} or load the model with a larger n_ctx"
    )


# ---- completion ---------------------------------------------------------------------------------------------------------


def fit_ids(
    ids: Sequence[int], n_ctx: int, *, policy: str = "error", max_tokens: int | None = None, n_head: int = 0
) -> Fitted:
    """Fit the ids of a plain prompt; the first n_head (a begin token, say) are never left out.

    Raises SettingError and ContextOverflowError.
    """
    check_policy(policy, "completion")
    whole = [int(token) for token in ids]
    n = len(whole)
    if policy == "error":
        if n >= n_ctx:
            raise refusal(n, n_ctx)
        return Fitted(whole, _least(n_ctx - n, max_tokens))
    n_most = n_ctx if max_tokens is None else max_tokens
    if n_ctx < 2 or n_head >= n_ctx - 1:
        raise refusal(n, n_ctx, f", {n_head} of which must stay,")

    def going_on(text: list[int], dropped: Dropped | None, n_answered: int) -> Fitted:
        """A prompt that ends with the first n_answered tokens of its answer."""

        def shift(answer: Sequence[int]) -> Fitted:
            full = [*text, *answer[n_answered:]]
            kept = _without_oldest(full, n_ctx, n_head)
            told = dropped or Dropped(policy, n, 0)
            told = replace(told, n_shifts=told.n_shifts + 1, n_shifted=told.n_shifted + len(full) - len(kept))
            return going_on(kept, told, len(answer))

        return Fitted(text, n_most, dropped, shift)

    if n < n_ctx:
        return going_on(whole, None, 0)
    kept = _without_oldest(whole, n_ctx, n_head)
    return going_on(kept, Dropped(policy, n, n - len(kept)), 0)


def _without_oldest(text: list[int], n_ctx: int, n_head: int) -> list[int]:
    """The head and the newest tokens of a text, so that half of the rest of the context is free."""
    n_newest = max(1, (n_ctx - n_head) // 2)
    return text if len(text) <= n_head + n_newest else [*text[:n_head], *text[len(text) - n_newest :]]


def _least(room: int, max_tokens: int | None) -> int:
    return room if max_tokens is None else min(room, max_tokens)


# ---- conversation -------------------------------------------------------------------------------------------------------


def fit(
    messages: Sequence[Mapping[str, Any]],
    encode: Encode,
    n_ctx: int,
    *,
    policy: str = "error",
    max_tokens: int | None = None,
    summarise: Summarise | None = None,
) -> Fitted:
    """Fit a conversation; `encode` makes the ids of a prompt, as `ChatTemplate.encode` does.

    `summarise(messages, n_tokens)` gives a text of at most so many tokens; it is asked once for each cut, and its answer
    is best remembered (`schedule.summary`). Raises SettingError, ContextOverflowError, and what the two calls raise.
    """
    check_policy(policy)
    if policy == "summarise" and summarise is None:
        raise SettingError("overflow 'summarise' needs a model that writes the summary")
    given = [dict(message) for message in messages]
    whole = encode(given)
    if policy == "error":
        if len(whole) >= n_ctx:
            raise refusal(len(whole), n_ctx)
        return Fitted(whole, _least(n_ctx - len(whole), max_tokens))
    room = _least(max(1, n_ctx // 4), max_tokens)
    turns = Turns(given, encode, n_ctx, whole)
    asked = summarise if policy == "summarise" else None
    ids, dropped = _cut(turns, policy, room, asked)
    if policy != "shift":
        return Fitted(ids, _least(n_ctx - len(ids), max_tokens), dropped)
    n_most = n_ctx if max_tokens is None else max_tokens

    def going_on(text: list[int], dropped: Dropped | None, n_answered: int) -> Fitted:
        """A prompt that ends with the first n_answered tokens of its answer."""

        def shift(answer: Sequence[int]) -> Fitted | None:
            n_full = len(text) + len(answer) - n_answered
            try:
                ids, told = _cut(turns, policy, len(answer) + room)
            except ContextOverflowError:
                return None
            shorter = [*ids, *answer]
            if told is None or len(shorter) >= min(n_full, n_ctx):
                return None  # nothing more can go: the answer would have to lose its own question
            n_shifts, n_shifted = (dropped.n_shifts, dropped.n_shifted) if dropped else (0, 0)
            told = replace(told, n_shifts=n_shifts + 1, n_shifted=n_shifted + n_full - len(shorter))
            return going_on(shorter, told, len(answer))

        return Fitted(text, n_most, dropped, shift)

    return going_on(ids, dropped, 0)


def _cut(turns: Turns, policy: str, room: int, summarise: Summarise | None = None) -> tuple[list[int], Dropped | None]:
    """A prompt that leaves `room` tokens free if that can be had, and what is not in it."""
    ids, n, summary = turns.cut(room, summarise)
    n_whole = len(turns.whole)
    if len(ids) >= turns.n_ctx:
        why = f", {len(ids)} without the turns that may go," if n else ""
        system = " and the system message" if any(m.get("role") in PINNED for m in turns.messages) else ""
        remedy = (
            f"the overflow policy {policy!r} cannot help here, because it leaves out older turns only, never the last "
            f"one{system}: shorten {'these' if system else 'the last message'}"
        )
        raise refusal(n_whole, turns.n_ctx, why, remedy)
    return ids, Dropped(policy, n_whole, n_whole - len(ids), turns.gone(n), summary=summary) if n else None


def head(messages: Sequence[Mapping[str, Any]], encode: Encode, ids: Sequence[int]) -> int:
    """How many of a prompt's first ids are its leading system text and what the template writes around it (tools too).

    Found by encoding the same head with another message behind it: what both share is the head. 0 without one.
    """
    n = next((i for i, m in enumerate(messages) if m.get("role") not in PINNED), len(messages))
    if not n:
        return 0
    stand_in = "\u00b6" if str(messages[n].get("content", "") if n < len(messages) else "")[:1] != "\u00b6" else "x"
    try:
        other = encode([*(dict(m) for m in messages[:n]), {"role": "user", "content": stand_in}])
    except TemplateError:
        return 0
    return next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))
