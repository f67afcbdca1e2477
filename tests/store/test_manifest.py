from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.store.manifest import ManifestModel, manifest, read_manifest

from ..models import ROOT

MANIFEST = ROOT / "models" / "manifest.toml"


def test_the_two_models_and_their_checksums() -> None:
    known = manifest()
    assert known.default == "smollm2-135m"
    smollm2, gemma3 = known.models
    assert (smollm2.name, smollm2.size, smollm2.quant) == ("smollm2-135m", 98362432, "Q4_1")
    assert smollm2.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (gemma3.name, gemma3.size, gemma3.quant, len(gemma3.parts)) == ("gemma3-270m", 253113024, "Q4_K_M", 4)
    assert gemma3.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert smollm2.chat
    assert not gemma3.chat


def test_parts_add_up_and_every_text_is_there() -> None:
    for model in manifest().models:
        assert sum(part.size for part in model.parts) == model.size
        assert all(getattr(model, f.name) not in ("", 0) for f in fields(ManifestModel) if f.name != "chat")


def test_readme_lists_every_model() -> None:
    text = (ROOT / "models" / "README.md").read_text()
    for model in manifest().models:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{model.name}`"))
        wheels = sum(part.wheel_size for part in model.parts)
        for shown in (f"{wheels / 1e6:.0f} MB", f"{model.size / 1e6:.0f} MB", f"{model.ram} MB", model.licence):
            assert shown in row


def test_find_ignores_case() -> None:
    found = manifest().find(" SmolLM2-135M ")
    assert found is not None
    assert found.name == "smollm2-135m"
    assert manifest().find("smollm2") is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("version = 1\n", "version = 2\n", "has version 2"),
        ('default = "smollm2-135m"', 'default = "nobody"', "default is 'nobody'"),
        ("size = 63963136", "size = 63963137", "bytes together"),
        ('sha256 = "b179', 'sha256 = "x179', "64 hexadecimal digits"),
        ('name = "gemma3-270m"', 'name = "smollm2-135m"', "two models of one name"),
        ('name = "gemma3-270m"', 'name = "../gemma3"', "a name has only"),
        ('file = "gemma-3-270m-q4_k_m.gguf"', 'file = "../x.gguf"', "plain file name"),
        ("chat = true", 'chat = "yes"', "wanted true or false"),
        ("ram = 377", "ram = true", "wanted a whole number"),
        ("ram = 377", "ram = -1", "wanted a whole number"),
        ("[[model.part]]", "[[model.piece]]", "part is None"),
        ("version = 1", "version = = 1", "cannot read the model manifest"),
    ],
)
def test_a_broken_manifest_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "manifest.toml"
    shutil.copy(MANIFEST, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SettingError, match=says):
        read_manifest(path)
