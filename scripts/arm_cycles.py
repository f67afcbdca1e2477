"""Cycles of the ARM kernels' loops, without an ARM machine: their cross-compiled code through llvm-mca.

    scripts/arm_cycles.py

The core is LLVM's model of the Neoverse N1 held to four instructions a cycle, the nearest one to a Cortex-A76 (whose own
name means LLVM's older and narrower A57). Loads hit the first cache and branches are foretold: what is counted is what
the core must do, and how far off that is on hardware is not known. A loop over four consecutive weights of 16 rows (a
quad) is repeated as often as a block of 32 weights has it, with what stands around it in the loop over blocks. Where the
quads are unrolled, the loop over blocks itself is repeated.

llvm-mca is taken from PATH (llvm-mca-22 down to -17; older ones have no model of this core), else Debian's llvm-19 is
downloaded and unpacked, not installed, into .cache/llvm-mca.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from edgeinfer.settings import child_environment

__all__ = ["BUDGETS", "KEPT_PART", "PEAK_PART", "Loop", "block_loops", "cycles", "find_mca", "measure"]

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "llvm-mca"
BUDGETS = {"q4_0": 6.0, "q4_k": 6.0, "q8_0": 6.0}  # cycles per 32 weights and one token
PEAK_PART = 0.7  # of two sdot a cycle, in a tile of several tokens: what is wanted
KEPT_PART = {"q4_0": 0.72, "q4_k": 0.66, "q8_0": 0.72}  # what was reached
SDOT_PER_CYCLE = 2
PACKED_WEIGHTS = {"q4_k": 64}  # two blocks of 32 that share bytes; others take one
USEFUL = 32  # sdot of a block of 16 rows x 32 weights and one token
_BRANCH = re.compile(r"^(?:b|b\.\w+|cbn?z|tbn?z)\s.*?(\.L\w+)$")


class Loop:
    """A loop over blocks of 32 weights: its instructions, and the loop over quads inside it."""

    def __init__(self, before: list[str], inner: list[str], after: list[str]) -> None:
        self.before, self.inner, self.after = before, inner, after

    @property
    def sdots(self) -> int:
        """Dot products in the loop over quads."""
        return sum(line.startswith("sdot") for line in self.inner)

    @property
    def packed(self) -> bool:
        """Whether it takes nibbles apart; else the weights are bytes."""
        return any(line.startswith("ushr") for line in self.inner)

    def tokens(self, weights: int) -> int:
        """Tokens of the tile, where a turn of the loop around is `weights` weights of 16 rows.

        A token's 16 rows x 32 weights are four accumulators; where there are too few registers, fewer are seen.
        """
        seen = len({line.split()[1].split(".")[0] for line in self.inner if line.startswith("sdot")})
        tokens = 1
        while tokens * 4 * weights // 32 < seen:
            tokens *= 2
        return tokens

    def block(self, sdots: int) -> list[str]:
        """The instructions of a block with so many dot products: where the inner loop has them all, it alone."""
        if sdots <= self.sdots:
            return self.inner
        return [*self.before, *self.inner * (sdots // self.sdots), *self.after]


def block_loops(assembly: str) -> list[Loop]:
    """The innermost loops with dot products in them, each with the loop around it if there is one.

    Quads may be unrolled: then the innermost loop goes over blocks, and what is around it does not belong to a block.
    """
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in assembly.splitlines():
        label = re.match(r"^(\.?\w+):", line)
        if label:
            labels[label.group(1)] = len(code)
        elif re.match(r"^\t[a-z]", line):
            code.append(line.split("//")[0].strip())
    spans = []
    for at, text in enumerate(code):
        branch = _BRANCH.match(text)
        if branch and labels.get(branch.group(1), at + 1) <= at:
            spans.append((labels[branch.group(1)], at))
    found = []
    for low, high in spans:
        if any((a, b) != (low, high) and low <= a and b <= high for a, b in spans):
            continue  # not innermost
        if not any(line.startswith("sdot") for line in code[low : high + 1]):
            continue
        around = [(a, b) for a, b in spans if a <= low and high <= b and (a, b) != (low, high)]
        a, b = min(around, key=lambda span: span[1] - span[0], default=(low, high))
        found.append(Loop(code[a:low], code[low : high + 1], code[high + 1 : b + 1]))
    return found


def find_mca() -> list[str]:
    """The command of an llvm-mca that knows the core. Raises RuntimeError where none can be had."""
    for version in range(22, 16, -1):
        path = shutil.which(f"llvm-mca-{version}")
        if path:
            return [path]
    program = FOLDER / "usr/lib/llvm-19/bin/llvm-mca"
    if not program.exists():
        _download()
    libraries = ":".join(str(path.parent) for path in FOLDER.rglob("libLLVM.so.19.1"))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(program)]


def _download() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", "-qq", "llvm-19", "libllvm19"], cwd=FOLDER, check=True, capture_output=True
        )
        for package in FOLDER.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(FOLDER)], check=True, capture_output=True)
            package.unlink()
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"llvm-mca is not installed and could not be downloaded with apt-get ({error})") from error


def cycles(mca: list[str], block: list[str], iterations: int = 200) -> float:
    """Cycles of a block of instructions that repeats."""
    done = subprocess.run(
        [*mca, "-mtriple=aarch64", "-mcpu=neoverse-n1", "-dispatch=4", f"-iterations={iterations}"],
        input="\n".join(block) + "\n", capture_output=True, text=True,
    )  # fmt: skip
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if not found:
        raise RuntimeError(f"llvm-mca: {done.stderr.strip()[-200:] or 'no cycles'}")
    return int(found.group(1)) / iterations


def measure(assembly: Mapping[str, str] | None = None) -> dict[str, float]:
    """Cycles per 32 weights of the decode loops by format, and under "FORMAT prefill tile" the part of the sdot peak that
    the best tile of several tokens reaches. `assembly` is the kernels' code by name; made here where it is not given.

    Raises RuntimeError.
    """
    mca = find_mca()
    names = [f"matmul.{name}" for name in BUDGETS]
    if assembly is None:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "arm" / "assembly.py"), "aarch64/dotprod", *names],
            capture_output=True, text=True, check=True, env=child_environment(drop="NUMBA_", first_on_path=ROOT),
            cwd=os.fspath(ROOT),
        )  # fmt: skip
        assembly = json.loads(done.stdout)
    found: dict[str, float] = {}
    for name in BUDGETS:
        found[name], found[f"{name} prefill tile"] = loops_of(
            assembly[f"matmul.{name}"], mca, PACKED_WEIGHTS.get(name, 32)
        )
    return found


def loops_of(assembly: str, mca: list[str], packed_weights: int = 32) -> tuple[float, float]:
    """(cycles per 32 weights of the decode loop, part of the sdot peak of the best tile) of a kernel.

    packed_weights: the weights of a row in a turn of its loop over packed blocks.
    """
    loops = block_loops(assembly)
    weights = {loop: packed_weights if loop.packed else 32 for loop in loops}
    decode, best = 0.0, 0.0
    for loop in loops:
        tokens, n = loop.tokens(weights[loop]), weights[loop] // 32
        useful = USEFUL * n * tokens
        if loop.sdots < useful and not loop.before + loop.after:
            continue  # a loop over quads whose blocks were not found
        spent = cycles(mca, loop.block(useful))
        if tokens == 1:
            decode = min(decode or 1e9, spent / (16 * n))
        else:
            best = max(best, useful / SDOT_PER_CYCLE / spent)
    if not decode:
        raise RuntimeError("no loop of one token with dot products was found in a kernel's code")
    return decode, best


if __name__ == "__main__":
    for kernel, value in measure().items():
        print(f"{kernel:<20} {value:.2f}")
