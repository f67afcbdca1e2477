"""The tree of errors that edgeinfer raises on purpose, each with the exit code that the command line ends with.

    EdgeInferError                1   anything below, and the catch-all
    +-- SettingError              2   a setting or argument has a value that cannot be used
    +-- ModelFileError            3   the file is not a GGUF file that can be read (damaged, truncated, hostile, wrong version)
    +-- UnsupportedModelError     4   a sound file that this engine cannot run (family, tensor type, tokenizer)
    +-- NotFoundError             5   no such model name, file, sequence or kernel
    +-- DownloadError             6   a pull failed (network, checksum, disk space, offline)
    +-- MemoryLimitError          7   it would not fit in the memory that is available
    +-- ContextOverflowError      8   the prompt and answer do not fit in n_ctx
    +-- TemplateError             9   the chat template is missing, broken or refused the messages
    +-- NumericError             10   a forward pass gave logits that are not finite numbers
    +-- EngineError              11   the engine cannot go on (closed, compile failed)
    +-- MissingExtraError        12   an optional dependency is not installed; the message holds the pip command
    +-- PlatformError            13   this machine cannot run edgeinfer (32-bit, unknown instruction set)
    +-- BusyError                14   as many requests wait as may; try again later

A message is one sentence or two: what, where, wanted, got, and the next step. Nothing here prints; `cli/` does.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "ContextOverflowError",
    "DownloadError",
    "EdgeInferError",
    "EngineError",
    "MemoryLimitError",
    "MissingExtraError",
    "ModelFileError",
    "NotFoundError",
    "NumericError",
    "PlatformError",
    "SettingError",
    "TemplateError",
    "UnsupportedModelError",
]


class EdgeInferError(Exception):
    """The base of every error that edgeinfer raises on purpose."""

    exit_code = 1


class SettingError(EdgeInferError, ValueError):
    """A setting or argument has a value that cannot be used."""

    exit_code = 2


class ModelFileError(EdgeInferError):
    """The file is not a GGUF file that can be read."""

    exit_code = 3


class UnsupportedModelError(EdgeInferError):
    """The file is sound, but the engine cannot run what is in it."""

    exit_code = 4


class NotFoundError(EdgeInferError, LookupError):
    """A model name, a file, a sequence or a kernel does not exist."""

    exit_code = 5


class DownloadError(EdgeInferError):
    """A pull failed: network, checksum, disk space or offline mode."""

    exit_code = 6


class MemoryLimitError(EdgeInferError):
    """What was asked for does not fit in the memory that is available."""

    exit_code = 7


class ContextOverflowError(EdgeInferError, ValueError):
    """Prompt and answer do not fit in the context window."""

    exit_code = 8


class TemplateError(EdgeInferError):
    """The chat template is missing, broken or refused the messages."""

    exit_code = 9


class NumericError(EdgeInferError, ArithmeticError):
    """A forward pass gave logits that are not finite numbers."""

    exit_code = 10


class EngineError(EdgeInferError, RuntimeError):
    """The engine cannot go on: it is closed, or its kernels could not be compiled."""

    exit_code = 11


class MissingExtraError(EdgeInferError, ImportError):
    """An optional dependency is not installed; the message holds the pip command."""

    exit_code = 12


class PlatformError(EdgeInferError):
    """This machine cannot run edgeinfer."""

    exit_code = 13


class BusyError(EdgeInferError):
    """As many requests wait as may. `retry_after_s` is a guess at when there will be room."""

    exit_code = 14

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
