"""`LLM.chat` with tools, over a real file, tokenizer and engine: they reach the prompt, or are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.errors import ContextOverflowError, SettingError
from tests.tiny import build_tiny

ASK = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
TAKES = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}: {{ tool.function.description }}]\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
IGNORES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_tools_reach_the_template(tmp_path: Path) -> None:
    with edgeinfer.load(build_tiny(tmp_path / "m.gguf", template=TAKES), seed=1) as llm:
        assert llm.template is not None
        answer = llm.chat(ASK, tools=[TOOL], max_tokens=1, ignore_eos=True)
        ids = llm.template.encode(ASK, tools=[TOOL])
        assert llm.tokenizer.decode(ids).startswith("[add: Adds.]\nuser: Hi")
        assert answer.n_prompt == len(ids) > len(llm.template.encode(ASK))
        assert answer.text() == llm.generate(ids, max_tokens=1, ignore_eos=True, seed=answer.seed).text()

        async def ask() -> int:
            late = llm.achat(ASK, tools=[TOOL], max_tokens=1, ignore_eos=True)
            await late.text()
            return late.n_prompt

        assert asyncio.run(ask()) == len(ids)
        assert llm.chat(ASK, tools=[], max_tokens=1).n_prompt == len(llm.template.encode(ASK))


@pytest.mark.parametrize("policy", ["error", "drop-oldest-turns", "shift"])
def test_tools_count_when_a_conversation_is_fitted_and_are_never_left_out(tmp_path: Path, policy: str) -> None:
    wide = {"type": "function", "function": {"name": "add", "description": "x" * 300}}
    with edgeinfer.load(build_tiny(tmp_path / "m.gguf", template=TAKES), n_ctx=200) as llm:
        llm.chat(ASK, max_tokens=1, overflow=policy).text()
        with pytest.raises(ContextOverflowError):
            llm.chat(ASK, tools=[wide], max_tokens=1, overflow=policy)


def test_a_template_without_a_place_for_tools_refuses_them(tmp_path: Path) -> None:
    with edgeinfer.load(build_tiny(tmp_path / "m.gguf", template=IGNORES)) as llm:
        for ask in (llm.chat, llm.achat):
            with pytest.raises(SettingError, match="tools are given, but this model's chat template has no place for"):
                ask(ASK, tools=[TOOL])
            with pytest.raises(SettingError, match=r"tools\[0\] is str"):
                ask(ASK, tools=["add"])  # type: ignore[list-item]
