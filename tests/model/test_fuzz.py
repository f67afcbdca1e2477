"""Files made to be strange: what loads a model ends in a model or an EdgeInferError, soon and small (tests/fuzz)."""

from __future__ import annotations

import gc
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import gguf_bytes as make
from tests.fuzz.mutate import ABSURD, mutated, places
from tests.fuzz.seeds import FILE, seeds, sound_first_shard
from tests.fuzz.target import Finding, Judge, load_all
from tests.models import ROOT

# keys that something reads, so that a strange value of any kind gets to its reader
KEYS = (
    *("general.architecture", "general.name", "general.alignment", "general.file_type", "general.license"),
    *("split.no", "split.count", "split.tensors.count", "tokenizer.chat_template", "tokenizer.chat_template.tool_use"),
    *(f"tokenizer.ggml.{name}" for name in ("model", "pre", "tokens", "scores", "token_type", "merges")),
    *(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "unknown", "padding", "fim_pad")),
    *("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"),
    *(f"llama.{name}" for name in ("block_count", "context_length", "embedding_length", "feed_forward_length")),
    *(f"llama.attention.{name}" for name in ("head_count", "head_count_kv", "key_length", "layer_norm_rms_epsilon")),
    *(f"llama.rope.{name}" for name in ("dimension_count", "freq_base", "scaling.type", "scaling.factor")),
)
TENSORS = (
    "token_embd.weight",
    "output.weight",
    "output_norm.weight",
    "blk.0.attn_q.weight",
    "rope_freqs.weight",
    "\x1b[2J",
)
texts = st.sampled_from(
    ["", "llama", "gpt2", "gemma3", "smollm", "default", "{% if x %}", "{{ x }}", "\x1b]0;x\x07", "a b"]
)
strings = texts | st.text(max_size=6) | st.binary(max_size=6)
unsigned = st.sampled_from([n for n in ABSURD if n < 1 << 32]) | st.integers(0, 40)


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """One metadata entry of any kind under a name that is known, or not."""
    name = draw(st.sampled_from(KEYS) | st.text(min_size=1, max_size=5))
    kind = draw(st.sampled_from(sorted(set(make.TYPES) - {"array"})))
    values: dict[str, Any] = {
        "uint8": st.integers(0, 255), "uint32": unsigned, "int32": st.integers(-5, 1 << 20), "bool": st.booleans(),
        "float32": st.floats(width=32), "string": strings, "uint64": st.sampled_from(ABSURD),
    }  # fmt: skip
    if draw(st.booleans()):
        return make.key(name, kind, draw(values[kind]))
    return make.key(name, kind + "[]", draw(st.lists(values[kind], max_size=5)))


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    dims = draw(st.lists(st.sampled_from(ABSURD) | st.integers(1, 64), max_size=4))
    offset = draw(st.sampled_from([0, 32, 64, 128]) | st.sampled_from(ABSURD))
    return make.tensor(draw(st.sampled_from(TENSORS)), dims, draw(st.integers(0, 43)), offset)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    folder = tmp_path_factory.mktemp("judged")
    first = sound_first_shard(folder)
    judge = Judge(folder / FILE)
    judge(first.read_bytes())
    return judge


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries(), max_size=12), st.lists(tensors(), max_size=3), st.integers(0, 300))
def test_strange_files_of_sound_structure(judge: Judge, keys: list[bytes], table: list[bytes], n: int) -> None:
    keys = list({key[:40]: key for key in keys}.values())
    judge(make.gguf(keys, table, bytes(range(256)) * 2 if n > 200 else bytes(n)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_strange_keys_in_a_sound_file(judge: Judge, sound: list[bytes], keys: list[bytes], rng: random.Random) -> None:
    """A working model some of whose keys have another value, of another kind."""
    raw = rng.choice(sound)
    for key in keys:
        where = places(raw)
        length = int.from_bytes(key[:8], "little")
        same = [place for place in where.keys if raw[place[0] : place[0] + 8 + length] == key[: 8 + length]]
        if same:
            start, end = same[0]
            raw = raw[:start] + key + raw[end:]
        else:
            end = where.keys[-1][1]
            count = (len(where.keys) + 1).to_bytes(8, "little")
            raw = raw[:16] + count + raw[24:end] + key + raw[end:]
        spare = -places(raw).end % 32  # where the data was aligned it stays so, mostly
        raw = raw + bytes(spare)
    judge(raw)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return seeds(tmp_path_factory.mktemp("seeds"))


def test_small_lies_about_sound_files(judge: Judge, sound: list[bytes]) -> None:
    """800 of the files that scripts/fuzz makes."""
    rng = random.Random(20)
    outcomes = {tuple(judge(mutated(rng.choice(sound), rng))) for _ in range(800)}
    assert len(outcomes) > 10  # the lies reach more than the first check
    assert judge.n_loaded > 30


def test_the_seeds_load_and_a_shard_finds_the_other(judge: Judge, sound: list[bytes]) -> None:
    for raw in sound[:5]:
        assert not any(judge(raw)), "a seed should be a sound model"
    assert judge.largest_mb < 200
    # the fifth is a second shard: it loads only together with the first one beside it
    alone = judge.path.with_name("alone.gguf")
    alone.write_bytes(sound[4])
    assert load_all(alone) == ["ModelFileError"]


def test_what_breaks_the_bar_is_a_finding(judge: Judge, sound: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can see what it is there to see."""

    def crash(path: Path) -> list[str]:
        raise KeyError("tokens")

    def spin(path: Path) -> list[str]:
        end = time.process_time() + 1.1
        while time.process_time() < end:
            pass
        return []

    def swell(path: Path) -> list[str]:
        return [""] * len(bytearray(b"x") * (400 << 20) and b"x")

    # What earlier tests left in reference cycles must not be freed in the middle: it would hide as much of the growth.
    gc.collect()
    mine = Judge(judge.path)
    mine(sound[0])
    with monkeypatch.context() as patch:
        patch.setattr("tests.fuzz.target.load_all", crash)
        with pytest.raises(Finding, match="KeyError"):
            mine(sound[0])
        patch.setattr("tests.fuzz.target.load_all", spin)
        with pytest.raises(Finding, match="of CPU time"):
            mine(sound[0])
        patch.setattr("tests.fuzz.target.load_all", swell)
        with pytest.raises(Finding, match=r"grew by [34]\d\d MB"):
            mine(sound[0])
    kept = bytearray(b"x") * (201 << 20)  # of the process, not of the file
    mine(sound[0])
    assert len(kept) == 201 << 20


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--plain"], []])
def test_the_script_finds_nothing(tmp_path: Path, options: list[str]) -> None:
    """Half a minute of scripts/fuzz, at random and, where atheris is installed, guided by coverage."""
    command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--seconds", "15", "--keep", str(tmp_path), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no finding" in done.stdout
    found = re.search(r"([\d,]+) files", done.stdout)
    assert found
    assert int(found[1].replace(",", "")) > 500
