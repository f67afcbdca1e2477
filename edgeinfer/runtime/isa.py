"""Instruction sets: what the code generator may use, what the machine offers, and which one is chosen.

An instruction that the CPU lacks would end the process, so a set is refused before any code for it is loaded.
An ISA is plain data; `simd.py` reads it while it emits code, so code for another CPU can be generated here.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import PlatformError, SettingError

__all__ = ["ISA", "ISAS", "available", "choose", "find", "machine_arch"]


@dataclass(frozen=True)
class ISA:
    """One instruction set. `cpu` and `features` are LLVM's words."""

    name: str
    arch: str  # "x86_64", "aarch64"
    triple: str
    cpu: str
    features: str
    dot: str  # how simd.py emits the product of bytes: "vpdpbusd512", "vpdpbusd256", "pmaddubsw", "sdot", "plain"
    fma: bool  # fused multiply-add in hardware; else a product and a sum
    f16c: bool  # conversion between f16 and f32 in hardware; else by integer arithmetic
    width: int  # tokens of one product tile that fit in the registers
    needs: tuple[str, ...]  # CPU flags that must all be present
    asks: bool = False  # whether one and two tokens ask for weights ahead of their reading too (`kernels/layout.py`)

    @property
    def label(self) -> str:
        """What `find` knows it by: "arch/name", with "+asks" where it does."""
        return f"{self.arch}/{self.name}" + ("+asks" if self.asks else "")


_LINUX = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt")
# What LLVM may use when it generates code for a Cortex-A76, beside the dot product.
_CORTEX_A76 = ("asimd", "asimddp", "atomics", "asimdrdm", "fphp", "asimdhp", "lrcpc", "crc32")

# Best first; `choose` takes the first that the machine offers.
ISAS: tuple[ISA, ...] = (
    ISA(
        "avx512", "x86_64", _LINUX["x86_64"], "cascadelake", "", "vpdpbusd512", True, True, 8,
        (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"),
    ),
    ISA("avxvnni", "x86_64", _LINUX["x86_64"], "alderlake", "", "vpdpbusd256", True, True, 4, (*_AVX2, "avxvnni")),
    ISA("avx2", "x86_64", _LINUX["x86_64"], "haswell", "", "pmaddubsw", True, True, 4, _AVX2),
    ISA("portable", "x86_64", _LINUX["x86_64"], "x86-64-v2", "", "plain", False, False, 2, ("sse4.2",)),
    ISA("dotprod", "aarch64", _LINUX["aarch64"], "cortex-a76", "+dotprod", "sdot", True, True, 4, _CORTEX_A76),
    ISA("portable", "aarch64", _LINUX["aarch64"], "generic", "+neon", "plain", True, True, 2, ("asimd",)),
)  # fmt: skip


def machine_arch() -> str:
    """The machine's architecture as LLVM names it; raises PlatformError when edgeinfer has no code for it."""
    name = platform.machine().lower()
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)
    if name not in _LINUX:
        raise PlatformError(f"edgeinfer runs on x86-64 and ARM64; this machine is {name!r}")
    return name


# The kernel's names of hardware capabilities, by (auxiliary vector entry, bit).
_HWCAP = {
    (16, 1): "asimd", (16, 7): "crc32", (16, 8): "atomics", (16, 9): "fphp", (16, 10): "asimdhp", (16, 12): "asimdrdm",
    (16, 15): "lrcpc", (16, 20): "asimddp", (26, 13): "i8mm",
}  # fmt: skip


def _cpu_flags(arch: str) -> set[str]:
    """The CPU's flags: from LLVM's CPUID reading on x86, from the kernel's hardware capabilities on ARM.

    LLVM's table has no word for dotprod on ARM, so testing it there would never enable sdot.
    """
    if arch == "aarch64":
        libc = ctypes.CDLL(None)
        libc.getauxval.restype = ctypes.c_ulong
        libc.getauxval.argtypes = [ctypes.c_ulong]
        return {name for (word, bit), name in _HWCAP.items() if libc.getauxval(word) >> bit & 1}
    import llvmlite.binding as llvm

    return {name for name, present in llvm.get_host_cpu_features().items() if present}


def _made_by_intel() -> bool:
    """Whether the CPU says that Intel made it."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False


def find(label: str) -> ISA:
    """The set with this label, of any machine, to generate code for it.

    Raises SettingError for an unknown one.
    """
    for isa in ISAS:
        for tuned in (isa, replace(isa, asks=True)):
            if label == tuned.label:
                return tuned
    raise SettingError(f"there is no instruction set {label!r}; wanted one of: {', '.join(i.label for i in ISAS)}")


def available() -> tuple[ISA, ...]:
    """The sets that this machine can run, best first, tuned to its maker's way of reading memory."""
    arch = machine_arch()
    flags = _cpu_flags(arch)
    mine = [isa for isa in ISAS if isa.arch == arch and all(need in flags for need in isa.needs)]
    asks = arch == "x86_64" and _made_by_intel()
    return tuple(replace(isa, asks=asks) for isa in mine)


def choose(name: str = "") -> ISA:
    """Return the best set of this machine, or the one called `name` (EDGEINFER_ISA).

    Raises SettingError for an unknown name, PlatformError for one that this machine cannot run.
    """
    have = available()
    if not have:
        raise PlatformError("this CPU is too old for edgeinfer: it needs at least SSE4.2 (x86-64) or NEON (ARM64)")
    if not name:
        return have[0]
    for isa in have:
        if isa.name == name:
            return isa
    names = ", ".join(isa.name for isa in have)
    known = {isa.name for isa in ISAS}
    if name in known:
        raise PlatformError(f"EDGEINFER_ISA asks for {name!r}, which this CPU cannot run; it can run: {names}")
    raise SettingError(f"EDGEINFER_ISA is {name!r}; wanted one of: {names}")
