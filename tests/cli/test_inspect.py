"""`edgeinfer inspect`: what it says about sound, odd and bad files, how it ends, and that it stays light."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli.main import main
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer
from tests import gguf_bytes as make
from tests.models import ROOT
from tests.tiny import build_tiny


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_smollm2(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> None:
    s = as_json(capsys, smollm2_path)
    assert (s["version"], s["n_metadata"], s["n_tensors"], s["size"]) == (3, 33, 272, 98362432)
    assert (s["architecture"], s["config"]["n_layer"], s["config"]["n_ctx_train"]) == ("llama", 30, 8192)
    # 49152 x 576 embeddings, 30 layers of 3,538,944 weights and two norms, one last norm
    assert (
        s["parameters"]["total"] == 49152 * 576 + 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576 + 2 * 576) + 576
    )
    assert s["parameters"]["tied_embeddings"] is True
    assert {row["type"]: row["tensors"] for row in s["quantization"]["types"]} == {"Q4_1": 210, "Q8_0": 1, "F32": 61}
    assert s["quantization"]["file_type"] == "Q4_1"
    assert (s["tokenizer"]["kind"], s["tokenizer"]["pre"], s["tokenizer"]["n_tokens"]) == ("BPE", "smollm", 49152)
    assert s["tokenizer"]["special"]["eos"] == {"id": 2, "text": "<|im_end|>"}
    assert [token["id"] for token in s["tokenizer"]["ends"]] == [0, 2, 4]
    wanted = {"present": True, "parses": True, "error": None, "length": 368, "others": []}
    assert {key: s["template"][key] for key in wanted} == wanted
    assert s["memory"]["n_ctx"] == 4096
    assert s["memory"]["kv"] == 4096 * 30 * 2 * 3 * 64 * 2
    assert s["native"] == {"runs": True, "problems": []}
    assert "tensors" not in s


def test_gemma3(capsys: pytest.CaptureFixture[str], gemma3_path: Path) -> None:
    s = as_json(capsys, gemma3_path, "--tensors", "--n-ctx", 1000)
    assert s["parameters"] == {
        "total": 268_098_176,
        "active": None,
        "embedding": 262144 * 640,
        "tied_embeddings": True,
        "embeddings_stored_twice": False,
    }
    types = {row["type"]: row["tensors"] for row in s["quantization"]["types"]}
    assert types == {"F32": 109, "Q5_0": 81, "Q4_K": 27, "Q8_0": 10, "Q6_K": 9}
    assert s["tokenizer"]["kind"] == "SPM"
    assert [token["text"] for token in s["tokenizer"]["ends"]] == ["<eos>", "<end_of_turn>"]
    assert s["template"]["present"] is False
    assert s["memory"]["kv"] == 1000 * 18 * 2 * 256 * 2
    assert s["memory"]["weights"] == sum(t["bytes"] for t in s["tensors"])
    assert len(s["tensors"]) == 236
    assert s["metadata"]["tokenizer.ggml.tokens"] == {"kind": "string", "length": 262144}
    assert s["native"]["runs"] is True


def test_plain_text_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = build_tiny(tmp_path / "m.gguf", "gemma3", {"default": "Q4_K", "attn_v": "Q6_K"}, template=None)
    code, out, err = run(capsys, path, "--tensors")
    assert (code, err) == (0, "")
    assert "\x1b" not in out  # colours are for terminals
    for wanted in ("GGUF v3", "gemma3", "Q4_K", "Q6_K", "sliding window 32", "counted once", "chat template",
                   "KV cache", "SPM", "<|im_end|>", "runs", "blk.1.ffn_down.weight"):  # fmt: skip
        assert wanted in out
    assert "none; chat falls back to plain completion" in out


def test_colours_on_a_terminal(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    path = build_tiny(tmp_path / "m.gguf")

    def output(**env: str) -> str:
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "edgeinfer", "inspect", str(path)]
        environment = {**os.environ, "TERM": "xterm-256color", **env}
        with subprocess.Popen(command, stdout=follower, stderr=follower, cwd=ROOT, env=environment) as process:
            os.close(follower)
            got = b""
            try:
                while piece := os.read(leader, 65536):
                    got += piece
            except OSError:  # Linux's way of saying that the other end is closed
                pass
            assert process.wait() == 0
        os.close(leader)
        return got.decode()

    coloured = output()
    assert "\x1b[" in coloured
    assert "tiny llama" in coloured
    assert "\x1b[" not in output(NO_COLOR="1")


# -- odd but sound files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_id", "wanted"), [(36, "re-quantize"), (40, "NVFP4"), (16, "IQ2_XXS"), (200, "unknown (200)")]
)
def test_types_that_do_not_run_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, type_id: int, wanted: str
) -> None:
    """Case A7: everything is shown, the exit code is 0, and the tensor, its type and the way out are named."""
    path = build_tiny(tmp_path / "m.gguf", n_embd=256)
    raw = bytearray(path.read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = raw.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 2 * 8
    raw[at : at + 4] = type_id.to_bytes(4, "little")
    path.write_bytes(raw)
    s = as_json(capsys, path, "--tensors")
    assert s["native"]["runs"] is False
    assert any("blk.1.ffn_up.weight" in p and wanted in p for p in s["native"]["problems"])
    assert len(s["tensors"]) == 21
    code, out, _ = run(capsys, path)
    assert code == 0
    assert "cannot run" in out
    assert "(does not run)" in out


def test_a_family_that_does_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", "mamba"))
    assert s["architecture"] == "mamba"
    assert s["native"]["runs"] is False
    assert "'mamba'" in s["native"]["problems"][0]
    assert "llama" in s["native"]["problems"][0]
    assert s["config"]["n_layer"] == 2


@pytest.mark.parametrize("weight_type", ["F16", "Q8_0", "Q6_K"])
def test_tied_embeddings_count_once(capsys: pytest.CaptureFixture[str], tmp_path: Path, weight_type: str) -> None:
    """Case A9: without an output matrix, and with the same matrix stored twice."""
    types = {"default": "Q8_0", "token_embd": weight_type, "output": weight_type}
    options: dict[str, Any] = {"n_embd": 256}
    tied = as_json(capsys, build_tiny(tmp_path / "tied.gguf", types=types, tied=True, **options))
    twice = as_json(capsys, build_tiny(tmp_path / "twice.gguf", types=types, duplicate_output=True, **options))
    apart = as_json(capsys, build_tiny(tmp_path / "apart.gguf", types=types, tied=False, **options))
    assert tied["parameters"]["total"] == twice["parameters"]["total"]
    assert apart["parameters"]["total"] == tied["parameters"]["total"] + tied["parameters"]["embedding"]
    assert [s["parameters"]["tied_embeddings"] for s in (tied, twice, apart)] == [True, True, False]
    assert [s["parameters"]["embeddings_stored_twice"] for s in (tied, twice, apart)] == [False, True, False]
    code, out, _ = run(capsys, tmp_path / "twice.gguf")
    assert code == 0
    assert "shared with the output matrix and counted once; the file stores them twice" in out
    assert "shared" not in run(capsys, tmp_path / "apart.gguf")[1]


def test_bad_settings_do_not_hide_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", metadata={".attention.head_count": 0}))
    assert s["config"] is None
    assert s["memory"] is None
    assert any("llama.attention.head_count is 0" in problem for problem in s["native"]["problems"])
    code, out, _ = run(capsys, tmp_path / "m.gguf")
    assert code == 0
    assert "llama.attention.head_count is 0" in out


def test_a_broken_template_is_shown_with_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", template="{{ messages }}\n{% if %}"))
    assert s["template"]["present"] is True
    assert s["template"]["parses"] is False
    assert "line 2" in s["template"]["error"]
    assert s["native"]["runs"] is True


def test_tokenizers_that_do_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", pre="no-such-rule"))
    assert any("'no-such-rule'" in problem for problem in s["native"]["problems"])
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", metadata={"tokenizer.ggml.model": "rwkv"}))
    assert any("'rwkv'" in problem for problem in s["native"]["problems"])
    s = as_json(capsys, build_tiny(tmp_path / "m.gguf", n_rows=512, metadata={"tokenizer.ggml.tokens": None}))
    assert any("no vocabulary" in problem for problem in s["native"]["problems"])
    assert s["tokenizer"]["n_tokens"] == 0


def test_end_ids_are_those_of_the_tokenizer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for i, metadata in enumerate([{}, {"tokenizer.ggml.eot_token_id": 9}, {"tokenizer.ggml.eos_token_id": None}]):
        for arch in ("llama", "gemma3"):
            path = build_tiny(tmp_path / f"{arch}{i}.gguf", arch, metadata=metadata)
            with GGUFFile.open(path) as file:
                wanted = Tokenizer.from_gguf(file).end_ids
            assert {token["id"] for token in as_json(capsys, path)["tokenizer"]["ends"]} == wanted


@pytest.mark.parametrize(
    "key",
    ["general.architecture", "general.name", "general.license", "general.file_type", "tokenizer.ggml.model",
     "tokenizer.ggml.pre", "tokenizer.ggml.token_type", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template",
     "llama.block_count", "llama.rope.scaling.type", "llama.expert_count"],
)  # fmt: skip
@pytest.mark.parametrize("value", [["a", "b"], [1.5], [1], True, "x", 1.5])
def test_keys_of_another_kind(capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str, value: Any) -> None:
    """Found by scripts/fuzz: a family that is a list."""
    path = build_tiny(tmp_path / "m.gguf", metadata={key: value})
    assert as_json(capsys, path)["schema"] == 1
    assert run(capsys, path)[0] == 0


def test_a_file_without_tensors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(make.gguf([make.key("odd", "float32", float("nan"))]))
    s = as_json(capsys, path)
    assert s["metadata"] == {"odd": "nan"}
    assert s["architecture"] is None
    assert s["native"]["runs"] is False
    code, out, _ = run(capsys, path)
    assert code == 0
    assert "none: a vocabulary without a model" in out


def test_damaged_headers_never_surprise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Flipped bytes: a report or one line, never a traceback (which main would end with code 1)."""
    raw = build_tiny(tmp_path / "m.gguf").read_bytes()
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        end = file.data_offset
    rng, path, codes = random.Random(3), tmp_path / "flipped.gguf", set()
    for _ in range(250):
        flipped = bytearray(raw)
        for _ in range(rng.choice([1, 2, 8])):
            # four times out of five after the vocabulary, which is most of the header
            at = rng.randrange(end - 3500, end) if rng.random() < 0.8 else rng.randrange(end)
            flipped[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, flipped[at] ^ (1 << rng.randrange(8))])
        path.write_bytes(flipped)
        code, _, err = run(capsys, path, "--tensors", "--json" if rng.random() < 0.5 else "--tensors")
        assert code in (0, 3), err
        codes.add(code)
    assert codes == {0, 3}


