"""Messages as callers send them: what is taken, what is made of it, and what is refused by the name of its field."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.model.messages import check_messages


def test_messages_are_copied_and_keep_what_else_they_hold() -> None:
    given = [{"role": "assistant", "content": "a", "reasoning_content": "b", "name": "c"}]
    checked = check_messages(given)
    assert checked == given
    assert checked[0] is not given[0]


def test_text_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]
    assert check_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "What is it?"}]
    assert check_messages([{"role": "user", "content": []}])[0]["content"] == ""


@pytest.mark.parametrize("more", [{}, {"content": None}])
def test_calls_of_tools_need_no_text(more: dict[str, Any]) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}], **more}
    assert check_messages([call])[0]["content"] == ""


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ("hi", "messages is str"),
        ({}, "messages is dict"),
        ([], "messages is empty"),
        (["hi"], r"messages\[0\] is str"),
        ([{"role": "user"}], "has no 'content'"),
        ([{"content": "x"}], "has no 'role'"),
        ([{"role": "", "content": "x"}], r"\['role'\] is empty"),
        ([{"role": "user", "content": None}], r"\['content'\] is NoneType"),
        ([{"role": "user", "content": 5}], r"\['content'\] is int"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r"\['content'\]\[0\] is 'image_url'; .*only text is read",
        ),
        ([{"role": "user", "content": ["x"]}], r"\['content'\]\[0\] is str"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"\['content'\]\[0\] is 'text'"),
    ],
)
def test_what_cannot_be_read_is_named(messages: Any, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        check_messages(messages)
