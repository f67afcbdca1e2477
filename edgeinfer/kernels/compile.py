"""The compiling child process: `python -m edgeinfer.kernels.compile FOLDER ARCH/ISA NAME...` writes the kernels' machine code.

The instruction set may be another machine's. Started by `runtime/library.py`; prints each name when its file is in place.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from ..runtime.compiler import compile_kernel
from ..runtime.isa import find
from ..runtime.library import object_path
from ..runtime.vec import set_target

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Compile the named kernels into a folder, each file written beside and renamed."""
    folder, isa_name, *names = arguments
    isa = find(isa_name)
    set_target(isa)
    Path(folder).mkdir(parents=True, exist_ok=True)
    from .registry import KERNELS  # its modules read the target while they are imported

    for name in names:
        code = compile_kernel(name, KERNELS[name], isa)
        path = object_path(Path(folder), name)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(hashlib.sha256(code).hexdigest().encode() + b"\n" + code)
        part.replace(path)
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
