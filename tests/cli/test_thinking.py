"""Thinking in `chat` and `run`: dim on a terminal, absent where the answer is piped on, a budget, no answer explained."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from edgeinfer.cli.chat import _Prompt
from edgeinfer.cli.conversation import Conversation
from edgeinfer.cli.thinking import ThinkingView
from edgeinfer.errors import SettingError

from .echo import echo_llm


@pytest.mark.parametrize("command", [["run", "--chat"], ["chat"]])
def test_what_is_piped_on_is_the_answer_alone(edgeinfer: Any, command: list[str]) -> None:
    done = edgeinfer(*command, edgeinfer.model, "-q", stdin=b"ponder")
    assert (done.code, done.out, done.err) == (0, "echo: ponder\n", "")


def test_json_holds_both(edgeinfer: Any) -> None:
    document = json.loads(edgeinfer("run", edgeinfer.model, "--chat", "--json", "-p", "ponder").out)
    assert (document["text"], document["thinking"]) == ("echo: ponder", "hm\x1b[2J, hm\n")
    assert bytes(document["tokens"]).startswith(b"<think>")


def test_a_budget_ends_the_thinking(edgeinfer: Any) -> None:
    document = json.loads(
        edgeinfer("run", edgeinfer.model, "--chat", "--json", "-p", "opinion", "--think-budget", "9", "-n", "40").out
    )
    assert document["thinking"] == "hmm. hmm."  # a token a byte
    assert bytes(document["tokens"]).startswith(b"<think>hmm. hmm.</think>\n\n")
    nothing = json.loads(
        edgeinfer("run", edgeinfer.model, "--chat", "--json", "-p", "opinion", "--no-think", "-n", "30").out
    )
    assert bytes(nothing["tokens"]).startswith(b"<think></think>\n\n")


@pytest.mark.parametrize("command", [["run", "--chat"], ["chat"]])
def test_an_answer_that_is_all_thinking_is_explained(edgeinfer: Any, command: list[str]) -> None:
    done = edgeinfer(*command, edgeinfer.model, "-n", "30", stdin=b"opinion")
    assert done.out == "\n"
    assert "it ended while thinking, without an answer" in done.err
    assert "--think-budget" in done.err


@pytest.mark.parametrize("options", [["--think-budget", "3"], ["--no-think"], ["--think"]])
def test_completion_knows_no_thinking(edgeinfer: Any, options: list[str]) -> None:
    done = edgeinfer("run", edgeinfer.model, "-p", "x", *options)
    assert done.code == 2
    assert "go with --chat" in done.err


def test_a_bad_budget_is_refused(edgeinfer: Any) -> None:
    done = edgeinfer("chat", edgeinfer.model, "--think-budget", "-1", stdin=b"x")
    assert done.code == 2
    assert "--think-budget is -1; wanted a whole number" in done.err


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: stream is sys.stdout)
    return capsys


def test_on_a_terminal_it_is_dim_and_cannot_drive_it(edgeinfer: Any, terminal: Any) -> None:
    done = edgeinfer("run", edgeinfer.model, "--chat", "-q", "-p", "ponder")
    assert done.out.replace("\x1b[22m\x1b[2m", "") == "\x1b[2mhm\ufffd[2J, hm\n\x1b[22m\necho: ponder\n"
    assert edgeinfer("run", edgeinfer.model, "--chat", "-q", "--hide-thinking", "-p", "ponder").out == "echo: ponder\n"


def test_without_colour_words_tell_them_apart(edgeinfer: Any, terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    done = edgeinfer("run", edgeinfer.model, "--chat", "-q", "-p", "ponder")
    assert done.out == "[thinking]\nhm\ufffd[2J, hm\n[answer]\necho: ponder\n"


def test_a_view_closes_what_it_opened(terminal: Any) -> None:
    view = ThinkingView()
    view.think("a")
    view.close()
    view.close()
    assert terminal.readouterr().out == "\x1b[2ma\x1b[22m\n\n"


def test_the_thinking_stands_beside_the_answer_in_the_history(tmp_path: Any) -> None:
    with echo_llm() as llm:
        talk = Conversation(llm, "m", thinking={"think_budget": 50})
        answer = talk.ask("ponder", {})
        text = answer.text()
        talk.keep("ponder", text, answer.reasoning)
        assert talk.messages[-1] == {
            "role": "assistant",
            "content": "echo: ponder",
            "reasoning_content": "hm\x1b[2J, hm\n",
        }
        talk.save(tmp_path / "chat.json")
        again = Conversation(llm, "m")
        again.load(tmp_path / "chat.json")
        assert again.messages == talk.messages
        assert again.ask("next", {}).text() == "echo: next"


def test_thinking_is_switched_while_chatting(capsys: pytest.CaptureFixture[str]) -> None:
    with echo_llm() as llm:
        prompt = _Prompt(Conversation(llm, "m"), {"max_tokens": 25}, stats=False, quiet=True)
        assert prompt._line("/think off")
        assert prompt._line("opinion")
        assert prompt.last is not None
        assert prompt.last.thinking == ""
        assert bytes(prompt.last.tokens).startswith(b"<think></think>")
        assert prompt._line("/think on")
        assert prompt._line("opinion")
        assert prompt.last.thinking.startswith("hmm. ")
        with pytest.raises(SettingError, match="/think wants on or off"):
            prompt._line("/think maybe")
    with echo_llm(template=False) as llm, pytest.raises(SettingError, match="has no chat template"):
        _Prompt(Conversation(llm, "m"), {}, stats=False, quiet=True)._line("/think on")
    assert capsys.readouterr().err.startswith("thinking: off\n")
