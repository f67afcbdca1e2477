from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from ..models import ROOT


def test_completion(edgeinfer: Any) -> None:
    done = edgeinfer("run", edgeinfer.model, "-p", "hello")
    assert (done.code, done.out) == (0, "|echo: hello\n")
    assert done.err == "compiling kernels\n"


def test_chat(edgeinfer: Any) -> None:
    done = edgeinfer("run", edgeinfer.model, "--chat", "-p", "hello", "-q")
    assert (done.code, done.out, done.err) == (0, "echo: hello\n", "")


def test_the_system_message_goes_first(edgeinfer: Any) -> None:
    arguments = ("--chat", "--system", "be brief", "-p", "hi", "--json")
    document = json.loads(edgeinfer("run", edgeinfer.model, *arguments).out)
    assert document["text"] == "echo: hi"
    assert document["timings"]["n_prompt"] == 1 + len("system: be brief\nuser: hi\nassistant: ")


@pytest.mark.parametrize("data", [b"from a pipe\n", b"from a pipe", b"\xef\xbb\xbffrom a pipe\r\n"])
def test_stdin(edgeinfer: Any, data: bytes) -> None:
    done = edgeinfer("run", edgeinfer.model, "-q", stdin=data)
    assert (done.code, done.out) == (0, "|echo: from a pipe\n")


def test_a_given_prompt_leaves_stdin_alone(edgeinfer: Any) -> None:
    assert edgeinfer("run", edgeinfer.model, "-q", "-p", "x", stdin=b"\xff\xfe").out == "|echo: x\n"


def test_json_is_one_document(edgeinfer: Any) -> None:
    done = edgeinfer("run", edgeinfer.model, "-p", "héllo", "--json", "--seed", "7")
    document = json.loads(done.out)
    timings = document.pop("timings")
    assert document == {
        "model": edgeinfer.model,
        "mode": "completion",
        "prompt": "héllo",
        "text": "|echo: héllo",
        "thinking": "",
        "tokens": list("|echo: héllo".encode()),
        "finish_reason": "stop",
        "limited_by": None,
        "dropped": None,
        "seed": 7,
    }
    assert timings["n_prompt"] == 6
    assert timings["n_out"] == 13
    assert timings["ttft_s"] > 0
    assert timings["decode_tok_s"] > 0


def test_one_token_has_no_decode_speed(edgeinfer: Any) -> None:
    document = json.loads(edgeinfer("run", edgeinfer.model, "-p", "x", "-n", "1", "--json").out)
    assert document["finish_reason"] == "length"
    assert document["timings"]["decode_tok_s"] is None


CUT = "note: the answer was cut: the context of 40 tokens is full (--n-ctx makes it larger, --overflow goes on)\n"


def test_an_answer_that_the_context_cut_says_so(edgeinfer: Any) -> None:
    for command in (("run", edgeinfer.model, "-p", "forever"), ("run", edgeinfer.model, "-p", "forever", "--json")):
        done = edgeinfer(*command, "--n-ctx", "40")
        assert (done.code, done.err) == (0, "compiling kernels\n" + CUT)
    document = json.loads(done.out)
    assert (document["finish_reason"], document["limited_by"]) == ("length", "context")
    assert edgeinfer("run", edgeinfer.model, "-p", "forever", "--n-ctx", "40", "-q").err == ""
    done = edgeinfer("run", edgeinfer.model, "-p", "forever", "--n-ctx", "40", "-n", "5", "--json")
    assert CUT not in done.err
    assert json.loads(done.out)["limited_by"] == "max_tokens"
    done = edgeinfer("chat", edgeinfer.model, "--n-ctx", "40", stdin=b"forever")
    assert (done.code, done.err) == (0, "compiling kernels\n" + CUT)


def test_the_kv_type_reaches_the_model(edgeinfer: Any) -> None:
    assert edgeinfer("run", edgeinfer.model, "-p", "x", "--kv-type", "q8_0").code == 0
    assert edgeinfer.calls[-1]["kv_type"] == "q8_0"
    assert edgeinfer("run", edgeinfer.model, "-p", "x", "--kv-type", "q9").code == 2


def test_options_reach_the_model(edgeinfer: Any) -> None:
    options = ("--n-ctx", "99", "-t", "2", "--seed", "3", "--offline")
    sampling = ("--temp", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1", "--repeat-penalty", "1.1")
    assert edgeinfer("run", edgeinfer.model, "-p", "x", *options, *sampling).code == 0
    assert edgeinfer.calls == [{"name": edgeinfer.model, "n_ctx": 99, "n_threads": 2, "seed": 3}]


def test_stop_and_ignore_eos_and_limit(edgeinfer: Any) -> None:
    stopped = edgeinfer("run", edgeinfer.model, "-q", "-p", "one two three", "--stop", "zzz", "--stop", " tw")
    assert stopped.out == "|echo: one\n"
    past = json.loads(edgeinfer("run", edgeinfer.model, "-p", "x", "--ignore-eos", "-n", "30", "--json").out)
    assert (past["finish_reason"], len(past["tokens"])) == ("length", 30)


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "says"),
    [
        ([], b"", 2, "the prompt is empty"),
        (["-p", ""], b"", 2, "the prompt is empty"),
        ([], None, 2, 'no prompt: give one with -p "TEXT" or pipe it in'),
        (["--system", "x", "-p", "x"], b"", 2, "--system goes with --chat"),
        ([], b"ab\xff\xfe", 2, "standard input is not UTF-8 text: byte 0xff at position 2"),
        (["-p", "caf\udce9"], b"", 2, "the prompt is not UTF-8 text: something is wrong after character 3"),
        (["-p", "x", "--temp", "-1"], b"", 2, "--temp is -1.0; wanted"),
        (["-p", "x", "--temp", "nan"], b"", 2, "--temp is nan; wanted"),
        (["-p", "x", "-n", "0"], b"", 2, "--max-tokens is 0; wanted"),
        (["-p", "x", "--top-p", "2"], b"", 2, "--top-p is 2.0; wanted"),
        (["-p", "x" * 100, "--n-ctx", "50"], b"", 8, "50"),
        (["-p", "bad", "--chat"], b"", 10, ""),
    ],
)
def test_refusals(edgeinfer: Any, arguments: list[str], stdin: bytes | None, code: int, says: str) -> None:
    done = edgeinfer("run", edgeinfer.model, "-q", *arguments, stdin=stdin)
    assert done.code == code
    assert says in done.err
    assert len([line for line in done.err.splitlines() if "Usage" not in line and "Try" not in line and line]) == 1


