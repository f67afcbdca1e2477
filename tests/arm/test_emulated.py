"""The package on an emulated ARM64 machine, with kernels that were compiled here for it. Correctness only: no speeds.

The emulator refuses instructions that the emulated CPU lacks, so a run on a Cortex-A72 also proves that the portable set
needs no dot product. It cannot show a missing acquire or release, because this machine's memory order is stricter than
ARM's; `test_assembly.py` looks for those.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.formats import FORMATS
from edgeinfer.runtime.isa import choose
from edgeinfer.runtime.library import object_path
from edgeinfer.settings import child_environment

from ..models import ROOT
from ..tiny import build_tiny
from . import guest

pytestmark = pytest.mark.slow

TYPES = tuple(fmt.name for fmt in FORMATS.values() if fmt.native)
MODELS = (*TYPES, "gemma3-mixed", "gemma3-Q8_0")
CASES = (*MODELS, "Q4_K@q8_0", "gemma3-mixed@q4_0")  # @: the type of the KV cache, else f16
CPUS = {"dotprod": "cortex-a76", "portable": "cortex-a72"}  # Pi 5, Pi 4
UNAVAILABLE = 77


@pytest.fixture(scope="module")
def machine() -> Path:
    """The folder of the emulated machine."""
    done = subprocess.run([ROOT / "scripts" / "arm_rootfs"], capture_output=True, text=True, check=False)
    if done.returncode == UNAVAILABLE:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def python(machine: Path, cpu: str, *arguments: str | Path, isa: str = "") -> str:
    """Run guest.py on the emulated machine and return what it prints."""
    environment = child_environment(
        drop="PYTHON",
        EDGEINFER_ISA=isa or None,
        EDGEINFER_CACHE=str(machine / "edgeinfer"),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(machine / "site")]),
        # In the checkout and in the system's own folders the guest must leave no files.
        PYTHONPYCACHEPREFIX=str(machine / "bytecode"),
        PYTHONNOUSERSITE="1",
    )
    command = [
        machine / "emulator",
        "-cpu",
        cpu,
        "-L",
        machine / "root",
        machine / "root/usr/bin/python3",
        "-W",
        "error",
    ]
    done = subprocess.run(
        [*map(str, command), guest.__file__, *map(str, arguments)],
        capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def choice(machine: Path, cpu: str, isa: str = "") -> dict[str, Any]:
    """What the package decides on this CPU."""
    return dict(json.loads(python(machine, cpu, "choose", isa=isa)))


def compile_for(isa: str, folder: Path, names: list[str]) -> None:
    """Compile kernels here for the ARM machine, in two processes."""
    environment = child_environment(drop="NUMBA_", first_on_path=ROOT)
    command = [sys.executable, "-m", "edgeinfer.kernels.compile", str(folder), f"aarch64/{isa}"]
    children = [subprocess.Popen([*command, *part], env=environment, text=True, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE) for part in (names[::2], names[1::2]) if part]  # fmt: skip
    errors = [child.communicate()[1] for child in children]
    assert [child.returncode for child in children] == [0] * len(children), "\n".join(errors)


@pytest.fixture(scope="module")
def kernels() -> list[str]:
    """The names of all kernels. Asked of a child process, because this one must not import the compiler."""
    command = [sys.executable, "-c", "from edgeinfer.kernels.registry import KERNELS; print(*KERNELS)"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What guest.py takes for each of CASES: a tiny model file, and the type of the KV cache."""
    folder = tmp_path_factory.mktemp("models")
    made = {name: build_tiny(folder / name, types={"default": name}) for name in TYPES}
    mixed = {
        "default": "Q4_K", "attn_q": "Q5_0", "attn_k": "Q5_0", "attn_v": "Q8_0", "ffn_down": "Q6_K", "token_embd": "Q8_0",
    }  # fmt: skip
    made["gemma3-mixed"] = build_tiny(folder / "gemma3-mixed", arch="gemma3", types=mixed, n_layer=3)
    made["gemma3-Q8_0"] = build_tiny(folder / "gemma3-Q8_0", arch="gemma3", types={"default": "Q8_0"})
    assert tuple(made) == MODELS
    return {case: str(folder / case) for case in CASES}


