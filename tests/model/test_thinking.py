"""How published templates think: the marks, the switch, and whether they open the thinking for the model."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.model.template import ChatTemplate
from edgeinfer.model.thinking import find_format, find_switch
from tests import vocabularies
from tests.tiny_tokenizers import bpe

USER = [{"role": "user", "content": "x"}]
CHANNELS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
HEADS = ("<|open|>", "<|close|>", "<|sep|>", "<|begin|>", "<|think|>", "<|content|>", "<|tool_calls|>", "<|eom|>")
# template: (format, whether it has a switch, whether the thinking is opened as it comes, switched on, switched off)
KNOWN: dict[str, tuple[str | None, bool, bool, bool, bool]] = {
    "Apertus-8B-Instruct": ("apertus", True, False, False, False),
    "Apriel-1.6-15b-Thinker-fixed": ("final response", False, True, True, True),
    "Bielik-11B-v3.0-Instruct": ("think", True, False, True, False),
    "ByteDance-Seed-OSS": ("seed:think", True, False, False, False),
    "Cohere2MoE": ("command", True, True, True, False),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command", True, False, False, False),
    "GLM-4.6": ("think", True, False, False, False),
    "GLM-4.7-Flash": ("think", True, True, True, False),
    "HuggingFaceTB-SmolLM3-3B": ("think", True, False, False, False),
    "Kimi-K3": ("kimi-k3", True, True, True, False),
    "MiniMax-M2": ("think", False, True, True, True),
    "MiniMax-M3": ("mm:think", True, False, True, False),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("think", True, True, True, False),
    "Qwen-QwQ-32B": ("think", True, False, True, False),
    "Qwen-Qwen3-0.6B": ("think", True, False, False, False),
    "Qwen3.5-4B": ("think", True, True, True, False),
    "StepFun3.5-Flash": ("think", False, True, True, True),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("think", False, True, True, True),
    "deepseek-ai-DeepSeek-V3.1": ("think", True, False, True, False),
    "google-gemma-4-31B-it": ("gemma", True, False, False, False),
    "ibm-granite-granite-3.3-2B-Instruct": ("think", True, False, False, False),
    "inclusionai-ling-3.0-flash": ("think", True, True, True, False),
    "muse-glimmer": ("muse", False, False, False, False),
    "upstage-Solar-Open-100B": ("solar", False, False, False, False),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", False, False, False, False),
    "openai-gpt-oss-120b": ("channels", False, False, False, False),
    "tencent-Hy3": ("think:opensource", True, False, True, False),
}
NONE = (
    "Qwen-Qwen2.5-7B-Instruct",
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.3-70B-Instruct",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "microsoft-Phi-3.5-mini-instruct",
    "Qwen3-Coder",
)


def published(name: str, control: tuple[str, ...] = CHANNELS + HEADS) -> ChatTemplate:
    source = (vocabularies.folder() / "templates" / f"{name}.jinja").read_bytes().decode()
    return ChatTemplate(source, bpe(control=control))


@pytest.mark.parametrize("name", KNOWN)
def test_published_templates_that_think(name: str) -> None:
    template = published(name)
    thinking = template.thinking
    assert thinking is not None
    found, switch, *opened = KNOWN[name]
    assert (thinking.format.name if thinking.format else None, bool(thinking.on)) == (found, switch)
    prompts = [template.encode(USER, **variables) for variables in ({}, thinking.on, thinking.off)]
    assert [thinking.opened(prompt) for prompt in prompts] == opened
    if switch:
        assert prompts[1] != prompts[2]


@pytest.mark.parametrize("name", NONE)
def test_published_templates_that_do_not(name: str) -> None:
    assert published(name).thinking is None


def test_marks_are_ids_where_the_vocabulary_has_them() -> None:
    plain, special = published("Qwen-Qwen3-0.6B"), published("Qwen-Qwen3-0.6B", ("<think>", "</think>"))
    assert plain.thinking is not None
    assert special.thinking is not None
    assert plain.thinking.marks == {}
    assert special.thinking.marks == {"<think>": 0, "</think>": 1}
    assert special.thinking.close_ids[0] == 1
    assert published("openai-gpt-oss-120b", ("<|start|>",)).thinking is None  # channels need their tokens


def test_history_goes_back_without_the_thinking_where_the_template_does_so() -> None:
    talk = [*USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "hm hm"}, *USER]
    assert "hm hm" not in published("Qwen-Qwen3-0.6B").render(talk)
    assert "hm hm" in published("MiniMax-M3").render(talk)  # this one shows a model all it thought


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a <think>b</think>", "think"),
        ("a </seed:think>", "seed:think"),
        ("x</thought>", "thought"),
        ("<|channel|>analysis<|message|>", "channels"),
        ("[/THINK]", "mistral"),
        ("◁/think▷", "kimi"),
        ("</thinking_instructions> </thinker> think", None),
        ("", None),
    ],
)
def test_formats(text: str, name: str | None) -> None:
    found = find_format(text)
    assert (found.name if found else None) == name


def test_a_switch_that_changes_nothing_is_none() -> None:
    def render(variables: Any) -> str | None:
        return f"{variables.get('thinking')}" if variables.get("thinking") is not False else None

    assert find_switch("{{ enable_thinking }}", lambda variables: "same")[:2] == ({}, {})
    assert find_switch("{{ m.thinking }} 'thinking'", str)[:2] == ({}, {})  # no variable
    assert find_switch("{{ thinking }}", render)[:2] == ({}, {})  # refuses to be switched off
    assert find_switch("{{ reasoning_effort }} low", str)[:2] == ({}, {})
    assert find_switch("{{ reasoning_effort }} no_think", str)[:2] == (
        {"reasoning_effort": "high"},
        {"reasoning_effort": "no_think"},
    )
