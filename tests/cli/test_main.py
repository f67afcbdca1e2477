from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from edgeinfer import errors
from edgeinfer.cli import COMMANDS

from ..models import ROOT


def python(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, **more)


def test_help_lists_every_command(edgeinfer: Any) -> None:
    for arguments in (["--help"], ["-h"]):
        done = edgeinfer(*arguments)
        assert done.code == 0
        rows = [line.split()[0] for line in done.out.partition("Commands:\n")[2].splitlines()]
        assert rows == ["chat", "run", "bench", "inspect", "pull", "models", "rm", "completion"]


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_has_its_name_and_help(edgeinfer: Any, entry: Any) -> None:
    assert entry.load().name == entry.name
    done = edgeinfer(entry.name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: edgeinfer {entry.name} ")


def test_version(edgeinfer: Any) -> None:
    import edgeinfer as package

    done = edgeinfer("--version")
    assert (done.code, done.out) == (0, f"edgeinfer {package.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["--bogus"], "No such option"),
        (["run"], "Missing argument 'MODEL'"),
        (["run", "m", "-n", "many"], "'many' is not a valid integer"),
        (["completion", "cmd"], "is not one of"),
    ],
)
def test_usage_errors_exit_2(edgeinfer: Any, arguments: list[str], says: str) -> None:
    done = edgeinfer(*arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "--help" in done.err


def test_an_error_is_one_line_and_its_exit_code(edgeinfer: Any, tmp_path: Any) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"x")
    done = edgeinfer("run", str(tmp_path / "broken.gguf"), "-p", "x", "-q")
    assert (done.code, done.out) == (errors.TemplateError.exit_code, "")
    assert done.err == "edgeinfer: the template is broken\n"


def _raise(error: BaseException) -> Any:
    def load(*args: Any, **kwargs: Any) -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (MemoryError(), 7, "edgeinfer: the memory is full; use a smaller model or a smaller --n-ctx\n"),
        (ZeroDivisionError("a\nb"), 1, "edgeinfer: unexpected ZeroDivisionError: a b (a bug; EDGEINFER_DEBUG=1 shows"),
        (errors.NumericError("no numbers"), 10, "edgeinfer: no numbers\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_end(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str) -> None:
    monkeypatch.setattr(sys.modules["edgeinfer.load"], "load", _raise(error))
    done = edgeinfer("run", edgeinfer.model, "-p", "x")
    assert done.code == code
    assert done.err.startswith(says)
    assert done.err.count("\n") <= 1


def test_debug_shows_the_traceback() -> None:
    code = (
        "import importlib, sys; from edgeinfer.cli.main import main\n"
        "def load(*a, **k): raise ValueError('deep inside')\n"
        "importlib.import_module('edgeinfer.load').load = load\n"
        "sys.exit(main(['run', 'pyproject.toml', '-p', 'x']))"
    )
    for flag, shown in (("0", False), ("1", True)):
        done = python("-c", code, env={**os.environ, "EDGEINFER_DEBUG": flag})
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) == shown
        assert "edgeinfer: unexpected ValueError: deep inside" in done.stderr


def test_a_bad_setting_is_one_line(edgeinfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_DEBUG", "maybe")
    done = edgeinfer("models")
    assert (done.code, done.out) == (2, "")
    assert done.err == "edgeinfer: environment variable EDGEINFER_DEBUG is 'maybe'; wanted 1 or 0\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(edgeinfer: Any, shell: str) -> None:
    done = edgeinfer("completion", shell)
    assert done.code == 0
    assert "_EDGEINFER_COMPLETE" in done.out


def test_completion_knows_commands_and_models(tmp_path: Any) -> None:
    def complete(words: str, cword: str) -> list[str]:
        more = {"_EDGEINFER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": cword}
        env = {**os.environ, **more, "HOME": str(tmp_path), "EDGEINFER_HOME": str(tmp_path)}
        done = python("-c", "from edgeinfer.cli.main import main; main()", env=env)
        return [line.split(",", 1)[1] for line in done.stdout.splitlines()]

    assert complete("edgeinfer r", "1") == ["run", "rm"]
    assert complete("edgeinfer chat smol", "2") == ["smollm2-135m"]
    assert "--temp" in complete("edgeinfer run --t", "2")


def test_a_closed_pipe_is_silent() -> None:
    call = f"{sys.executable} -m tests.cli.echo run pyproject.toml -q -p 'forever slow' -n 500"
    script = f"{call} | head -c 5; code=${{PIPESTATUS[0]}}; echo; echo $code"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("redirect", "code", "says"),
    [(">/dev/full", 1, "edgeinfer: No space left on device\n"), (">&-", 0, ""), ("2>&-", 0, ""), ("<&-", 0, "")],
)
def test_full_and_closed_streams(redirect: str, code: int, says: str) -> None:
    script = f"{sys.executable} -m tests.cli.echo run pyproject.toml -q -p hello {redirect}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (code, says)
    assert done.stdout == ("" if redirect.startswith(">") else "|echo: hello\n")


@pytest.mark.parametrize("command", ["models --json", "--help", "completion bash"])
def test_a_reader_that_never_reads_is_no_error(command: str) -> None:
    script = f"{sys.executable} -m edgeinfer {command} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stderr == ""


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from edgeinfer.cli.main import main; main(['--help'])\n"
        "heavy = {'numba', 'numpy', 'rich', 'prompt_toolkit', 'httpx2', 'huggingface_hub', 'tokenizers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert time.perf_counter() - start < 1.0"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
