"""The native engine's refusals, its threads, its kernel cache, and numbers that are not finite."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.native import NativeEngine, kernel_library
from edgeinfer.engine.types import Batch
from edgeinfer.errors import ContextOverflowError, EngineError, NotFoundError, PlatformError, SettingError
from edgeinfer.runtime import isa as isa_module
from edgeinfer.runtime.isa import available, choose, find
from edgeinfer.runtime.library import KernelLibrary, object_path
from edgeinfer.settings import settings
from tests.engine.open import forward, ids_of, joined, open_engine, run
from tests.models import ROOT
from tests.tiny import build_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("native") / "m.gguf", "llama", {"default": "Q8_0"}, n_layer=1)


def batch(seqs: list[int], positions: list[int], ids: list[int] | None = None) -> Batch:
    """A batch as it is given, right or wrong."""
    n = len(seqs)
    tokens = np.array(ids or [7] * n, np.int32)
    return Batch(tokens, np.array(positions, np.int32), np.array(seqs, np.int32), np.ones(n, np.bool_))


@pytest.mark.parametrize(
    ("seqs", "positions", "ids", "words"),
    [
        ([], [], None, "between 1 and 16 tokens, not 0"),
        ([0] * 17, list(range(5, 22)), None, "between 1 and 16 tokens, not 17"),
        ([0], [4], None, "sequence 0 holds 5 positions; the batch goes on at 4"),
        ([0], [6], None, "sequence 0 holds 5 positions; the batch goes on at 6"),
        ([0, 0], [5, 7], None, "the positions of sequence 0 are not consecutive"),
        ([0, 0], [5, 5], None, "the positions of sequence 0 are not consecutive"),
        ([0, 1, 0], [5, 0, 6], None, "the tokens of sequence 0 are not side by side"),
        ([0], [5], [-1], "token id -1 is outside the vocabulary"),
        ([0, 0], [5, 6], [7, 351], "token id 351 is outside the vocabulary of 351"),
    ],
)
def test_a_malformed_batch_is_refused_and_changes_nothing(
    tiny: Path, seqs: list[int], positions: list[int], ids: list[int] | None, words: str
) -> None:
    with open_engine(tiny, n_batch=16) as engine:
        assert [engine.kv.open(), engine.kv.open()] == [0, 1]
        want = run(engine, ids_of(9))
        forward(engine, 0, ids_of(9)[:5])
        free = engine.kv.free_pages
        with pytest.raises(SettingError, match=words):
            engine.forward(batch(seqs, positions, ids))
        assert (engine.kv.n_past(0), engine.kv.n_past(1), engine.kv.free_pages) == (5, 0, free)
        np.testing.assert_array_equal(forward(engine, 0, ids_of(9)[5:]), want[5:])


def test_sequences_that_are_not_open_and_lanes_that_do_not_exist(tiny: Path) -> None:
    with open_engine(tiny) as engine:
        with pytest.raises(NotFoundError, match="sequence 3 is not open"):
            engine.forward(batch([3], [0]))
        seq = engine.kv.open()
        with pytest.raises(SettingError, match="no lane 'verify'; wanted one of prefill, decode"):
            engine.forward(batch([seq], [0]), "verify")


def test_more_rows_than_there_is_room_for(tiny: Path) -> None:
    with open_engine(tiny, n_batch=128) as engine:
        seq = engine.kv.open()
        with pytest.raises(SettingError, match="65 rows of logits were asked for in one forward; at most 64"):
            engine.forward(Batch.of(seq, ids_of(65), 0, "all"))
        assert engine.kv.n_past(seq) == 0
        assert len(engine.forward(Batch.of(seq, ids_of(128), 0, "last"))) == 1


def test_a_full_context_refuses_and_goes_on_after_a_rewind(tiny: Path) -> None:
    with open_engine(tiny, n_ctx=70) as engine:
        seq, other = engine.kv.open(), engine.kv.open()
        ids = ids_of(70)
        forward(engine, seq, ids[:64])
        last = forward(engine, seq, ids[64:])
        with pytest.raises(ContextOverflowError, match="holds 70 tokens and 1 more were given; the context is 70"):
            forward(engine, seq, [7], "decode")
        # With another sequence in the batch, which then is as before too.
        pieces = [(other, [7, 8]), (seq, [9])]
        with pytest.raises(ContextOverflowError):
            joined(engine, pieces)
        assert (engine.kv.n_past(seq), engine.kv.n_past(other)) == (70, 0)
        assert engine.kv.rewind(seq, 64) == 64
        np.testing.assert_array_equal(forward(engine, seq, ids[64:]), last)


def test_a_forward_that_fails_takes_no_pages_of_others(tiny: Path) -> None:
    with open_engine(tiny, n_ctx=64) as engine:  # two pages in all
        first, second, third = (engine.kv.open() for _ in range(3))
        want = forward(engine, first, ids_of(20))
        with pytest.raises(ContextOverflowError, match="KV cache is full"):
            joined(engine, [(second, ids_of(20)), (third, ids_of(20))])
        forward(engine, second, ids_of(20, seed=1))
        assert engine.kv.free_pages == 0
        engine.kv.rewind(first, 10)
        np.testing.assert_array_equal(forward(engine, first, ids_of(20)[10:]), want[10:])


def test_a_closed_engine_says_so(tiny: Path) -> None:
    with open_engine(tiny) as engine:
        seq = engine.kv.open()
        engine.close()
        engine.close()
        with pytest.raises(EngineError, match="the engine is closed"):
            engine.forward(batch([seq], [0]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"n_threads": 0}, "threads must be between 1 and 64, not 0"),
        ({"n_threads": 65}, "threads must be between 1 and 64, not 65"),
        ({"n_ctx": 0}, "must be at least 1, not 0"),
        ({"kv_type": "f32"}, "the KV type is 'f32'; wanted one of f16, q8_0, q4_0"),
        ({"isa": "sse9"}, "EDGEINFER_ISA is 'sse9'; wanted one of"),
    ],
)
def test_settings_that_cannot_be_used(tiny: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words), open_engine(tiny, **more):
        pass


def test_an_instruction_set_that_this_cpu_lacks_is_refused() -> None:
    with pytest.raises(PlatformError, match="'dotprod', which this CPU cannot run; it can run: "):
        choose("dotprod")


def test_sets_are_tuned_to_the_maker_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for intel in (True, False):
        monkeypatch.setattr(isa_module, "_made_by_intel", lambda intel=intel: intel)
        for isa in available():
            assert isa.asks == (intel and isa.arch == "x86_64")
            assert find(isa.label) == isa
    for label in ("x86_64/avx2+", "x86_64/avx2+fast", "avx2", "x86_64/avx2+asks+asks"):
        with pytest.raises(SettingError, match="there is no instruction set"):
            find(label)


def forked(child: Any) -> int:
    """The exit status of a function in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = child()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_must_load_again(tiny: Path) -> None:
    with open_engine(tiny, n_threads=2) as engine:
        want = run(engine, ids_of(5))
        seq = engine.kv.open()

        def refuses() -> int:
            try:
                forward(engine, seq, [7])
            except EngineError as error:
                return 0 if "this process was forked" in str(error) else 2
            return 3

        def loads_again() -> int:
            with open_engine(tiny, n_threads=2) as own:
                return 0 if np.array_equal(run(own, ids_of(5)), want) else 2

        assert forked(refuses) == 0
        assert forked(loads_again) == 0
        np.testing.assert_array_equal(run(engine, ids_of(5)), want)  # the parent goes on


