"""What runs on the emulated ARM machine: asks the real package for its choices, or for logits and text of model files.

    guest.py choose                 -> {"isa", "folder", "python"} or {"error", "sentence"} as JSON
    guest.py compile FOLDER NAME    -> compiles a kernel here, for the chosen instruction set
    guest.py answer OUT.npz CASE..  -> per model file: logits of IDS, the same again cut and on two threads, and greedy text

Only the package's own dependencies are there, so no pytest and nothing from tests/ but this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgeinfer
from edgeinfer.engine.native import NativeEngine, kernel_library
from edgeinfer.engine.types import Batch
from edgeinfer.errors import EdgeInferError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.weights import Weights
from edgeinfer.runtime.isa import choose
from edgeinfer.settings import settings

IDS = [int(i) for i in np.random.default_rng(7).integers(6, 300, 44)]  # beyond the tiny gemma3's window of 32
WHOLE = (len(IDS),)
# One token, two, four and many take different paths through the kernels.
CUTS = (17, 1, 2, 4, 1, 19)
PROMPT = "hello world, what is the weather"


def logits(case: str, n_threads: int, cuts: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits after each of IDS, evaluated in pieces: (len(IDS), n_vocab). The case is PATH or PATH@KV_TYPE."""
    path, _, kv_type = case.partition("@")
    file = GGUFFile.open(path)
    weights = Weights(file, ModelConfig.from_gguf(file))
    engine = NativeEngine(weights, n_ctx=64, n_batch=64, n_threads=n_threads, kv_type=kv_type or "f16")
    try:
        rows = np.empty((len(IDS), engine.n_vocab), np.float32)
        seq, at = engine.kv.open(), 0
        for n in cuts:
            answer = engine.forward(Batch.of(seq, IDS[at : at + n], at, "all"))
            for i in range(n):
                rows[at + i] = answer.row(i)
            at += n
        return rows
    finally:
        engine.close()


def text(case: str) -> str:
    """A short greedy answer through the public interface."""
    with edgeinfer.load(case.partition("@")[0], n_ctx=64, n_threads=1) as llm:
        return llm.generate(PROMPT, max_tokens=12, temperature=0).text()


def main(command: str, *arguments: str) -> None:
    """Do one command."""
    if command == "choose":
        try:
            library = kernel_library(settings())
        except EdgeInferError as error:
            print(json.dumps({"error": type(error).__name__, "sentence": str(error)}))
        else:
            facts = {"isa": library.isa.name, "folder": str(library.folder), "python": sys.version_info[:2]}
            print(json.dumps(facts))
    elif command == "compile":
        from edgeinfer.kernels.compile import main as compile_main

        isa = choose(settings().isa)
        sys.exit(compile_main([arguments[0], isa.label, *arguments[1:]]))
    else:
        found: dict[str, Any] = {}
        for case in arguments[1:]:
            name = Path(case).name
            found[name] = logits(case, 1, WHOLE)
            found[f"{name} cut"] = logits(case, 2, CUTS)
            found[f"{name} text"] = np.array(text(case))
        if kernel_library(settings()).compiled:
            raise RuntimeError("kernels were compiled on the emulated machine; wanted those made on the host")
        np.savez(arguments[0], **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
