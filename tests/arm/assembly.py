"""A child process that prints the assembly of kernels for any machine: assembly.py ARCH/ISA NAME... -> JSON by name.

A child, because a process generates code for one instruction set only, and because it imports the compiler.
"""

from __future__ import annotations

import json
import sys

from edgeinfer.runtime.compiler import compile_kernel
from edgeinfer.runtime.isa import find
from edgeinfer.runtime.vec import set_target

if __name__ == "__main__":
    isa = find(sys.argv[1])
    set_target(isa)
    from edgeinfer.kernels.registry import KERNELS  # its modules read the target while they are imported

    print(json.dumps({name: compile_kernel(name, KERNELS[name], isa, assembly=True) for name in sys.argv[2:]}))