# ---- threads --------------------------------------------------------------------------------------------------------


def test_more_threads_than_cores_work(tiny: Path) -> None:
    with open_engine(tiny) as one, open_engine(tiny, n_threads=len(os.sched_getaffinity(0)) * 3) as many:
        np.testing.assert_array_equal(run(many, ids_of(5), [2, 1]), run(one, ids_of(5)))


def test_an_idle_process_uses_no_cpu(tiny: Path) -> None:
    with open_engine(tiny, n_threads=3) as engine:
        run(engine, ids_of(5))
        time.sleep(0.3)  # the workers spin for a millisecond, then park
        before = time.process_time()
        time.sleep(1)
        assert time.process_time() - before < 0.02


def test_both_lanes_at_once(tiny: Path) -> None:
    """Two threads, two lanes, two sequences: each gives what it gives alone, again and again."""
    with open_engine(tiny, n_threads=2) as engine:
        texts = {"prefill": ids_of(60), "decode": ids_of(60, seed=1)}
        want = {lane: run(engine, ids) for lane, ids in texts.items()}
        wrong: list[str] = []

        def work(lane: str, cut: int) -> None:
            for _ in range(8):
                seq = engine.kv.open()
                for at in range(0, 60, cut):
                    rows = forward(engine, seq, texts[lane][at : at + cut], lane)
                    if not np.array_equal(rows, want[lane][at : at + cut]):
                        wrong.append(f"{lane} at {at}")
                engine.kv.close(seq)

        threads = [threading.Thread(target=work, args=a) for a in (("prefill", 20), ("decode", 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.slow
def test_engines_come_and_go_beside_busy_neighbours(tiny: Path) -> None:
    """A worker may still be leaving a call's barrier when its engine is gone: its memory must not be used for others."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        for _ in range(150):
            with open_engine(tiny, n_threads=4) as engine:
                forward(engine, engine.kv.open(), ids_of(3))
            _junk = [np.zeros(24 + i % 60, np.int64) for i in range(600)]  # takes the freed memory
    finally:
        for process in busy:
            process.kill()
            process.wait()


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("tensor", ["blk.0.attn_norm.weight", "blk.1.ffn_norm.weight", "output_norm.weight"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_norm_weight_makes_logits_not_finite(tmp_path: Path, arch: str, tensor: str, bad: float) -> None:
    values = np.ones(64, np.float32)
    values[37] = bad
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": "Q8_0"}, replace_tensors={tensor: values})
    check_not_finite(path)


@pytest.mark.parametrize("weight_type", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("tensor", ["attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"])
def test_one_bad_weight_makes_logits_not_finite(tmp_path: Path, weight_type: str, tensor: str) -> None:
    path = build_tiny(tmp_path / "m.gguf", "llama", {"default": weight_type}, n_layer=1)
    poison(path, f"blk.0.{tensor}.weight", weight_type)
    check_not_finite(path)


def poison(path: Path, name: str, weight_type: str) -> None:
    """Make one number of a tensor (the scale of one block) NaN in the file."""
    from edgeinfer.model.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        offset = file.tensors[name].offset
    with path.open("r+b") as f:
        f.seek(offset)
        f.write(np.array([np.nan], np.float32 if weight_type == "F32" else np.float16).tobytes())


def check_not_finite(path: Path) -> None:
    """In both phases."""
    with open_engine(path, n_threads=2) as engine:
        seq = engine.kv.open()
        logits = engine.forward(Batch.of(seq, ids_of(9), 0), "prefill")
        assert not logits.finite(0)
        other = engine.kv.open()
        assert not engine.forward(Batch.of(other, [7], 0)).finite(0)


# ---- the kernel cache -----------------------------------------------------------------------------------------------

FEW = ["logits.top_k", "softcap"]


def library(cache: Path) -> KernelLibrary:
    return KernelLibrary(choose(settings().isa), cache)


def test_kernels_are_compiled_once_and_damage_is_mended(tmp_path: Path) -> None:
    first = library(tmp_path)
    said: list[str] = []
    addresses = first.addresses(FEW, said.append)
    assert first.compiled == 2
    assert said[-1].endswith("once: 2/2")
    assert all(addresses.values())
    again = library(tmp_path)
    again.addresses(FEW)
    assert again.compiled == 0
    path = object_path(first.folder, "softcap")
    good = path.read_bytes()
    for damage in (b"", good[:-1], good[:-1] + bytes([good[-1] ^ 1])):
        path.write_bytes(damage)
        mended = library(tmp_path)
        assert all(mended.addresses(FEW).values())
        assert mended.compiled >= 1
        assert path.read_bytes() == good
    assert sorted(p.name for p in first.folder.iterdir()) == sorted(f"{name}.kernel" for name in FEW)


def test_a_cache_folder_that_cannot_be_made_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file stands where the folder should be")
    found = library(tmp_path / "cache")
    said: list[str] = []
    assert found.addresses(["softcap"], said.append)["softcap"]
    assert found.compiled == 1
    assert sum("kernels cannot be kept in" in line for line in said) == 1
    assert (tmp_path / "cache").is_file()


def test_a_cache_folder_that_is_read_only_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path).addresses(["softcap"])

    def refuse(*_args: object, **_more: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    found = library(tmp_path)
    assert found.folder.is_relative_to(tmp_path)
    assert found.addresses(["softcap"])["softcap"]
    assert found.compiled == 0


def test_a_package_of_our_name_in_the_current_folder_is_not_what_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's -m looks there first; a cache given relative to it is still found."""
    (tmp_path / "edgeinfer").mkdir()
    (tmp_path / "edgeinfer" / "__init__.py").write_text("raise SystemExit('another package of this name')")
    monkeypatch.chdir(tmp_path)
    found = library(Path("cache"))
    assert found.addresses(["softcap"])["softcap"]
    assert found.compiled == 1
    assert object_path(tmp_path / found.folder, "softcap").exists()


def test_an_unknown_kernel_ends_in_an_error_and_no_child(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="compiling kernels for .* failed: KeyError: 'matmul.q9'"):
        library(tmp_path).addresses(["matmul.q9"])


def test_a_second_process_compiles_nothing_and_never_imports_numba(tiny: Path) -> None:
    with open_engine(tiny) as engine:
        want = forward(engine, engine.kv.open(), [7, 8])[-1]
    code = """
        import sys
        from pathlib import Path
        from tests.engine.open import forward, open_engine
        with open_engine(Path(sys.argv[1])) as engine:
            row = forward(engine, engine.kv.open(), [7, 8])[-1]
            print(engine.library.compiled, "numba" in sys.modules, row.tobytes().hex())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tiny)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment).stdout
    assert out.split() == ["0", "False", want.tobytes().hex()]


def test_one_library_serves_all_engines_of_a_process(tiny: Path) -> None:
    options = settings()
    assert kernel_library(options) is kernel_library(replace(options, threads=3))
    with open_engine(tiny) as a, open_engine(tiny) as b:
        assert isinstance(a, NativeEngine)
        assert a.library is b.library
