"""The yardstick of the comparisons beside this file, and one line about where they were made."""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.evaluate.llama_reference import LlamaCpp, build

__all__ = ["LlamaCpp", "cpu_name", "machine"]


def cpu_name() -> str:
    """The CPU as the system names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def machine() -> str:
    """One line about this machine and the llama.cpp build: CPU, cores, versions, instruction sets."""
    import numba

    import edgeinfer

    return (
        f"{cpu_name()}, {len(os.sched_getaffinity(0))} CPUs; edgeinfer {edgeinfer.__version__}, "
        f"numba {numba.__version__}; {build()}"
    )
