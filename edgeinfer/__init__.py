"""edgeinfer: language models that answer on small machines, offline.

    import edgeinfer

    with edgeinfer.load("smollm2-135m") as llm:
        for chunk in llm.chat([{"role": "user", "content": "Hello!"}]):
            print(chunk.text, end="", flush=True)

What is named in `__all__` is the public surface and is kept stable. Importing it is cheap: numpy, numba and the rest
come when a model is loaded.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import (
    BusyError,
    ContextOverflowError,
    DownloadError,
    EdgeInferError,
    EngineError,
    MemoryLimitError,
    MissingExtraError,
    ModelFileError,
    NotFoundError,
    NumericError,
    PlatformError,
    SettingError,
    TemplateError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from .generate.chunk import Chunk
    from .generate.params import SamplingParams
    from .load import LLM, load
    from .metrics import Timings
    from .schedule.generation import AsyncGeneration, Generation
    from .schedule.options import ScheduleSettings

    __version__: str

__all__ = [
    "LLM",
    "AsyncGeneration",
    "BusyError",
    "Chunk",
    "ContextOverflowError",
    "DownloadError",
    "EdgeInferError",
    "EngineError",
    "Generation",
    "MemoryLimitError",
    "MissingExtraError",
    "ModelFileError",
    "NotFoundError",
    "NumericError",
    "PlatformError",
    "SamplingParams",
    "ScheduleSettings",
    "SettingError",
    "TemplateError",
    "Timings",
    "UnsupportedModelError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("edgeinfer")
        except PackageNotFoundError:  # run from a checkout that was never installed
            value = "0.0.0"
    elif name == "LLM":
        from .load import LLM as value
    elif name == "load":
        from .load import load as value
    elif name == "Chunk":
        from .generate.chunk import Chunk as value
    elif name == "AsyncGeneration":
        from .schedule.generation import AsyncGeneration as value
    elif name == "ScheduleSettings":
        from .schedule.options import ScheduleSettings as value
    elif name == "Generation":
        from .schedule.generation import Generation as value
    elif name == "SamplingParams":
        from .generate.params import SamplingParams as value
    elif name == "Timings":
        from .metrics import Timings as value
    else:
        raise AttributeError(f"module 'edgeinfer' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `edgeinfer.load` the function: importing the module of that name would put itself there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "load" and isinstance(value, ModuleType):
            value = value.load
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
