"""What a file calls itself, its parts or its tensors never drives the terminal, wherever it is printed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.cli.terminal import escaped, json_text
from edgeinfer.errors import SettingError
from edgeinfer.store.cache import check_name
from edgeinfer.store.sources import model_name
from tests import gguf_bytes as make
from tests.tiny import build_tiny

# clears the screen; names the window; moves up; C1 control; bidi override and isolate; other lines; marks without width
EVIL = "a\x1b[2J\x1b]0;owned\x07\x1b[1A\x9b2J\u202egnp\u2066\u2028\r\nb\u200b\U000e0041\x7f"
UNSAFE = set("\x1b\x07\x9b\x7f\r\x00\u202e\u2066\u2028\u200b\U000e0041")


def safe(*texts: str) -> None:
    for text in texts:
        assert not UNSAFE & set(text), text


@pytest.mark.parametrize(
    "options", [[], ["--json"], ["--tensors"], ["--template"], ["--json", "--tensors", "--template"]]
)
def test_inspect(edgeinfer: Any, tmp_path: Path, options: list[str]) -> None:
    names = ("general.name", "general.license", "general.author", "general.base_model.0.name", f"general.{EVIL}")
    metadata: dict[str, Any] = dict.fromkeys(names, EVIL)
    metadata["tokenizer.ggml.pre"] = EVIL
    metadata["tokenizer.chat_template"] = EVIL
    path = build_tiny(tmp_path / "m.gguf", metadata=metadata)
    done = edgeinfer("inspect", str(path), *options)
    assert done.code == 0
    safe(done.out, done.err)
    if "--json" in options:
        assert json.loads(done.out)["name"] == EVIL  # nothing is lost
    else:
        assert r"a\x1b[2J\x1b]0;owned\x07\x1b[1A\x9b2J\u202egnp\u2066\u2028\r\nb\u200b" in done.out


def test_inspect_of_strange_tensors_families_and_pairs(edgeinfer: Any, tmp_path: Path) -> None:
    keys = [make.key("general.architecture", "string", EVIL), make.key(f"{EVIL}.block_count", "string", EVIL)]
    keys.append(make.key("tokenizer.ggml.tokens", "string[]", [EVIL, EVIL]))
    keys.append(make.key("tokenizer.ggml.model", "string", EVIL))
    keys.append(make.key("tokenizer.ggml.eos_token_id", "uint32", 1))
    a, b = tmp_path / "a.gguf", tmp_path / "b.gguf"
    a.write_bytes(make.gguf(keys, [make.tensor(EVIL, [8])], bytes(32)))
    b.write_bytes(make.gguf(keys[:1], [make.tensor(EVIL + "x", [8]), make.tensor(EVIL, [4], 0, 32)], bytes(64)))
    for options in (
        ["--tensors"],
        ["--hex", EVIL],
        ["--diff", str(b)],
        ["--draft", str(b)],
        ["--diff", str(b), "--json"],
    ):
        done = edgeinfer("inspect", str(a), *options)
        assert done.code == 0, done.err
        safe(done.out, done.err)
    done = edgeinfer("inspect", str(b), "--hex", EVIL + "y")  # the refusal names tensors that are called alike
    assert done.code == 5
    safe(done.out, done.err)


@pytest.mark.parametrize("command", ["inspect", "run", "chat"])
def test_refusals_name_files_and_keys_safely(edgeinfer: Any, tmp_path: Path, command: str) -> None:
    folder = tmp_path / EVIL.replace("/", "")
    folder.mkdir()
    path = folder / "m.gguf"
    for raw in (b"<html>", make.gguf([make.key(EVIL, "string", "x"), make.key(EVIL, "string", "x")]),
                make.gguf([], [make.tensor(EVIL, [33], 2)], bytes(64))):  # fmt: skip
        path.write_bytes(raw)
        done = (
            edgeinfer("inspect", str(path)) if command == "inspect" else edgeinfer(command, "--offline", str(path), "x")
        )
        assert done.code != 0
        assert done.err.count("\n") == 1 or command != "inspect"
        safe(done.out, done.err)


def test_models(edgeinfer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "user/.lmstudio/models/pub" / EVIL
    folder.mkdir(parents=True)
    build_tiny(folder / f"{EVIL}.gguf")
    for options in ([], ["--json"]):
        done = edgeinfer("models", *options)
        assert done.code == 0
        safe(done.out, done.err)
        assert "gnp" in done.out
    done = edgeinfer("rm", f"pub/{EVIL}/{EVIL}")
    assert done.code == 2
    safe(done.out, done.err)


def test_shell_completion_leaves_out_what_could_drive_the_terminal(edgeinfer: Any, tmp_path: Path) -> None:
    import click

    from edgeinfer.cli.completion import complete_model

    folder = tmp_path / "user/.lmstudio/models/pub/repo"
    folder.mkdir(parents=True)
    for name in (EVIL, "fine"):
        build_tiny(folder / f"{name}.gguf")
    command = click.Command("x")
    found = [item.value for item in complete_model(click.Context(command), click.Argument(["model"]), "pub")]
    assert found == ["pub/repo/fine"]


@given(st.text())
def test_escaped_is_one_printable_line(text: str) -> None:
    assert escaped(text).isprintable()
    assert all(c in escaped(text) for c in text if c.isprintable())


@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_json_text_is_the_same_value_in_printable_characters(value: Any) -> None:
    text = json_text(value)
    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))


# -- and never leads out of the folder of models ---------------------------------------------------------------------

PARTS = ("..", "/", "\\", "\0", ".", "~", "C:", "%2e%2e", "-00001-of-00002", ".gguf", "con", " ", "é", "\n", "-")


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join))
def test_the_name_of_any_file_is_a_folder_below(file: str) -> None:
    name = model_name(file)
    assert check_name(name) == name
    assert os.path.dirname(os.path.normpath(os.path.join("/models", name))) == "/models"


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join))
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    try:
        check_name(name)
    except SettingError:
        return
    assert os.path.dirname(os.path.normpath(os.path.join("/models", name))) == "/models"
    assert name.isascii()
    assert name.isprintable()
