"""`edgeinfer inspect` beyond one report: --hex, --diff, --draft, --template, models in several files; and their JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.cli.main import main
from edgeinfer.errors import TemplateError
from edgeinfer.formats import by_name
from edgeinfer.model.gguf import GGUFFile
from tests import gguf_bytes as make
from tests.no_models import NO_MODELS
from tests.shards import split
from tests.tiny import build_tiny


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def good(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(good(capsys, *arguments, "--json"))
    return answer


# the keys that are promised; a change of these is a change of `schema`
KEYS = {
    *(
        "schema",
        "path",
        "shards",
        "size",
        "version",
        "byte_order",
        "alignment",
        "data_offset",
        "n_metadata",
        "n_tensors",
    ),
    *("architecture", "name", "about", "config", "hyperparameters", "rope", "parameters", "quantization", "tokenizer"),
    *("template", "memory", "memory_plans", "native", "llamacpp", "metadata", "threads"),
}


def test_the_keys_of_the_json_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf"))
    assert set(s) == KEYS
    assert s["schema"] == 1
    assert set(as_json(capsys, tmp_path / "m.gguf", "--tensors")) == {*KEYS, "tensors"}
    assert set(s["quantization"]) == {"file_type", "bytes", "bits_per_weight", "types", "groups"}
    assert set(s["parameters"]) == {"total", "active", "embedding", "tied_embeddings", "embeddings_stored_twice"}
    assert set(s["llamacpp"]) == {"runs", "problems", "available", "version"}


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_mix_by_tensor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kinds = {"default": "Q4_0", "blk.0.attn_v.weight": "Q8_0", "blk.2.attn_v.weight": "Q8_0", "token_embd": "Q8_0"}
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", types=kinds, n_layer=4))
    groups = {group["group"]: group for group in s["quantization"]["groups"]}
    assert groups["attn_v"]["types"] == {"Q8_0": [0, 2], "Q4_0": [1, 3]}
    assert groups["attn_v"]["bits_per_weight"] == (8.5 + 4.5) / 2
    assert groups["token_embd"]["types"] == {"Q8_0": [None]}
    assert sum(group["tensors"] for group in groups.values()) == s["n_tensors"]
    out = good(capsys, tmp_path / "m.gguf")
    assert re.search(r"^ +Q8_0 \(blk 0, 2\), Q4_0 \(blk 1, 3\): attn_v$", out, re.MULTILINE)
    assert re.search(r"Q4_0: .*attn_q, .*ffn_down", out)


def test_licence_and_origin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    metadata = {
        "general.license": "other",
        "general.license.link": "https://example.org/l",
        "general.author": "A\nB",
        "general.base_model.0.name": "Base 1B",
        "general.quantized_by": "me",
    }
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", metadata=metadata))
    assert s["about"]["license.link"] == "https://example.org/l"
    assert s["about"]["base_model.0.name"] == "Base 1B"
    out = good(capsys, tmp_path / "m.gguf")
    assert re.search(r"licence +other, https://example.org/l\n", out)
    assert re.search(r"made by +author A\\nB, quantized_by me\n", out)
    assert re.search(r"made from +Base 1B\n", out)


def test_rotary_scaling(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    metadata = {
        ".rope.scaling.type": "linear",
        ".rope.scaling.factor": 4.0,
        ".rope.scaling.original_context_length": 128,
    }
    path = build_tiny(tmp_path / "m.gguf", metadata=metadata, rope_freqs=np.ones(8, np.float32))
    s = as_json(capsys, path)
    assert s["rope"]["scaling.factor"] == 4.0
    assert s["rope"]["factor_tensors"] == ["rope_freqs.weight"]
    assert "linear scaling by 4 from 128 positions, factors in rope_freqs.weight" in good(capsys, path)


def test_memory_at_several_contexts(capsys: pytest.CaptureFixture[str], gemma3_path: Path) -> None:
    s = as_json(capsys, gemma3_path, "--n-ctx", 5000)
    rows = {(row["n_ctx"], row["kv_type"]): row for row in s["memory_plans"]}
    assert {n for n, _ in rows} == {2048, 4096, 5000, 8192, 16384, 32768}
    assert {kind for _, kind in rows} == {"f16", "q8_0", "q4_0"}
    assert rows[5000, "f16"]["total"] == s["memory"]["total"]
    # 3 of 18 layers keep every position of 2 x 256 numbers; the others 512 of the window, 256 of rewinding, 512 of a batch
    kept = (512 + 256 + 512 + 64) * 15 + 32768 * 3
    assert rows[32768, "f16"]["kv"] == kept * 2 * 256 * 2
    assert rows[32768, "q8_0"]["kv"] == kept * 2 * 256 * 34 // 32
    assert re.search(r"32,768 +543.5 MB +486.6 MB +456.3 MB\n", good(capsys, gemma3_path))


def test_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    metadata = {".expert_count": ("uint32", 8), ".expert_used_count": ("uint32", 2)}
    extra = {"blk.0.ffn_up_exps.weight": np.zeros((8, 32, 64), np.float32)}
    path = build_tiny(tmp_path / "m.gguf", metadata=metadata)
    assert as_json(capsys, path)["parameters"]["active"] is None
    import gguf

    writer = gguf.GGUFWriter(str(tmp_path / "moe.gguf"), "llama")
    writer.add_uint32("llama.expert_count", 8)
    writer.add_uint32("llama.expert_used_count", 2)
    for name, data in {**extra, "token_embd.weight": np.zeros((10, 64), np.float32)}.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    s = as_json(capsys, tmp_path / "moe.gguf")
    assert s["parameters"]["total"] == 8 * 32 * 64 + 640
    assert s["parameters"]["active"] == 2 * 32 * 64 + 640


def test_what_each_backend_would_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf"))
    assert (s["native"]["runs"], s["llamacpp"]["runs"]) == (True, True)
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", "rwkv7"))
    assert (s["native"]["runs"], s["llamacpp"]["runs"]) == (False, True)
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", "no-such-family"))
    assert s["llamacpp"]["problems"] == ["the family 'no-such-family' is not one that llama.cpp knows"]
    assert "cannot run      the family 'no-such-family'" in good(capsys, tmp_path / "m.gguf")
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", "clip"))
    assert "vision projector" in s["llamacpp"]["problems"][0]


@pytest.mark.parametrize("name", NO_MODELS)
def test_a_file_that_is_no_language_model_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """Both verdicts say what it is and nothing else: it lacks no key, no tokenizer and no tensor."""
    raw, says = NO_MODELS[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    s = as_json(capsys, path)
    assert s["native"]["problems"] == s["llamacpp"]["problems"]
    (problem,) = s["native"]["problems"]
    assert problem.startswith(f"this is {says}")
    assert (s["native"]["runs"], s["llamacpp"]["runs"], s["config"]) == (False, False, None)
    out = good(capsys, path)
    assert f"cannot run      this is {says}" in out
    assert "None" not in out


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([], "general.architecture is missing"),
        ([make.key("general.architecture", "uint32", 5)], "general.architecture is 5; wanted text"),
        ([make.key("general.architecture", "uint32[]", [5])], "general.architecture is an array of 1 uint32s; wanted"),
        ([make.key("general.architecture", "string", "")], "general.architecture is empty; wanted"),
    ],
)
def test_a_file_without_a_family(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keys: list[bytes], says: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(make.gguf([make.key("general.name", "string", "x"), *keys]))
    s = as_json(capsys, path)
    assert s["native"]["problems"][0].startswith(says)
    assert s["llamacpp"]["problems"][0].startswith(says)
    out = good(capsys, path)
    assert "None" not in out
    assert "the family" not in out.replace("the family it is", "")
    beside = good(capsys, path, "--draft", build_tiny(tmp_path / "d.gguf"))
    assert "None" not in beside


def test_the_keys_of_a_family_that_does_not_run_are_not_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = build_tiny(tmp_path / "m.gguf", "mamba", metadata={".attention.head_count": ("uint32", 0)})
    problems = as_json(capsys, path)["native"]["problems"]
    assert problems[0].startswith("the family 'mamba' is not one")
    assert not any("head_count" in problem for problem in problems)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_links_that_lead_nowhere_and_pipes_have_one_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "a.gguf").symlink_to(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").symlink_to(tmp_path / "a.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "gone.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    wanted = {
        "a.gguf": (5, "its symbolic links go round in a circle"),
        "dangling.gguf": (5, "does not exist"),
        "pipe.gguf": (3, "not a regular file"),
    }
    for name, (code, says) in wanted.items():
        assert main([command, str(tmp_path / name), *(["--prompt", "hello"] if command == "run" else [])]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert says in err


@pytest.mark.llama_cpp
def test_the_families_of_llama_cpp_are_those_it_has() -> None:
    """Every name is among the library's strings; the linker lets a string be the end of a longer one."""
    import llama_cpp

    from edgeinfer.profile.llamacpp_families import LLAMACPP_FAMILIES, LLAMACPP_VERSION

    assert LLAMACPP_VERSION.endswith(llama_cpp.__version__)
    (library,) = Path(llama_cpp.__file__).parent.glob("lib/libllama.so")
    strings = library.read_bytes()
    assert {name for name in LLAMACPP_FAMILIES if name.encode() + b"\0" not in strings} == set()
    assert b"no-such-family\0" not in strings


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"omit_tensors": ("blk.1.ffn_norm.weight",)}, "has no tensor 'blk.1.ffn_norm.weight'"),
        ({"replace_tensors": {"blk.1.attn_q.weight": np.ones((64, 32), np.float32)}}, "blk.1.attn_q.weight"),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    """The verdict plans the model as the engine would."""
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", **more))
    assert s["native"]["runs"] is False
    assert any(says in problem for problem in s["native"]["problems"])


