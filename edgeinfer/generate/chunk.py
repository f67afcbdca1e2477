"""The record that a streamed answer is made of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Chunk"]


@dataclass(frozen=True)
class Chunk:
    """One piece of a streamed answer: a token and the text that became certain with it.

    Each token of the answer has its chunk. `text` may be empty (half a character, or the possible start of a stop
    string, is held back) and may belong to tokens before. The last chunk, and only it, has a `finish_reason`:
    "stop" (end token or stop string), "length" (token limit or context is full) or "cancelled".

    A model that thinks aloud before it answers gives chunks whose text is `reasoning`, no part of the answer. Where one
    token brings the end of the thinking and the beginning of the answer, a chunk without a token comes first.
    """

    text: str
    token: int | None = None  # None in a chunk that brings no token: an end token is not part of the answer
    finish_reason: str | None = None
    from_draft: bool = False  # the token was proposed by a drafter and accepted
    reasoning: bool = False  # the text is thinking, not answer
