from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer import errors

ROOT = Path(__file__).resolve().parent.parent


def in_python(code: str) -> str:
    """The output of a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT, timeout=60
    ).stdout.strip()


def test_the_surface_is_complete_and_sorted() -> None:
    surface = set(errors.__all__) | {
        "AsyncGeneration",
        "Chunk",
        "Generation",
        "LLM",
        "SamplingParams",
        "ScheduleSettings",
        "Timings",
        "__version__",
        "load",
    }
    assert set(edgeinfer.__all__) == surface
    assert edgeinfer.__all__ == sorted(
        edgeinfer.__all__, key=lambda name: (not name.isupper(), name.lower() == name, name)
    )
    assert dir(edgeinfer) == sorted(edgeinfer.__all__)  # and nothing that it merely imports
    for name in edgeinfer.__all__:
        assert getattr(edgeinfer, name) is not None
    with pytest.raises(AttributeError, match="no_such_thing"):
        edgeinfer.no_such_thing  # noqa: B018


def test_every_public_thing_says_what_it_is() -> None:
    for name in edgeinfer.__all__:
        thing = getattr(edgeinfer, name)
        assert name == "__version__" or inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_the_packages() -> None:
    try:
        version = importlib.metadata.version("edgeinfer")
    except importlib.metadata.PackageNotFoundError:
        version = "0.0.0"
    assert edgeinfer.__version__ == version


def test_the_version_outside_an_installation() -> None:
    code = (
        "import importlib.metadata as m\n"
        "def version(name): raise m.PackageNotFoundError(name)\n"
        "m.version = version\n"
        "import edgeinfer; print(edgeinfer.__version__)"
    )
    assert in_python(code) == "0.0.0"


@pytest.mark.parametrize(
    "first",
    [
        "import edgeinfer.load",
        "from edgeinfer.load import LLM",
        "from edgeinfer import load",
        "from edgeinfer import LLM",
    ],
)
def test_load_is_the_function_whatever_is_imported_first(first: str) -> None:
    assert (
        in_python(f"{first}\nimport edgeinfer, types\nprint(isinstance(edgeinfer.load, types.FunctionType))") == "True"
    )


def test_importing_is_light() -> None:
    code = "import sys, edgeinfer; print(sorted({'numpy', 'numba', 'llama_cpp', 'jinja2'} & set(sys.modules)))"
    assert in_python(code) == "[]"
    code = "import sys, edgeinfer.load; print(sorted({'numba', 'llama_cpp', 'sounddevice'} & set(sys.modules)))"
    assert in_python(code) == "[]"


def test_importing_is_quick() -> None:
    code = "import time; start = time.perf_counter(); import edgeinfer; print(time.perf_counter() - start)"
    assert min(float(in_python(code)) for _ in range(3)) < 0.05