@pytest.fixture(scope="module")
def wanted(cases: Mapping[str, str]) -> dict[str, tuple[NDArray[np.float32], str]]:
    """Logits and greedy text of the models on this machine."""
    return {name: (guest.logits(case, 1, guest.WHOLE), guest.text(case)) for name, case in cases.items()}


@pytest.fixture(scope="module", params=CPUS)
def answers(
    request: pytest.FixtureRequest,
    machine: Path,
    kernels: list[str],
    cases: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Any]:
    """What the emulated machine answers for all models with one instruction set: each kernel is loaded and run there."""
    isa: str = request.param
    folder = Path(choice(machine, CPUS[isa])["folder"])
    assert folder.name.startswith(isa)
    for old in folder.parent.glob(f"{isa}-*"):  # of other sources
        if old != folder:
            shutil.rmtree(old)
    compile_for(isa, folder, [name for name in kernels if not object_path(folder, name).exists()])
    out = tmp_path_factory.mktemp(isa) / "answers.npz"
    python(machine, CPUS[isa], "answer", out, *cases.values())
    with np.load(out) as file:
        return {**file, "isa": isa}


@pytest.mark.parametrize("case", CASES)
def test_arm_computes_what_this_machine_computes(
    answers: Mapping[str, Any], wanted: Mapping[str, tuple[NDArray[np.float32], str]], case: str
) -> None:
    here, text = wanted[case]
    there = answers[case]
    assert there.shape == here.shape
    # Sums have one order everywhere, so with fused multiply-adds on both sides even the bits are equal today. Without
    # them, or where ARM scales the halves of a block as integers (`kernels/halves.py`), a rounding may tip an activation to the
    # next of its 255 steps.
    integers = answers["isa"] == "dotprod" and any(kind in case for kind in ("Q3_K", "Q6_K", "mixed"))
    tolerance = 1e-5 if choose().fma and not integers else 2e-2
    difference = float(np.abs(there - here).max() / np.abs(here).max())
    assert difference <= tolerance
    assert np.array_equal(there.argmax(1), here.argmax(1))
    assert str(answers[f"{case} text"]) == text


@pytest.mark.parametrize("case", CASES)
def test_threads_and_cuts_change_no_bit_on_arm(answers: Mapping[str, Any], case: str) -> None:
    assert np.array_equal(answers[case].view(np.int32), answers[f"{case} cut"].view(np.int32))


@pytest.mark.parametrize(
    ("cpu", "isa", "expected"),
    [
        ("cortex-a76", "", "dotprod"),
        ("cortex-a76", "portable", "portable"),
        ("cortex-a72", "", "portable"),
        ("max", "", "dotprod"),
    ],
)
def test_instruction_set_follows_the_cpu(machine: Path, cpu: str, isa: str, expected: str) -> None:
    assert choice(machine, cpu, isa)["isa"] == expected


def test_instruction_the_cpu_lacks_is_refused(machine: Path) -> None:
    assert choice(machine, "cortex-a72", "dotprod") == {
        "error": "PlatformError",
        "sentence": "EDGEINFER_ISA asks for 'dotprod', which this CPU cannot run; it can run: portable",
    }


def test_arm_machine_compiles_the_same_code(machine: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    compile_for("dotprod", here, ["scan_merge"])
    python(machine, "cortex-a76", "compile", there, "scan_merge")
    assert object_path(there, "scan_merge").stat().st_size > 200
    if choice(machine, "cortex-a76")["python"] != list(sys.version_info[:2]):
        pytest.skip("equal bytes need the same Python on both sides, because Numba compiles its bytecode")
    assert object_path(there, "scan_merge").read_bytes() == object_path(here, "scan_merge").read_bytes()
