"""Tools of a conversation: what is no tool is named, and templates that show tools are told from others."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.model.template import ChatTemplate
from edgeinfer.model.tool_list import check_tools
from tests import vocabularies
from tests.tiny_tokenizers import bpe

NAMED = {"type": "function", "function": {"name": "f"}}


def test_tools_are_copied_and_no_tools_are_none() -> None:
    tools = ({**NAMED, "strict": True},)
    checked = check_tools(tools)
    assert checked == [*tools]
    assert checked is not None
    assert checked[0] is not tools[0]
    assert check_tools([]) is None
    assert check_tools(None) is None


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("f", "tools is str; wanted a list of {'type': 'function'"),
        (NAMED, "tools is dict; wanted a list"),
        (iter([NAMED]), "tools is list_iterator; wanted a list"),
        ([NAMED, "f"], r"tools\[1\] is str; wanted"),
        ([{"function": {"name": "f"}}], r"tools\[0\]\['type'\] is None; wanted 'function'"),
        ([{"type": "web", "function": {"name": "f"}}], r"tools\[0\]\['type'\] is 'web'; wanted 'function'"),
        ([{"type": "function", "name": "f"}], r"tools\[0\]\['function'\] is NoneType; wanted a dict"),
        ([{"type": "function", "function": {}}], r"tools\[0\]\['function'\]\['name'\] is None; wanted the name"),
        ([{"type": "function", "function": {"name": ""}}], r"\['name'\] is ''; wanted the name"),
        ([{"type": "function", "function": {"name": "f", "parameters": "x"}}], r"\['parameters'\] is str; wanted"),
        ([{"type": "function", "function": {"name": "f", "description": 5}}], r"\['description'\] is int; wanted"),
        ([{**NAMED, "more": object()}], r"tools\[0\] cannot be written as JSON"),
    ],
)
def test_what_is_no_tool_is_named(tools: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        check_tools(tools)


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", True),
        ("meta-llama-Llama-3.3-70B-Instruct", True),
        ("HuggingFaceTB-SmolLM3-3B", False),  # it reads variables of its own, xml_tools and python_tools
        ("openai-gpt-oss-120b", True),
        ("google-gemma-2-2b-it", False),
        ("microsoft-Phi-3.5-mini-instruct", False),
    ],
)
def test_published_templates_that_take_tools(name: str, takes: bool) -> None:
    source = (vocabularies.folder() / "templates" / f"{name}.jinja").read_bytes().decode()
    template = ChatTemplate(source, bpe(control=("<|im_start|>", "<|im_end|>")))
    assert template.takes_tools is takes
    tool = {
        "type": "function",
        "function": {"name": "weather_of", "description": "d", "parameters": {"type": "object"}},
    }
    assert ("weather_of" in template.render([{"role": "user", "content": "Hi"}], tools=[tool])) is takes


def test_a_template_of_its_own_for_tools_and_a_broken_one() -> None:
    tokenizer = bpe(control=("<|im_start|>",))
    assert ChatTemplate("{{ messages[0].content }}", tokenizer, tool_source="{{ tools }}").takes_tools
    assert not ChatTemplate("{{ messages[0].content }}", tokenizer).takes_tools
    assert not ChatTemplate("{{ tools }}{% if %}", tokenizer).takes_tools
