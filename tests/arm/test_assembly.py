"""Code for other CPUs, generated on this one: the instruction set is a parameter, and ARM's memory order is kept.

An emulator on x86-64 cannot show a missing acquire or release: the host's order is stricter. So it is read in the assembly.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeinfer.errors import SettingError
from edgeinfer.formats import FORMATS
from edgeinfer.runtime.isa import find
from edgeinfer.settings import child_environment

from ..models import ROOT

QUANTS = [fmt for fmt in FORMATS.values() if fmt.native and fmt.block_size > 1]
MATMULS = tuple(f"matmul.{fmt.name.lower()}" for fmt in QUANTS)
THREADS = ("runtime.run", "runtime.work", "runtime.stop")
JOBS = (  # long ones first
    ("aarch64/dotprod", MATMULS[1::2]),
    ("aarch64/dotprod", MATMULS[::2] + THREADS),
    ("aarch64/portable", (*THREADS, "matmul.q4_1")),
    ("x86_64/avxvnni", ("matmul.q4_1", "matmul.iq4_nl")),
)


def generate(isa: str, names: tuple[str, ...]) -> dict[str, str]:
    """The assembly of some kernels by name."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("assembly.py")), isa, *names],
        capture_output=True, text=True, check=False, env=child_environment(drop="NUMBA_", first_on_path=ROOT),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@functools.cache
def assembly() -> dict[str, dict[str, str]]:
    """The assembly of all that is looked at here, by instruction set and kernel."""
    with ThreadPoolExecutor(2) as pool:
        found: dict[str, dict[str, str]] = {}
        for (isa, _), part in zip(JOBS, pool.map(lambda job: generate(*job), JOBS), strict=True):
            found.setdefault(isa, {}).update(part)
        return found


def instructions(isa: str, name: str) -> Counter[str]:
    """How often each instruction stands in a kernel, by mnemonic (with its prefix in braces, if any)."""
    return Counter(re.findall(r"^\t((?:\{\w+\} *\t?)?[a-z][\w.]*)", assembly()[isa][name], re.MULTILINE))


def starting(found: Counter[str], pattern: str) -> set[str]:
    """The instructions whose whole name fits a pattern."""
    return {name for name in found if re.fullmatch(pattern, name)}


@pytest.mark.parametrize("name", MATMULS)
def test_matmul_on_dotprod_uses_the_dot_product(name: str) -> None:
    found = instructions("aarch64/dotprod", name)
    assert found["sdot"] >= 4 * 8  # a block of 32 values of 16 rows, at least once
    assert not starting(found, "smull2?|smlal2?|umull2?|umlal2?"), "products are formed without sdot"


def test_matmul_on_portable_arm_needs_no_dot_product() -> None:
    found = instructions("aarch64/portable", "matmul.q4_1")
    assert not starting(found, "[su]dot|[su]?mmla")
    assert starting(found, "mla|mul|smlal2?|smull2?|umlal2?|umull2?")


@pytest.mark.parametrize("isa", ["aarch64/dotprod", "aarch64/portable"])
def test_arm_kernels_call_only_the_kernel_s_doors(isa: str) -> None:
    """Whatever else they called would have to be there on every system, and found by the loader."""
    for name, text in assembly()[isa].items():
        called = set(re.findall(r"^\tbl\t(\S+)", text, re.MULTILINE))
        defined = set(re.findall(r"^(\S+):", text, re.MULTILINE))
        assert called - defined <= {"clock_gettime", "sched_yield", "syscall"}, name


def test_atomics_on_dotprod_acquire_and_release() -> None:
    """With ARMv8.1's atomics: `a` acquires, `l` releases; ldapr is the acquiring load, stlr the releasing store."""
    run, work, stop = (instructions("aarch64/dotprod", name) for name in THREADS)
    assert run["ldaddal"] >= 2  # the counter of a job, the barrier
    assert run["swpal"] >= 1  # is the worker parked?
    assert run["ldapr"] + run["ldar"] >= 2  # the barrier's wait, and its other half after a yield
    assert work["ldaddal"] >= 1
    assert work["swpal"] >= 1
    assert work["ldapr"] + work["ldar"] >= 4
    assert stop["stlr"] == 1
    for found in (run, work, stop):
        assert not starting(found, "(ldadd|swp|cas|ldset|ldclr|ldeor)(a|l)?"), "an atomic that orders one side or none"
        assert not starting(found, "ldxr|stxr|ldaxr|stlxr")


def test_atomics_on_portable_arm_acquire_and_release() -> None:
    """Without ARMv8.1's atomics, and without ldapr: a pair of exclusive accesses."""
    run, work, stop = (instructions("aarch64/portable", name) for name in THREADS)
    for found in (run, work):
        assert found["ldaxr"] == found["stlxr"] >= 2
        assert found["ldar"] >= 2
    assert stop["stlr"] == 1
    for found in (run, work, stop):
        assert not starting(found, "ldxr|stxr"), "an exclusive access without order"
        assert not starting(found, "(ldadd|swp|cas|ldset|ldclr|ldeor)(al|a|l)?|ldapr"), "an instruction beyond ARMv8.0"


@pytest.mark.parametrize("name", ["matmul.q4_1", "matmul.iq4_nl"])
def test_matmul_on_avxvnni_uses_the_vex_form(name: str) -> None:
    """The EVEX form of the instruction would end the process on a CPU without AVX-512."""
    found = instructions("x86_64/avxvnni", name)
    dots = {name: count for name, count in found.items() if "vpdpbusd" in name}
    assert [re.sub(r"\s+", " ", name) for name in dots] == ["{vex} vpdpbusd"]
    assert "%zmm" not in assembly()["x86_64/avxvnni"][name]


def test_tables_are_one_shuffle() -> None:
    """Without the instruction, a lookup would take dozens."""
    assert instructions("x86_64/avxvnni", "matmul.iq4_nl")["vpshufb"] >= 2 * 8
    assert instructions("aarch64/dotprod", "matmul.iq4_nl")["tbl"] >= 4 * 8
    assert instructions("aarch64/dotprod", "matmul.mxfp4")["tbl"] >= 4 * 8


def test_unknown_instruction_set_is_refused_with_the_known_ones() -> None:
    assert find("aarch64/dotprod").dot == "sdot"
    with pytest.raises(SettingError, match=r"'riscv64/vector'; wanted one of: x86_64/avx512, .*aarch64/portable$"):
        find("riscv64/vector")
