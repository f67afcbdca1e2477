from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from edgeinfer.cli.conversation import Conversation
from edgeinfer.cli.terminal import visible
from edgeinfer.errors import NotFoundError, SettingError

from ..models import ROOT
from .echo import echo_llm

# -- fed by a pipe ----------------------------------------------------------------------------------------------------


def test_one_line_piped_in(edgeinfer: Any) -> None:
    done = edgeinfer("chat", edgeinfer.model, stdin=b"What is the capital of France?\n")
    assert (done.code, done.out) == (0, "echo: What is the capital of France?\n")


def test_several_lines_are_one_message(edgeinfer: Any) -> None:
    assert edgeinfer("chat", edgeinfer.model, "-q", stdin=b"one\n/quit\n").out == "echo: one\n/quit\n"


@pytest.mark.parametrize("stdin", [b"", b"\n", b"  \n\n", None])
def test_no_input_ends_well_and_loads_nothing(edgeinfer: Any, stdin: bytes | None) -> None:
    done = edgeinfer("chat", stdin=stdin)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert edgeinfer.calls == []


def test_the_default_model_is_pulled(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[str] = []
    monkeypatch.setattr("edgeinfer.cli.answer.pull_with_progress", lambda name, quiet: pulled.append(name))
    assert edgeinfer("chat", "-q", stdin=b"hi").out == "echo: hi\n"
    assert pulled == ["smollm2-135m"]
    assert edgeinfer.calls[0]["name"] == "smollm2-135m"


def test_offline_refuses_to_pull(edgeinfer: Any) -> None:
    done = edgeinfer("chat", "--offline", stdin=b"hi")
    assert done.code == 6
    assert "smollm2-135m is not on this disk" in done.err


def test_options(edgeinfer: Any) -> None:
    options = ("--n-ctx", "500", "-t", "1", "--seed", "4", "--temp", "0", "-n", "6", "--stats", "--system", "s")
    done = edgeinfer("chat", edgeinfer.model, "-q", *options, stdin=b"hello")
    assert done.out == "echo: \n"
    assert done.err.startswith("TTFT ")
    assert done.err.endswith("| length\n")
    assert edgeinfer.calls == [{"name": edgeinfer.model, "n_ctx": 500, "n_threads": 1, "seed": 4}]


def test_a_model_without_template_completes_and_says_so(edgeinfer: Any) -> None:
    done = edgeinfer("chat", edgeinfer.plain, stdin=b"once upon")
    assert (done.code, done.out) == (0, "|echo: once upon\n")
    assert "no usable chat template" in done.err


@pytest.mark.parametrize(
    ("stdin", "options", "code", "says"),
    [
        (b"\xff\xfe\xfd", [], 2, "standard input is not UTF-8 text: byte 0xff at position 0"),
        (b"x" * 3000, [], 8, "2000"),
        (b"this is bad", [], 10, ""),
        (b"hi", ["--temp", "-1"], 2, "--temp is -1.0"),
    ],
)
def test_errors_are_one_line(edgeinfer: Any, stdin: bytes, options: list[str], code: int, says: str) -> None:
    done = edgeinfer("chat", edgeinfer.model, "-q", *options, stdin=stdin)
    assert done.code == code
    assert says in done.err
    assert done.err.count("\n") == 1
    assert done.out == ("ech\n" if code == 10 else "")


def test_an_interrupt_of_a_piped_answer_ends_the_program() -> None:
    command = [sys.executable, "-m", "tests.cli.echo", "chat", "pyproject.toml"]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write("forever slow")
        child.stdin.close()
        child.stdin = None
        child.stderr.readline()
        time.sleep(1.0)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=15)
    finally:
        child.kill()
    assert child.returncode == 130
    assert out.startswith("on and on")
    assert "Traceback" not in err