def test_text_from_the_file_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    metadata = {"general.name": "a\x1b[2Jb\nc\u202e", "tokenizer.ggml.pre": "default\x07"}
    code, out, _ = run(capsys, build_tiny(tmp_path / "m.gguf", metadata=metadata))
    assert code == 0
    assert not set(out) & {"\x1b", "\x07", "\u202e"}
    assert r"a\x1b[2Jb\nc\u202e" in out


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"", "empty"),
        (b"GGU", "cut off"),
        (b"<html><body>no</body></html>" * 80, "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"tjgg" + bytes(60), "GGJT"),
        (make.gguf([make.key("a", "uint32", 1)], version=1), "version 1"),
        (make.gguf([], [make.tensor("w", [8])], bytes(31)), "'w'"),
    ],
)
def test_bad_files_end_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, raw: bytes, wanted: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    code, out, err = run(capsys, path)
    assert (code, out) == (3, "")
    assert wanted in err
    assert err.count("\n") == 1
    assert run(capsys, path, "--json")[:2] == (3, "")


def test_missing_files_directories_and_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, tmp_path / "none.gguf")
    assert code == 5
    assert "there is no file" in err
    code, _, err = run(capsys, tmp_path)
    assert code == 3
    assert "directory" in err
    assert run(capsys, "no-such-model-name")[0] == 5
    path = build_tiny(tmp_path / "m.gguf")
    for n_ctx in ("0", "-5", "100000"):
        code, _, err = run(capsys, path, "--n-ctx", n_ctx)
        assert code == 2
        assert "--n-ctx is " in err
    assert run(capsys, path, "--n-ctx", "many")[0] == 2
    assert run(capsys)[0] == 2


# -- lightness -------------------------------------------------------------------------------------------------------

LIGHT = """
import sys
from edgeinfer.cli.main import main
code = main(["inspect", sys.argv[1]])
heavy = ("numba", "llvmlite", "llama_cpp", "sounddevice", "tokenizers", "rich", "prompt_toolkit", "gguf")
found = [name for name in heavy if name in sys.modules]
sys.exit(f"imported {found}" if found else code)
"""


def test_nothing_heavy_is_imported(smollm2_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, str(smollm2_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "chat template   yes" in done.stdout


def test_a_large_vocabulary_is_inspected_soon(gemma3_path: Path) -> None:
    """Of CPU time, which busy neighbours leave alone."""

    def used() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    times = []
    for _ in range(5):
        before = used()
        subprocess.run(
            [sys.executable, "-m", "edgeinfer", "inspect", str(gemma3_path)],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        times.append(used() - before)
    assert min(times) < 0.7
