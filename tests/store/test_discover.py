from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeinfer.errors import NotFoundError
from edgeinfer.settings import Settings
from edgeinfer.store.cache import LocalModel, Record, look, quant_of
from edgeinfer.store.discover import local_models, resolve
from edgeinfer.store.manifest import manifest

from .made import gguf_bytes, home

DATA = gguf_bytes(1000)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    settings = home(tmp_path)
    # the folder of a real Ollama service must not show up in tests
    monkeypatch.setattr("edgeinfer.store.discover._ollama_folders", lambda settings: [settings.ollama_models])
    return settings


def put(path: Path, data: bytes = DATA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def by_name(settings: Settings) -> dict[str, LocalModel]:
    return {model.name: model for model in local_models(settings)}


def hub(settings: Settings, repo: str, files: dict[str, bytes], commit: str = "c1") -> Path:
    folder = settings.hf_hub_cache / f"models--{repo.replace('/', '--')}"
    for i, (name, data) in enumerate(files.items()):
        blob = put(folder / "blobs" / f"{commit}{i}", data)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return folder


def ollama(settings: Settings, where: str, digest: str, data: bytes | None = DATA) -> Path:
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    if data is not None:
        put(settings.ollama_models / "blobs" / f"sha256-{digest}", data)
    return put(settings.ollama_models / "manifests" / where, json.dumps({"layers": layers}).encode())


def test_nothing_anywhere(here: Settings) -> None:
    assert local_models(here) == []


def test_hugging_face_cache(here: Settings) -> None:
    hub(here, "Qwen/Q", {"q-q4_k_m.gguf": DATA, "sub/q-f16.gguf": DATA, "mmproj-q.gguf": DATA, "a.json": b"{}"})
    hub(here, "u/two", {"a-Q4_0.gguf": DATA, "b-Q4_0.gguf": DATA})
    found = by_name(here)
    assert set(found) == {"Qwen/Q:Q4_K_M", "Qwen/Q:F16", "u/two:a-Q4_0.gguf", "u/two:b-Q4_0.gguf"}
    model = found["Qwen/Q:Q4_K_M"]
    assert (model.size, model.quant, model.owner, model.problem) == (1000, "Q4_K_M", "huggingface", "")
    assert model.path.name == "q-q4_k_m.gguf"


def test_hugging_face_lists_a_blob_of_two_commits_once(here: Settings) -> None:
    folder = hub(here, "u/r", {"m-Q4_0.gguf": DATA}, "c1")
    other = folder / "snapshots/c2/m-Q4_0.gguf"
    other.parent.mkdir()
    other.symlink_to(folder / "blobs/c10")
    assert list(by_name(here)) == ["u/r:Q4_0"]


def test_shards_are_one_model(here: Settings) -> None:
    hub(here, "u/r", {f"m-F16-0000{i}-of-00002.gguf": gguf_bytes(1000 * i) for i in (1, 2)})
    (model,) = local_models(here)
    assert (model.name, model.size) == ("u/r:F16", 3000)


def test_hub_cache_variable(tmp_path: Path) -> None:
    settings = home(tmp_path, HF_HUB_CACHE=str(tmp_path / "elsewhere"))
    hub(settings, "u/r", {"m-Q4_0.gguf": DATA})
    assert resolve("u/r:Q4_0", settings).is_relative_to(tmp_path / "elsewhere")


def test_ollama(here: Settings) -> None:
    ollama(here, "registry.ollama.ai/library/qwen2.5/0.5b-instruct-q4_K_M", "a" * 64)
    ollama(here, "registry.ollama.ai/jo/own/latest", "b" * 64)
    ollama(here, "hf.co/u/r/Q8_0", "c" * 64)
    found = by_name(here)
    assert set(found) == {"qwen2.5:0.5b-instruct-q4_K_M", "jo/own:latest", "hf.co/u/r:Q8_0"}
    assert found["qwen2.5:0.5b-instruct-q4_K_M"].quant == "Q4_K_M"
    assert found["hf.co/u/r:Q8_0"].path.name == "sha256-" + "c" * 64


def test_lm_studio_and_its_pointer(here: Settings, tmp_path: Path) -> None:
    put(here.user_home / ".lmstudio/models/pub/repo/m-Q4_0.gguf")
    put(here.user_home / ".cache/lm-studio/models/old/repo/n.gguf")
    put(tmp_path / "moved/models/pub/repo/p.gguf")
    put(here.user_home / ".lmstudio-home-pointer", str(tmp_path / "moved").encode())
    assert set(by_name(here)) == {"pub/repo/m-Q4_0", "old/repo/n", "pub/repo/p"}


BAD = {
    "empty": (b"", "empty file"),
    "short": (b"GGU", "no GGUF file"),
    "cut": (b"GGUF\x03", "truncated"),
    "page": (b"  <!DOCTYPE html><html>" + b"x" * 2000, "a web page, not a model"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "a Git LFS pointer"),
    "old": (b"tjgg" + bytes(100), "a GGML file of before GGUF"),
    "json": (b'{"error": "no"}', "JSON text"),
}


def test_one_bad_file_never_breaks_the_list(here: Settings) -> None:
    for name, (data, _) in BAD.items():
        put(here.user_home / f".lmstudio/models/p/r/{name}.gguf", data)
        put(here.home / f"models/{name}.gguf", data)
    put(here.user_home / ".lmstudio/models/p/r/good.gguf")
    (here.user_home / ".lmstudio/models/p/r/folder.gguf").mkdir()
    (here.user_home / ".lmstudio/models/p/r/dead.gguf").symlink_to("nowhere")
    (here.user_home / ".lmstudio/models/p/r/loop").symlink_to(".")
    found = by_name(here)
    assert found["p/r/good"].problem == ""
    for name, (_, problem) in BAD.items():
        assert problem in found[name].problem
        assert problem in found[f"p/r/{name}"].problem
    assert "cannot be read" in found["p/r/dead"].problem
    assert "p/r/folder" not in found


def test_broken_ollama_manifests(here: Settings) -> None:
    base = here.ollama_models / "manifests/registry.ollama.ai/library"
    ollama(here, "registry.ollama.ai/library/good/latest", "a" * 64)
    ollama(here, "registry.ollama.ai/library/gone/latest", "b" * 64, None)
    ollama(here, "registry.ollama.ai/library/evil/latest", "../../../etc/passwd", None)
    for i, text in enumerate(("", "{", "[]", "3", '{"layers": 3}', '{"layers": [3]}', '{"layers": [{}]}', "[" * 9999)):
        put(base / f"bad{i}/latest", text.encode())
    put(base / "binary/latest", bytes(range(128, 256)))
    put(base / "cloud/latest", b'{"layers": []}')
    put(base / "huge/latest", b" " * (2 << 20))
    found = by_name(here)
    assert found.pop("good:latest").problem == ""
    assert found.pop("gone:latest").problem == "its file is missing"
    assert "cloud:latest" not in found
    assert len(found) == 11
    assert all("its manifest cannot be read" in model.problem for model in found.values())


def test_broken_records_of_pulled_models(here: Settings) -> None:
    files = '{"source": "x", "files": [{"name": "../../escape.gguf", "size": 1, "sha256": ""}]}'
    for i, text in enumerate(("", "[]", "{}", '{"source": "x", "files": []}', files)):
        put(here.home / f"models/bad{i}/m.gguf")
        put(here.home / f"models/bad{i}/model.json", text.encode())
    put(here.home / "models/good/m.gguf")
    Record("somewhere", (("m.gguf", 1000, "0" * 64),), "Q4_0").write(here.home / "models/good")
    (here.home / "models/empty").mkdir()
    found = by_name(here)
    assert found.pop("good").problem == ""
    assert len(found) == 5
    assert all("model.json is damaged" in model.problem for model in found.values())


# -- what a name means ------------------------------------------------------------------------------------------------


def test_resolve_prefers_files_then_pulled_then_other_programs(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pulled = put(here.home / "models/mine/m.gguf")
    Record("hf:u/r:Q4_0", (("m.gguf", 1000, ""),)).write(pulled.parent)
    hub(here, "u/r", {"m-Q8_0.gguf": DATA})
    ollama(here, "registry.ollama.ai/library/qwen/0.5b", "a" * 64)
    assert resolve("mine", here) == pulled
    assert resolve("MINE", here) == pulled
    assert resolve("hf:u/r:Q4_0", here) == pulled
    assert resolve("u/r:q8_0", here).name == "m-Q8_0.gguf"
    assert resolve("ollama:qwen:0.5b", here).name == "sha256-" + "a" * 64
    put(tmp_path / "mine")
    assert resolve("mine", here) == Path("mine")
    assert resolve(tmp_path / "mine", here) == tmp_path / "mine"


def test_resolve_leaves_a_folder_to_the_reader(here: Settings, tmp_path: Path) -> None:
    assert resolve(str(tmp_path), here) == tmp_path
    assert resolve(tmp_path, here) == tmp_path


def test_resolve_a_folder_named_like_a_model_is_no_model(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    with pytest.raises(NotFoundError, match="run `edgeinfer pull smollm2-135m`"):
        resolve("smollm2-135m", here)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smollm2-135m", "model smollm2-135m is not on this disk; run `edgeinfer pull smollm2-135m`"),
        ("hf:u/r:Q4_0", "hf:u/r:Q4_0 is not on this disk; run `edgeinfer pull hf:u/r:Q4_0`"),
        ("smollm-135m", "no model or file 'smollm-135m'; did you mean smollm2-135m"),
        ("zzz", "`edgeinfer models` lists what is there"),
        ("/no/such/dir/m.gguf", "there is no file /no/such/dir/m.gguf"),
        ("m.gguf", "there is no file m.gguf"),
        ("", "no model or file ''"),
        ("x" * 5000, "no model or file"),
        ("a\0b", "no model or file"),
    ],
)
def test_resolve_refusals(here: Settings, name: str, says: str) -> None:
    with pytest.raises(NotFoundError, match=says):
        resolve(name, here, manifest())


def test_resolve_says_why_a_model_is_of_no_use(here: Settings) -> None:
    put(here.home / "models/m/m.gguf", b"")
    Record("x", (("m.gguf", 1000, ""),)).write(here.home / "models/m")
    with pytest.raises(NotFoundError, match="model m cannot be used: m.gguf has 0 bytes, not 1000; pull it again"):
        resolve("m", here)


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gemma-3-270m-q4_k_m.gguf", "Q4_K_M"),
        ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("m-UD-Q4_K_XL.gguf", "Q4_K_XL"),
        ("m-bf16-00001-of-00002.gguf", "BF16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m.gguf", ""),
        ("qq4model.gguf", ""),
    ],
)
def test_quant_of(file: str, quant: str) -> None:
    assert quant_of(file) == quant


def test_look_at_a_folder_and_at_nothing(tmp_path: Path) -> None:
    assert look(tmp_path).startswith("cannot be read")
    assert look(tmp_path / "none").startswith("cannot be read")