# -- on a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, home: Path, *options: str, model: str = "pyproject.toml") -> None:
        env = {**os.environ, "EDGEINFER_HOME": str(home), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        arguments = ["-m", "tests.cli.echo", "chat", model, *options]
        self.child = pexpect.spawn(sys.executable, arguments, env=env, cwd=str(ROOT), encoding="utf-8", timeout=15)
        self.child.setwinsize(40, 200)
        self.child.delaybeforesend = 0.05

    def expect(self, *patterns: str) -> None:
        for pattern in patterns:
            self.child.expect_exact(pattern)

    def ready(self) -> None:
        """Wait for the prompt."""
        self.expect("\x1b[?2004h", ">", "\x1b[?25h")  # bracketed paste goes on, the prompt is drawn, the cursor shows

    def say(self, line: str) -> None:
        self.child.send(line + "\r")

    def end(self) -> int | None:
        """Wait for the end and return the exit code."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        status: int | None = self.child.exitstatus
        return status


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    running = Terminal(tmp_path)
    yield running
    running.child.close(force=True)


def test_talk_and_leave(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    terminal.say("good day")
    terminal.expect("echo: good day")
    terminal.ready()
    terminal.say("/help")
    terminal.expect("/reset", "/system", "/stats", "/save", "/load", "/quit")
    terminal.ready()
    terminal.say("/nonsense")
    terminal.expect("there is no command /nonsense; /help lists them")
    terminal.ready()
    terminal.say("//slash")
    terminal.expect("echo: /slash")
    terminal.ready()
    terminal.say("/quit")
    assert terminal.end() == 0


def test_the_oldest_turns_are_left_out_when_asked(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--n-ctx", "160", "--overflow", "drop-oldest-turns")
    try:
        for letter in "abc":
            terminal.ready()
            terminal.say(letter * 20)
            terminal.expect(f"echo: {letter * 20}")
        terminal.expect("[to fit the context, the 2 oldest messages (", " tokens) were left out]")
        terminal.ready()
        terminal.say("/cache")
        terminal.expect("this engine has no prefix cache")
        terminal.ready()
        terminal.say("/quit")
        assert terminal.end() == 0
    finally:
        terminal.child.close(force=True)


def test_end_of_input_exits_0(terminal: Terminal) -> None:
    terminal.ready()
    terminal.child.sendeof()
    assert terminal.end() == 0


def test_interrupts_at_the_prompt(terminal: Terminal) -> None:
    terminal.ready()
    terminal.child.sendintr()
    terminal.expect("Ctrl-C once more leaves")
    terminal.ready()
    terminal.say("still here")  # a message in between forgets the first interrupt
    terminal.expect("echo: still here")
    terminal.ready()
    terminal.child.sendintr()
    terminal.expect("Ctrl-C once more leaves")
    terminal.ready()
    terminal.child.sendintr()
    assert terminal.end() == 130


def test_an_interrupt_stops_the_answer_and_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    terminal.say("forever slow")
    terminal.expect("on and on and")
    terminal.child.sendintr()
    terminal.expect("[stopped]")
    terminal.ready()
    terminal.say("next")
    terminal.expect("echo: next")
    terminal.ready()
    terminal.say(f"/save {tmp_path}/talk.json")
    terminal.expect("saved 4 messages")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"] * 2
    assert saved["messages"][1]["content"].startswith("on and on and")


def test_two_interrupts_in_an_answer_end_the_program(tmp_path: Path) -> None:
    """The second one comes before the answer could end at its next token."""
    running = Terminal(tmp_path)
    code = (
        "import time, sys; from tests.cli import echo; from edgeinfer.cli.main import main\n"
        "old = echo._next\n"
        "def slow(history):\n"
        "    if len(history) > 60: time.sleep(15)\n"
        "    return old(history)\n"
        "echo._next = slow; echo.install(); sys.exit(main(['chat', 'pyproject.toml']))"
    )
    running.child.close(force=True)
    env = {**os.environ, "EDGEINFER_HOME": str(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    running.child = pexpect.spawn(sys.executable, ["-c", code], env=env, cwd=str(ROOT), encoding="utf-8", timeout=15)
    running.ready()
    running.say("forever")
    running.expect("on and on")
    time.sleep(0.5)
    running.child.sendintr()
    time.sleep(0.5)
    running.child.sendintr()
    assert running.end() == 130


def test_history_is_private_and_comes_back(tmp_path: Path) -> None:
    first = Terminal(tmp_path)
    first.ready()
    first.say("remember me")
    first.expect("echo: remember me")
    first.ready()
    first.child.sendeof()
    assert first.end() == 0
    path = tmp_path / "chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    second = Terminal(tmp_path)
    second.ready()
    second.child.send("\x1b[A")  # arrow up
    second.expect("remember me")
    second.child.send("\r")
    second.expect("echo: remember me")
    second.ready()
    second.child.sendeof()
    assert second.end() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_line_editing(terminal: Terminal) -> None:
    terminal.ready()
    terminal.child.send("world\x01hello \x05!\r")  # Ctrl-A and Ctrl-E
    terminal.expect("echo: hello world!")


def test_a_home_that_cannot_be_written_still_chats(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    running = Terminal(tmp_path / "home")
    running.expect("the prompt history is not kept")
    running.ready()
    running.say("hi")
    running.expect("echo: hi")
    running.ready()
    running.child.sendeof()
    assert running.end() == 0


def test_commands(tmp_path: Path) -> None:
    running = Terminal(tmp_path, "--system", "be kind")
    running.ready()
    running.say("/system")
    running.expect("system message: be kind")
    running.ready()
    running.say("/system be brief")
    running.expect("system message: be brief")
    running.ready()
    running.say("/stats")
    running.expect("figures after each answer: on")
    running.ready()
    running.say("one")
    running.expect("echo: one", "TTFT", "prefill", "decode", "stop")
    running.ready()
    running.say(f"/save {tmp_path}/a.json")
    running.expect("saved 2 messages")
    running.ready()
    running.say("/reset")
    running.expect("the conversation is forgotten")
    running.ready()
    running.say(f"/save {tmp_path}/b.json")
    running.expect("saved 0 messages")
    running.ready()
    running.say(f"/load {tmp_path}/a.json")
    running.expect("loaded 2 messages")
    running.ready()
    running.say('/system ""')
    running.expect("no system message")
    running.ready()
    running.say("/load nowhere.json")
    running.expect("there is no file nowhere.json")
    running.ready()
    running.say("/save")
    running.expect("/save wants one file name")
    running.ready()
    running.say("/quit")
    assert running.end() == 0
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["system"] == "be brief"
    assert saved["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "echo: one"},
    ]


def test_an_error_in_an_answer_does_not_end_the_chat(tmp_path: Path) -> None:
    running = Terminal(tmp_path, "--n-ctx", "120")
    running.ready()
    running.say("bad")
    running.expect("ech", "`edgeinfer inspect`")
    running.ready()
    running.say("x" * 150)
    running.expect("/reset forgets the conversation")
    running.ready()
    running.say("hello")
    running.expect("echo: hello")
    running.ready()
    running.say("forever")
    running.expect("[the context is full; /reset forgets the conversation]")
    running.ready()
    running.child.sendeof()
    assert running.end() == 0


def test_control_characters_do_not_reach_the_terminal(terminal: Terminal) -> None:
    terminal.ready()
    terminal.say("rude")
    terminal.expect("a\ufffd[2Jb\ufffdc")


def test_the_answer_may_go_to_a_file(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tests.cli.echo chat pyproject.toml -q > {tmp_path}/out.txt"
    running = Terminal(tmp_path)
    running.child.close(force=True)
    env = {**os.environ, "EDGEINFER_HOME": str(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    running.child = pexpect.spawn("bash", ["-c", command], env=env, cwd=str(ROOT), encoding="utf-8", timeout=15)
    running.ready()
    running.say("to a file")
    running.ready()
    running.child.sendeof()
    assert running.end() == 0
    assert (tmp_path / "out.txt").read_text() == "echo: to a file\n"


# -- the conversation -------------------------------------------------------------------------------------------------


@pytest.fixture
def talk() -> Conversation:
    return Conversation(echo_llm(), "a model", "a system")


def turn(talk: Conversation, text: str) -> str:
    answer = talk.ask(text, {}).text()
    talk.keep(text, answer)
    return answer


def test_save_and_load_give_the_same_conversation(talk: Conversation, tmp_path: Path) -> None:
    turn(talk, "héllo 😀")
    turn(talk, "again")
    path = tmp_path / "talk.json"
    talk.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = Conversation(echo_llm(), "other")
    other.load(path)
    assert (other.system, other.messages) == (talk.system, talk.messages)
    talk.save(path)  # its own file may be written again
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]


def test_a_turn_without_an_answer_leaves_no_trace(talk: Conversation) -> None:
    assert turn(talk, "blank") == ""
    assert talk.messages == []


def test_save_never_destroys_another_file(talk: Conversation, tmp_path: Path) -> None:
    other = tmp_path / "thesis.txt"
    other.write_text("precious")
    with pytest.raises(SettingError, match="exists and is not a saved chat"):
        talk.save(other)
    assert other.read_text() == "precious"
    with pytest.raises(SettingError, match="cannot write"):
        talk.save(tmp_path / "no" / "such" / "folder.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON document"),
        ("[" * 100_000, "no JSON document"),
        ("[]", "is not a saved chat"),
        ('{"format": "other"}', "is not a saved chat"),
        ('{"format": "edgeinfer chat", "version": 9}', "has version 9"),
        ('{"format": "edgeinfer chat", "version": 1, "messages": 3}', "is damaged"),
        ('{"format": "edgeinfer chat", "version": 1, "messages": [{"role": "user", "content": "x"}]}', "is damaged"),
        ('{"format": "edgeinfer chat", "version": 1, "messages": [{"role": "system"}]}', "is damaged"),
        ('{"format": "edgeinfer chat", "version": 1, "messages": [], "system": 3}', "is damaged"),
    ],
)
def test_files_that_are_no_chat(talk: Conversation, tmp_path: Path, text: str, says: str) -> None:
    turn(talk, "keep me")
    path = tmp_path / "talk.json"
    path.write_text(text)
    with pytest.raises(SettingError, match=says):
        talk.load(path)
    assert len(talk.messages) == 2
    with pytest.raises(NotFoundError):
        talk.load(tmp_path / "none")
    with pytest.raises(SettingError, match="cannot read"):
        talk.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # would wait for ever
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SettingError, match="not a regular file"):
            talk.load(path)
        with pytest.raises(SettingError, match="is not a saved chat"):
            talk.save(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("a\x9bb\x7f\r", "a\ufffdb\ufffd\ufffd"),
        ("right\u202eleft", "right\ufffdleft"),
        ("日本語 😀 é", "日本語 😀 é"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_parameters_are_shown_and_changed(terminal: Terminal) -> None:
    terminal.expect("sampling: temperature 0.8, top_k 40")
    terminal.ready()
    terminal.say("/params temperature=0.3 dry_multiplier=0.8")
    terminal.expect("sampling: temperature 0.3, top_k 40", "dry_multiplier 0.8")
    terminal.ready()
    terminal.say("/params temperature=hot")
    terminal.expect("temperature is 'hot'; wanted a number")
    terminal.ready()
    terminal.say("/params temperature= dry_multiplier=")
    terminal.expect("sampling: temperature 0.8, top_k 40")
    terminal.ready()
    terminal.say("/quit")
    assert terminal.end() == 0
