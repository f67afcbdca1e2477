from __future__ import annotations

import io
import sys

import pytest

from edgeinfer.cli import terminal
from edgeinfer.cli.terminal import PullProgress, StatusLine, check_text, prepare_streams, say
from edgeinfer.errors import SettingError


def test_lines_that_count_come_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with StatusLine() as status:
        for i in range(100):
            status(f"compiling: {i}/100")
            now += 0.125
        status("linking")
        status("linking")
        status("")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [*(f"compiling: {i}/100" for i in (16, 32, 48, 64, 80, 96)), "linking"]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusLine(quiet=True) as status:
        status("linking")
    assert capsys.readouterr().err == ""


def test_a_transfer_says_a_line_for_every_tenth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with PullProgress() as progress:
        progress.start("m", 200_000_000, 0)
        for done in range(0, 200_000_001, 5_000_000):
            progress.advance(done)
            now += 0.5
        progress.status("m: trying\x1b again")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "pulling m (200.0 MB)"
    assert lines[1:-1] == [f"m: {n}.0 of 200.0 MB ({n // 2} %)" for n in range(20, 201, 20)]
    assert lines[-1] == "m: trying\ufffd again"


def test_a_transfer_of_unknown_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with PullProgress() as progress:
        progress.start("m", None, 0)
        now += 2
        progress.advance(12_000_000)
    assert capsys.readouterr().err.splitlines() == ["pulling m", "m: 12.0 MB"]


def test_a_terminal_gets_a_bar_and_a_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with PullProgress() as progress:
        progress.start("model [x]", 2_000_000, 0)
        progress.advance(1_000_000)
        progress.status("a line")
        progress.start("model [x]", 2_000_000, 2_000_000)
    with StatusLine() as status:
        status("compiling [1/2]")
        status("compiling [2/2]")
    text = screen.getvalue()
    assert "model [x]" in text
    assert "1.0/2.0 MB" in text
    assert "a line" in text
    assert "compiling [2/2]" in text


def test_say_survives_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("to nobody")


def test_prepare_streams_replaces_what_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    prepare_streams()
    print("é 😀", end="", flush=True)
    assert raw.getvalue() == b"\xe9 ?"


def test_check_text() -> None:
    assert check_text("naïve", "it") == "naïve"
    with pytest.raises(SettingError, match="it is not UTF-8 text: something is wrong after character 1"):
        check_text("a\udcff", "it")
