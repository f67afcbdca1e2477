"""What a command refuses is said in the words of its options; the API's parameters are named in the API alone."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli.chat import _Prompt
from edgeinfer.cli.chat import chat as chat_command
from edgeinfer.cli.conversation import Conversation
from edgeinfer.cli.inspect import inspect as inspect_command
from edgeinfer.cli.refusals import in_options
from edgeinfer.cli.run import run as run_command
from edgeinfer.errors import ContextOverflowError, EdgeInferError, SettingError, TemplateError
from edgeinfer.generate.params import SAMPLERS
from edgeinfer.profile.threads import ThreadChoice

from .echo import echo_llm

WRONG = {
    "--temp": "-1",
    "--dynatemp-range": "-1",
    "--dynatemp-exp": "-1",
    "--top-k": "-1",
    "--top-p": "2",
    "--min-p": "2",
    "--typical": "2",
    "--top-nsigma": "-3",
    "--xtc-probability": "2",
    "--xtc-threshold": "2",
    "--min-keep": "-1",
    "--mirostat": "1",
    "--mirostat-ent": "-1",
    "--mirostat-lr": "2",
    "--samplers": "nonsense",
    "--repeat-penalty": "0",
    "--repeat-last-n": "-2",
    "--presence-penalty": "nan",
    "--frequency-penalty": "inf",
    "--dry-multiplier": "-1",
    "--dry-base": "0",
    "--dry-allowed-length": "0",
    "--dry-penalty-last-n": "-2",
    "--json-schema": "[]",
    "--regex": "a(",
    "--max-tokens": "0",
    "--seed": "-1",
}


@pytest.mark.parametrize("flag", WRONG)
def test_every_option_is_refused_by_its_own_name(edgeinfer: Any, flag: str) -> None:
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", flag, WRONG[flag])
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"edgeinfer: {flag} ")
    parameter = next(p.name for p in run_command.params if flag in p.opts)
    assert parameter is not None
    if "_" in parameter and parameter not in SAMPLERS:
        assert parameter not in done.err
    if flag != "--seed":  # a chat's comes to the model when it is loaded
        talk = edgeinfer("chat", edgeinfer.model, "-q", flag, WRONG[flag], stdin=b"x")
        assert (talk.code, talk.err) == (done.code, done.err)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SettingError("json_schema and regex are both given"), "--json-schema and --regex are both given"),
        (SettingError("json_schema, regex and grammar need x"), "--json-schema, --regex and --grammar need x"),
        (SettingError("n_threads is 0; wanted more"), "--threads is 0; wanted more"),
        (SettingError("stop[0] is 5; wanted a string"), "--stop[0] is 5; wanted a string"),
        (ContextOverflowError("load it with a larger n_ctx"), "load it with a larger --n-ctx"),
        (SettingError("thinking cannot be switched on"), "--think cannot be switched on"),
        # words, what somebody gave, places and the samplers' own names stay
        (SettingError("it is about temperature"), "it is about temperature"),
        (SettingError("regex 'n_ctx(' is bad"), "--regex 'n_ctx(' is bad"),
        (SettingError("json_schema is bad: at #/properties/max_tokens: x"),
         "--json-schema is bad: at #/properties/max_tokens: x"),
        (SettingError("samplers has 'x'; wanted names out of top_k; top_p; temperature"),
         "--samplers has 'x'; wanted names out of top_k; top_p; temperature"),
        (SettingError("stopped"), "stopped"),
        (TemplateError("max_tokens is what line 3 says"), "max_tokens is what line 3 says"),
    ],
)  # fmt: skip
def test_what_becomes_an_option(error: EdgeInferError, says: str) -> None:
    assert in_options(error, chat_command) == says
    assert in_options(error, None) == str(error)


def test_a_command_knows_its_own_options_only() -> None:
    assert in_options(SettingError("temperature is 1, n_ctx is 0"), inspect_command) == "temperature is 1, --n-ctx is 0"


def test_a_chats_options_and_its_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["/params min_p=5", "/params regex=[", "hello", "x" * 3000])

    def prompt(text: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    with echo_llm() as llm:
        chat = _Prompt(Conversation(llm, "m", thinking={"think_budget": -1}), {}, stats=False, quiet=True)
        monkeypatch.setattr(chat, "_session", lambda: type("Session", (), {"prompt": staticmethod(prompt)}))
        assert chat.run() == 0
        assert chat.chosen == {}
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("min_p is 5; wanted")
    assert err[1] == "regex '[' cannot be used: character 1: unclosed character class"
    assert err[2].startswith("--think-budget is -1; wanted")


def test_a_bad_regex_is_refused_when_it_is_set_in_the_options_words(edgeinfer: Any) -> None:
    with echo_llm() as llm:
        chat = _Prompt(Conversation(llm, "m"), {"top_k": 3}, stats=False, quiet=True)
        for name, value in (("regex", "["), ("json_schema", '{"type":"strin"}'), ("grammar", "root"), ("regex", "a{9")):
            with pytest.raises(SettingError) as refused:
                chat._line(f"/params {name}='{value}'")
            flag = "--" + name.replace("_", "-")
            if name != "grammar":  # there the option takes a file
                option = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", flag, value)
                assert option.err == f"edgeinfer: {str(refused.value).replace(name, flag, 1)}\n"
        assert chat.chosen == {"top_k": 3}
        assert chat._line("/params regex=[a-z]+")
        assert chat.chosen == {"top_k": 3, "regex": "[a-z]+"}


# -- grammars from pipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_schema_and_a_grammar_from_standard_input(edgeinfer: Any, name: str) -> None:
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--json-schema", name, stdin=b'{"enum": [5]}')
    assert (done.code, done.out) == (0, "5\n")
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--grammar", name, stdin=b'root ::= "yes"\r\n')
    assert (done.code, done.out) == (0, "yes\n")
    closed = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--grammar", name, stdin=None)
    assert (closed.code, closed.err) == (2, "edgeinfer: --grammar: standard input is closed\n")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_standard_input_is_not_read_twice(edgeinfer: Any, command: str) -> None:
    done = edgeinfer(command, edgeinfer.model, "-q", "--grammar", "-", stdin=b'root ::= "yes"')
    assert done.code == 2
    assert done.err.startswith("edgeinfer: --grammar - cannot read standard input: the ")


def test_a_schema_from_a_pipe(edgeinfer: Any) -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b'{"enum": [7]}')
        os.close(writer)
        done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--json-schema", f"/dev/fd/{reader}")
        assert (done.code, done.out) == (0, "7\n")
    finally:
        os.close(reader)


def test_a_pipe_without_an_end_is_refused(edgeinfer: Any, tmp_path: Path) -> None:
    path = tmp_path / "endless"
    os.mkfifo(path)

    def write() -> None:
        try:
            with path.open("wb") as file:
                while True:
                    file.write(b"x" * 65536)
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=write)
    thread.start()
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--grammar", str(path))
    thread.join()
    assert done.code == 2
    assert done.err.endswith("is larger than 4 MB\n")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("[1]", "--json-schema is an array; wanted a JSON schema: an object, true or false, or its text"),
        ("5", "--json-schema is a number; wanted a JSON schema"),
        ('"a"', "--json-schema is a string; wanted a JSON schema"),
        ("null", "--json-schema is null; wanted a JSON schema"),
        ("false", "--json-schema is false, which no JSON fits"),
        ("[", "--json-schema is no JSON document"),
    ],
)
def test_inline_schemas_that_cannot_be_used(edgeinfer: Any, schema: str, says: str) -> None:
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--json-schema", schema)
    assert done.code == 2
    assert done.err.startswith(f"edgeinfer: {says}")


def test_true_is_any_json(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for schema in ("true", " true", "{}"):
        done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "-n", "5", "--seed", "1", "--json-schema", schema)
        assert (done.code, done.err) == (0, "")


# -- quiet, and thinking that cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["run", "-p", "hi"], ["run", "--chat", "-p", "opinion", "-n", "20"], ["chat"]])
def test_quiet_silences_every_note(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    notes = []

    def load(name: str, **more: Any) -> Any:
        llm = echo_llm()
        llm.threads = ThreadChoice(1, "asked for", note="64 threads were asked for")
        notes.append(name)
        return llm

    monkeypatch.setattr(sys.modules["edgeinfer.load"], "load", load)
    loud = edgeinfer(*command, edgeinfer.model, stdin=b"opinion")
    assert "note: 64 threads were asked for" in loud.err
    quiet = edgeinfer(*command, edgeinfer.model, "-q", stdin=b"opinion")
    assert (quiet.code, quiet.err, quiet.out) == (loud.code, "", loud.out)
    assert len(notes) == 2


def test_quiet_silences_a_pull(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")

    def pull(source: str, settings: Any, progress: Any, **more: Any) -> Any:
        progress.status("looking")
        progress.start("m", 10**9, 0)
        progress.advance(10**9)
        return type("Model", (), {"name": "m", "size": 1, "licence": "", "path": path})

    monkeypatch.setattr("edgeinfer.store.pull", pull)
    assert "pulling m" in edgeinfer("run", "smollm2-135m", "-p", "x").err
    assert edgeinfer("run", "smollm2-135m", "-p", "x", "-q").err == ""


@pytest.mark.parametrize("command", [["run", "--chat", "-p", "x"], ["run", "-p", "x"], ["chat"]])
def test_contradictory_switches(edgeinfer: Any, command: list[str]) -> None:
    for flags in (["--think", "--no-think"], ["--no-think", "--think"]):
        done = edgeinfer(*command, edgeinfer.model, *flags, stdin=b"x")
        assert done.code == 2
        assert "--think and --no-think contradict each other" in done.err
        assert not edgeinfer.calls  # before anything is loaded


@pytest.mark.parametrize("command", [["run", "--chat", "-p", "x"], ["chat"]])
def test_thinking_of_a_model_without_it_is_refused_before_the_first_message(
    edgeinfer: Any, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = edgeinfer(*command, edgeinfer.plain, "--think", stdin=b"x")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == (
        "edgeinfer: --think cannot be switched on: this model file has no chat template; leave it out"
    )
    monkeypatch.setattr("edgeinfer.cli.conversation.Conversation.ask", lambda *a: pytest.fail("it was asked"))
    monkeypatch.setattr("tests.fakes.ToyTemplate.thinking", None)
    monkeypatch.setattr("tests.cli.echo.spelled", lambda tokenizer: None)
    done = edgeinfer(*command, edgeinfer.model, "--think", "-q", stdin=b"x")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "edgeinfer: --think cannot be switched on: this model's chat template knows no thinking; leave it out\n"
    )