# -- several files ---------------------------------------------------------------------------------------------------


def test_a_model_in_several_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = build_tiny(tmp_path / "whole.gguf")
    shards = split(whole, tmp_path / "s", 8)
    s, w = as_json(capsys, shards[2]), as_json(capsys, whole)
    assert [row["path"] for row in s["shards"]] == [str(path) for path in shards]
    assert s["native"]["runs"] is True
    for key in ("parameters", "quantization", "tokenizer", "template", "memory", "config"):
        assert s[key] == w[key], key
    out = good(capsys, *reversed(shards))
    assert "shards          3 files\n" in out
    assert f"{shards[1].name}  " in out
    shards[1].unlink()
    code, _, err = run(capsys, shards[0])
    assert code == 3
    assert "model-00002-of-00003.gguf" in err
    assert err.count("\n") == 1
    for files in ((whole, shards[0]), (shards[0], whole), (whole, whole)):  # not a bad file but a bad list
        code, out, err = run(capsys, *files)
        assert (code, out) == (2, "")
        assert f"{whole} is a whole model" in err


# -- hex -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_hex_shows_bytes_beside_their_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", types={"default": name})
    h = as_json(capsys, path, "--hex", "blk.1.attn_q.weight", "--blocks", 3)
    fmt = by_name(name)
    assert (h["type"], h["block_size"], h["block_bytes"]) == (name, fmt.block_size, fmt.block_bytes)
    assert len(h["blocks"]) == 3
    raw = b"".join(bytes.fromhex(block["bytes"]) for block in h["blocks"])
    with GGUFFile.open(path) as file:
        info = file.tensors["blk.1.attn_q.weight"]
        assert raw == file.data(info.name)[: len(raw)].tobytes()
        assert [block["offset"] for block in h["blocks"]] == [info.offset + i * len(raw) // 3 for i in range(3)]
    # decoded by the `gguf` package
    import gguf

    theirs = gguf.dequantize(np.frombuffer(raw, np.uint8), gguf.GGMLQuantizationType[name])
    assert [w for block in h["blocks"] for w in block["weights"]] == theirs.reshape(-1).tolist()
    out = good(capsys, path, "--hex", "blk.1.attn_q.weight")
    assert "block 1, at byte" in out
    assert bytes.fromhex(h["blocks"][0]["bytes"])[:16].hex(" ") in out
    assert f"{theirs.reshape(-1)[0]:.6g}" in out


def test_hex_of_what_is_not_there_or_not_decoded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf")
    code, _, err = run(capsys, path, "--hex", "blk.1.attn.q.weight")
    assert code == 5
    assert "did you mean blk.1.attn_q.weight" in err
    assert run(capsys, path, "--hex", "output.weight", "--blocks", 0)[0] == 2
    assert run(capsys, path, "--hex", "output.weight", "--diff", path)[0] == 2
    raw = bytearray(path.read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = raw.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 2 * 8
    raw[at : at + 4] = (200).to_bytes(4, "little")
    path.write_bytes(raw)
    h = as_json(capsys, path, "--hex", name.decode())
    assert (h["type"], h["blocks"][0]["weights"], len(h["blocks"][0]["bytes"])) == ("unknown (200)", None, 64)
    assert "cannot be shown" in good(capsys, path, "--hex", name.decode())


def test_hex_of_weights_that_are_no_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = np.full((128, 64), np.nan, np.float32)
    path = build_tiny(tmp_path / "m.gguf", replace_tensors={"blk.0.ffn_up.weight": bad})
    assert as_json(capsys, path, "--hex", "blk.0.ffn_up.weight")["blocks"][0]["weights"] == ["nan"] * 8
    assert "nan" in good(capsys, path, "--hex", "blk.0.ffn_up.weight")


# -- two files -------------------------------------------------------------------------------------------------------


def test_diff(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = build_tiny(tmp_path / "a.gguf", metadata={"general.name": "one"})
    b = build_tiny(tmp_path / "b.gguf", metadata={"general.name": "two"}, types={"attn_k": "Q8_0"}, n_layer=3)
    out = good(capsys, a, "--diff", b)
    for wanted in ("general.name: 'one' -> 'two'", "llama.block_count: 2 -> 3", "b only          blk.2.attn_q.weight",
                   "type            blk.0.attn_k.weight: F32 -> Q8_0, 0."):  # fmt: skip
        assert wanted in out
    d = as_json(capsys, a, "--diff", b)
    assert d["same"] is False
    assert (d["a"]["path"], d["b"]["path"]) == (str(a), str(b))
    assert "yes: every metadata key and all 21 tensors" in good(capsys, a, "--diff", a)


def test_a_long_diff_is_cut_and_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = build_tiny(tmp_path / "a.gguf", n_layer=8)
    b = build_tiny(tmp_path / "b.gguf", n_layer=8, seed=1)
    out = good(capsys, a, "--diff", b)
    assert "content         35 more; --json lists all" in out
    assert len(as_json(capsys, a, "--diff", b)["tensors"]["content"]) == 8 * 9 + 3


def test_draft(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = build_tiny(tmp_path / "t.gguf", n_layer=4)
    draft = build_tiny(tmp_path / "d.gguf", n_layer=1)
    out = good(capsys, target, "--draft", draft)
    assert "can draft       yes: every id means the same text in both" in out
    sizes = []
    for path in (target, draft):
        with GGUFFile.open(path) as file:
            sizes.append((sum(info.n_elements for info in file), sum(info.n_bytes for info in file)))
    by = [f"{a / b:.3g}" for a, b in zip(*sizes, strict=True)]
    assert f"the draft is {by[0]} times smaller ({by[1]} times smaller by bytes)\n" in out
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(NO_MODELS["adapter"][0])
    assert "problem         the draft is a LoRA adapter: it changes" in good(capsys, target, "--draft", adapter)
    assert as_json(capsys, target, "--draft", adapter)["compatible"] is False
    larger = good(capsys, draft, "--draft", target)
    assert f"the draft is {by[0]} times larger ({by[1]} times larger by bytes)\n" in larger
    assert "the draft is as large (as large by bytes)\n" in good(capsys, draft, "--draft", draft)
    assert as_json(capsys, target, "--draft", draft)["compatible"] is True
    other = build_tiny(tmp_path / "o.gguf", tokenizer="spm")
    out = good(capsys, target, "--draft", other)
    assert "can draft       no" in out
    assert "problem" in out
    assert run(capsys, target, "--draft", tmp_path / "none.gguf")[0] == 5
    assert run(capsys, target, "--draft", draft, "--diff", draft)[0] == 2


# -- template --------------------------------------------------------------------------------------------------------


def test_a_model_whose_template_always_fails_generates_and_cannot_chat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refusing = "{{ bos_token }}{{ raise_exception('not for you') }}"
    for source, says in ((refusing, "the chat template refuses even a chat of one message: "), ("{% if %}", "line 1")):
        path = build_tiny(tmp_path / "m.gguf", template=source)
        out = good(capsys, path)
        assert "  generates       yes (llm.generate, `edgeinfer run` without --chat): every tensor, the family" in out
        line = next(line for line in out.splitlines() if "cannot chat" in line)
        assert says in line
        assert "runs  " not in out
        found = as_json(capsys, path)
        assert found["native"]["runs"] is True
        assert found["template"]["refuses"] in line
        with edgeinfer.load(path) as llm:  # and so it is
            assert llm.generate("ab", max_tokens=3, ignore_eos=True, seed=1).timings is not None
            with pytest.raises(TemplateError):
                llm.chat([{"role": "user", "content": "hi"}])
    assert "not for you" in good(capsys, build_tiny(tmp_path / "m.gguf", template=refusing))
    sound = build_tiny(tmp_path / "m.gguf", template="{{ messages[0].content }}")
    assert "runs            yes" in good(capsys, sound)
    assert as_json(capsys, sound)["template"]["refuses"] is None


def test_the_template_is_shown_by_line_and_linted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lint itself is tested where it lives; here that it is asked, with the file's tokenizer, and shown."""
    asked = []

    def lint(source: str, tokenizer: Any) -> list[types.SimpleNamespace]:
        asked.append((source, tokenizer and tokenizer.n_vocab))
        return [types.SimpleNamespace(severity="warning", line=2, text="\x1b[2J is odd", fatal=False)]

    module = types.ModuleType("edgeinfer.model.template_lint")
    module.lint = lint  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "edgeinfer.model.template_lint", module)
    source = "{{ messages[0].content }}\n{% if tools %}\x1b]0;x\x07{% endif %}"
    path = build_tiny(tmp_path / "m.gguf", template=source, metadata={"tokenizer.chat_template.tool_use": "x"})
    out = good(capsys, path, "--template")
    assert "   1  {{ messages[0].content }}" in out
    assert r"   2  {% if tools %}\x1b]0;x\x07{% endif %}" in out
    assert r"lint            warning in line 2: \x1b[2J is odd" in out
    assert "others for tool_use" in out
    with GGUFFile.open(path) as file:
        assert asked == [(source, len(file.metadata["tokenizer.ggml.tokens"]))]  # type: ignore[arg-type]
    s = as_json(capsys, path, "--template")["template"]
    assert (s["source"], s["lint"]) == (source, [{"severity": "warning", "line": 2, "text": "\x1b[2J is odd"}])
    monkeypatch.setattr("edgeinfer.profile.summary.LINT_TOKENS", 10)
    asked.clear()
    good(capsys, path)  # without a tokenizer, which would take time that nobody asked to spend
    good(capsys, build_tiny(tmp_path / "m.gguf", template=source, pre="no-such-rule"), "--template")
    assert asked == [(source, None)] * 2
