"""The import rule: a room imports only rooms above it, a library belongs to a room, light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .models import ROOT
from .tiny import build_tiny

PACKAGE = ROOT / "edgeinfer"
BASE = ("errors", "settings", "metrics")  # every room may import these; they import only each other
ROOMS = (
    "store",
    "formats",
    "model",
    "plan",
    "arch",
    "runtime",
    "kernels",
    "engine",
    "generate",
    "schedule",
    "profile",
    "evaluate",
    "llm",
    "load",
    "server",
    "voice",
    "cli",
)
FRONT = "edgeinfer"  # edgeinfer/__init__.py: the public names, for users and for the rooms after load
# who may import a library; a name ends in "/" for a whole room
ONLY = {
    "numba": ("runtime/", "kernels/", "engine/native.py"),
    "llvmlite": ("runtime/", "kernels/", "engine/native.py"),
    "llama_cpp": ("engine/llamacpp.py", "evaluate/llama_reference.py"),
    "llguidance": ("generate/grammar.py",),
    "matplotlib": ("cli/bench_plot.py",),
    "click": ("cli/",),
    "prompt_toolkit": ("cli/",),
    "rich": ("cli/",),
    "sounddevice": ("voice/audio.py",),
    "xllamacpp": ("evaluate/llama_server.py",),
    "gguf": (),
}
HEAVY = ("numba", "llvmlite", "llama_cpp", "sounddevice")


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room a file belongs to: its first folder, its own name at the top, or FRONT."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return FRONT if first == "__init__" else first


def imports(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Every imported module of a file as (line, absolute dotted name), wherever in the file it stands."""
    package = ["edgeinfer", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "edgeinfer":  # "from . import errors" means edgeinfer.errors
                for alias in node.names:
                    yield node.lineno, f"edgeinfer.{alias.name}" if alias.name in (*ROOMS, *BASE) else "edgeinfer"
            else:
                yield node.lineno, module


def complaints(path: Path, source: str) -> list[str]:
    """What a file imports and must not, in words."""
    room, where, found = room_of(path), path.relative_to(PACKAGE).as_posix(), []
    for line, name in imports(path, source):
        top, _, rest = name.partition(".")
        if top == "edgeinfer":
            wanted = rest.partition(".")[0] or FRONT
            if not may_import(room, wanted):
                found.append(f"{where}:{line}: {room} must not import {wanted}")
        elif top in ONLY and not any(where == w or (w.endswith("/") and where.startswith(w)) for w in ONLY[top]):
            found.append(f"{where}:{line}: {top} belongs to {', '.join(ONLY[top]) or 'nobody'}")
    return found


def may_import(room: str, wanted: str) -> bool:
    if room == wanted or (wanted in BASE and room not in BASE):
        return True
    if room in BASE:
        return wanted in BASE
    if room == FRONT:
        return wanted in ROOMS[: ROOMS.index("load") + 1]
    if wanted == FRONT:
        return ROOMS.index(room) > ROOMS.index("load")
    return wanted in ROOMS[: ROOMS.index(room)]


def test_every_file_belongs_to_a_room() -> None:
    strays = {room_of(path) for path in files()} - {*ROOMS, *BASE, FRONT, "__main__"}
    assert not strays, f"no rule says what {strays} may import; add it to ROOMS, in the order of the pipeline"


def test_rooms_import_only_rooms_above() -> None:
    found = [text for path in files() if room_of(path) != "__main__" for text in complaints(path, path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("where", "source", "complaint"),
    [
        ("model/a.py", "from ..engine import types", "model must not import engine"),
        ("model/a.py", "import edgeinfer.cli.main", "model must not import cli"),
        ("model/a.py", "def f():\n    from .. import load", "model must not import load"),
        ("model/a.py", "import numba", "numba belongs to runtime/, kernels/, engine/native.py"),
        ("engine/kv.py", "from numba import njit", "numba belongs to runtime/, kernels/, engine/native.py"),
        ("errors.py", "from .model import config", "errors must not import model"),
        ("store/a.py", "import edgeinfer", "store must not import edgeinfer"),
        ("__init__.py", "from .cli import main", "edgeinfer must not import cli"),
        ("schedule/a.py", "import click", "click belongs to cli/"),
    ],
)
def test_the_rule_sees_what_breaks_it(where: str, source: str, complaint: str) -> None:
    assert [text.split(": ", 1)[1] for text in complaints(PACKAGE / where, source)] == [complaint]


@pytest.mark.parametrize(
    ("where", "source"),
    [
        (
            "model/a.py",
            "from ..errors import ModelFileError\nfrom ..formats import FORMATS\nfrom .gguf import GGUFFile",
        ),
        ("engine/native.py", "import numba\nfrom ..kernels import attention"),
        ("cli/a.py", "import click\nfrom .. import __version__\nfrom ..load import load"),
        ("metrics.py", "from .errors import SettingError"),
    ],
)
def test_the_rule_lets_pass_what_keeps_it(where: str, source: str) -> None:
    assert complaints(PACKAGE / where, source) == []


def reads_environment(source: str) -> list[int]:
    """The lines that read or change the environment."""
    names = ("environ", "environb", "getenv", "putenv", "unsetenv")
    return [n.lineno for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute) and n.attr in names]


def test_only_settings_reads_the_environment() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in files()
        if room_of(path) != "settings"
        for line in reads_environment(path.read_text())
    ]
    assert not found, f"only settings.py reads the environment: {found}"


def test_no_file_is_too_long_to_read() -> None:
    lengths = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in files()}
    assert {name: n for name, n in lengths.items() if n > 500} == {}


def heavy_modules(code: str) -> str:
    """Run Python code in a fresh process and return the heavy libraries it has loaded at its end."""
    code = f"import sys\n{code}\nprint('HEAVY', *(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("HEAVY")[2].strip()


def test_import_edgeinfer_loads_nothing_heavy() -> None:
    assert heavy_modules("import edgeinfer") == ""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["inspect", "TINY"], ["models", "--json"]])
def test_light_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    tiny = build_tiny(tmp_path / "tiny.gguf")
    arguments = [str(tiny) if a == "TINY" else a for a in arguments]
    assert heavy_modules(f"from edgeinfer.cli.main import main\nassert main({arguments!r}) == 0") == ""
