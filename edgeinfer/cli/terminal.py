"""Text in and out: streams that never fail on a character, a status line, the progress of a pull.

Answers go to stdout, everything else to stderr. rich is imported only where stderr is a terminal.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import SettingError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.status import Status

__all__ = [
    *(
        "PullProgress",
        "StatusLine",
        "check_text",
        "escaped",
        "json_text",
        "prepare_streams",
        "read_input",
        "say",
        "visible",
    ),
]


def prepare_streams() -> None:
    """Replace characters that the terminal's encoding lacks instead of failing on them; give closed streams a place."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str) -> None:
    """Print a line on stderr, safe on a terminal. A closed stderr is no reason to fail."""
    try:
        print(visible(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


# Control characters and escape sequences could move the cursor, rename the window or hide text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return text that is safe on a terminal: control characters but newline and tab become U+FFFD."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(value: object) -> str:
    """One line of text for a name or another value from outside: whatever is not printable is written as an escape.

    Control characters, escape sequences, direction marks and line breaks can then move nothing, and can be read.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(value))


def json_text(value: object) -> str:
    """A value as indented JSON in readable characters, those that could drive a terminal written as escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7F else f"\\u{ord(character):04x}"


def check_text(text: str, what: str) -> str:
    """Return text that came from the command line. Raises SettingError when its bytes were not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SettingError(f"{what} is not UTF-8 text: something is wrong after character {error.start}") from error
    return text


def read_input() -> str:
    """Read all of stdin, drop its last newline; "" when it is closed. Raises SettingError unless it is UTF-8."""
    if sys.stdin is None:
        return ""
    try:
        data = sys.stdin.buffer.read()
    except (OSError, ValueError, AttributeError) as error:
        raise SettingError(f"standard input cannot be read: {error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(
            f"standard input is not UTF-8 text: byte 0x{data[error.start]:02x} at position {error.start}; "
            "convert it first (for example with iconv)"
        ) from error
    text = text.replace("\r\n", "\n")
    return text[:-1] if text.endswith("\n") else text


_LINE_EVERY_S = 2.0  # between lines about progress where there is no terminal


class StatusLine:
    """Says what a slow step is doing: a spinner on a terminal, elsewhere a line now and then.

    It is the `progress` that `edgeinfer.load` calls, from whatever thread. With `quiet` it says nothing. Where there is no
    terminal, lines that count ("3/16") come at most every two seconds, so that a quick start says nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._status: Status | None = None
        self._last = ""
        self._said_at = time.monotonic()

    def __call__(self, text: Any, *more: Any) -> None:
        """Show a message."""
        line = visible(" ".join(str(part) for part in (text, *more))).strip()
        if self._quiet or not line or line == self._last:
            return
        self._last = line
        if not sys.stderr.isatty():
            counts = re.search(r"\d/\d", line)
            if not counts or time.monotonic() - self._said_at >= _LINE_EVERY_S:
                self._said_at = time.monotonic()
                say(line)
        elif self._status:
            self._status.update(_plain(line))
        else:
            from rich.console import Console

            self._status = Console(stderr=True).status(_plain(line))
            self._status.start()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()
            self._status = None


def _plain(text: str) -> str:
    """Text for rich with its [markup] taken literally."""
    return text.replace("[", r"\[")


class PullProgress:
    """Draws a pull on stderr: a bar on a terminal, a line for every tenth elsewhere. A store.Progress.

    With `quiet` it draws nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._label, self._total = "", 0
        self._said, self._said_at = 0, 0.0

    def status(self, text: str) -> None:
        """Say one line."""
        if self._quiet:
            return
        if self._bars:
            self._bars.console.print(visible(text), markup=False, highlight=False)
        else:
            say(text)

    def start(self, label: str, total: int | None, done: int) -> None:
        """Begin a transfer."""
        if self._quiet:
            return
        self._label, self._total = visible(label), total or 0
        self._said, self._said_at = done, time.monotonic()
        if not sys.stderr.isatty():
            size = f" ({self._total / 1e6:.1f} MB)" if self._total else ""
            say(f"pulling {self._label}{size}")
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        self.finish()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bars = Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._task = self._bars.add_task(_plain(self._label), total=total, completed=done)
        self._bars.start()

    def advance(self, done: int) -> None:
        """Show how far the transfer is."""
        if self._quiet:
            return
        if self._bars and self._task is not None:
            self._bars.update(self._task, completed=done)
            return
        step = max(self._total // 10, 10_000_000)
        if done - self._said >= step and time.monotonic() - self._said_at >= 1.0:
            share = f" of {self._total / 1e6:.1f} MB ({100 * done // self._total} %)" if self._total else " MB"
            say(f"{self._label}: {done / 1e6:.1f}{share}")
            self._said, self._said_at = done, time.monotonic()

    def finish(self) -> None:
        """Take the bar away."""
        if self._bars:
            self._bars.stop()
        self._bars, self._task = None, None

    def __enter__(self) -> PullProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