def test_a_model_without_template_falls_back_and_says_so(edgeinfer: Any) -> None:
    done = edgeinfer("run", edgeinfer.plain, "--chat", "-p", "hello")
    assert (done.code, done.out) == (0, "|echo: hello\n")
    assert "no usable chat template" in done.err


def test_stats(edgeinfer: Any) -> None:
    line = edgeinfer("run", edgeinfer.model, "-q", "-p", "hello", "--stats").err
    assert line.startswith("TTFT 0.")
    assert "prefill 5 tokens" in line
    assert "decode 12 tokens" in line
    assert line.endswith("| stop\n")


def test_unknown_models(edgeinfer: Any) -> None:
    del sys.modules["edgeinfer.load"]  # the real one
    done = edgeinfer("run", "no-such-model", "-p", "x")
    assert done.code == 5
    assert "there is no model or file 'no-such-model'" in done.err


def test_a_name_of_the_manifest_is_pulled_when_missing(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[str] = []
    monkeypatch.setattr("edgeinfer.cli.answer.pull_with_progress", lambda name, quiet: pulled.append(name))
    assert edgeinfer("run", "SmolLM2-135m", "-p", "x").code == 0
    assert pulled == ["smollm2-135m"]
    assert edgeinfer.calls[0]["name"] == "SmolLM2-135m"


@pytest.mark.parametrize("variable", ["", "EDGEINFER_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_pulls_nothing(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    done = edgeinfer("run", "smollm2-135m", "-p", "x", *([] if variable else ["--offline"]))
    assert done.code == 6
    assert "smollm2-135m is not on this disk and downloads are off" in done.err
    assert "run `edgeinfer pull smollm2-135m`" in done.err
    assert edgeinfer.calls == []


def test_characters_that_stdout_lacks_are_replaced() -> None:
    command = [sys.executable, "-m", "tests.cli.echo", "run", "pyproject.toml", "-q", "-p", "naïve 😀"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=env, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"|echo: na?ve ?\n", b"")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_ends_the_answer_and_shows_what_there_is(as_json: bool) -> None:
    options = ["--json"] if as_json else ["--stats"]
    command = [sys.executable, "-m", "tests.cli.echo", "run", "pyproject.toml", "-p", "forever slow", *options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert child.stderr is not None
        assert child.stderr.readline() == "compiling kernels\n"
        time.sleep(1.0)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode == 130
    if as_json:
        document = json.loads(out)
        assert document["finish_reason"] == "cancelled"
        assert document["text"].startswith("|on and on")
    else:
        assert out.startswith("|on and on")
        assert err.endswith("| cancelled\n")


def test_what_does_not_fit_is_refused_unless_asked_otherwise(edgeinfer: Any) -> None:
    prompt = "x" * 70 + " forever"
    done = edgeinfer("run", edgeinfer.model, "-p", prompt, "--n-ctx", "64", "-q")
    assert (done.code, done.out) == (8, "")
    assert "the prompt is 78 tokens and the context holds 64" in done.err
    options = ("--n-ctx", "64", "--overflow", "shift", "-n", "100", "--ignore-eos")
    done = edgeinfer("run", edgeinfer.model, "-p", prompt, *options, "--json")
    document = json.loads(done.out)
    assert len(document["tokens"]) == 100
    assert document["finish_reason"] == "length"
    assert document["dropped"].startswith(
        "to fit the context, 46 tokens of the prompt were left out, and the context was"
    )
    assert edgeinfer.calls[-1]["overflow"] == "shift"
    assert "[to fit the context, 46 tokens" in edgeinfer("run", edgeinfer.model, "-p", prompt, *options).err


def test_policies_for_conversations_go_with_chat(edgeinfer: Any) -> None:
    done = edgeinfer("run", edgeinfer.model, "-p", "hi", "--overflow", "summarise")
    assert done.code == 2
    assert "--overflow summarise goes with --chat: a plain prompt has no turns" in done.err
    assert edgeinfer("run", edgeinfer.model, "-p", "hi", "--overflow", "forget").code == 2
    assert edgeinfer("run", edgeinfer.model, "-p", "hi", "--chat", "--overflow", "summarise").out == "echo: hi\n"


def test_the_users_pre_tokenizer_is_passed_on(edgeinfer: Any) -> None:
    for command in (("run", edgeinfer.model, "-p", "hi"), ("chat", edgeinfer.model)):
        assert edgeinfer(*command, "--pre", "qwen2", stdin=b"hi").code == 0
        assert edgeinfer.calls[-1]["pre"] == "qwen2"
