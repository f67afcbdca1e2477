"""All that happens to a model file before the first forward, and all that inspect shows of it; what must not happen then.

Allowed are a model that loads and an EdgeInferError. A finding is any other exception, more than a second of CPU time, or
more than 200 MB of memory beside what the process had.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeinfer.cli.inspect_pairs import diff_sections, draft_sections, hex_sections
from edgeinfer.cli.inspect_view import sections
from edgeinfer.cli.terminal import json_text
from edgeinfer.errors import EdgeInferError
from edgeinfer.model.config import ModelConfig
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.lazy_array import LazyArray
from edgeinfer.model.template import ChatTemplate
from edgeinfer.model.tokenizer import Tokenizer
from edgeinfer.model.weights import Weights
from edgeinfer.profile.pairs import compare_files, draft_pair
from edgeinfer.profile.summary import summarize
from edgeinfer.profile.tensor_bytes import tensor_blocks
from tests.memory import memory_mb, reset_peak

__all__ = ["MAX_MB", "MAX_SECONDS", "Finding", "Judge", "load_all"]

MAX_SECONDS = 1.0
MAX_MB = 200
TEXT = "Hello, world! 123  \n\té世<|im_end|>\0"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]


class Finding(Exception):
    """A file that broke the bar."""


def load_all(path: Path) -> list[str]:
    """Open a file and use everything that a user would; the class names of the errors, stage by stage, "" for none.

    An EdgeInferError of one stage does not keep the others from running.
    """
    outcome: list[str] = []

    def stage(call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except EdgeInferError as error:
            if not str(error).strip():
                raise RuntimeError("an error without a message") from error
            outcome.append(type(error).__name__)
            return None
        outcome.append("")
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = stage(lambda: GGUFFile.open(path))
        if file is None:
            return outcome
        with file:
            stage(lambda: [list(value) for value in file.metadata.values() if isinstance(value, LazyArray)])
            stage(lambda: [file.data(name)[-1:].tolist() for name in file.tensors])
            config = stage(lambda: ModelConfig.from_gguf(file))
            if config is not None:
                weights = Weights(file, config)
                stage(weights.require_native)
                for name, info in list(file.tensors.items())[:20]:
                    if info.n_elements <= 1 << 16:
                        stage(lambda name=name: weights.float32(name))
            tokenizer = stage(lambda: Tokenizer.from_gguf(file))
            if tokenizer is not None:
                stage(lambda: tokenizer.decode(tokenizer.encode(TEXT), special=True))
                template = stage(lambda: ChatTemplate.from_gguf(file, tokenizer))
                if template is not None:
                    stage(lambda: template.encode(MESSAGES))
            found = stage(lambda: summarize(file, tensors=True))
            if found is not None:
                shown = [text for _, rows in sections(found) for row in rows for text in row]
                if not all(line.isprintable() for line in [*shown, *json_text(found).split("\n")]):
                    raise RuntimeError("a report that could drive the terminal")
            for name in list(file.tensors)[:3]:
                stage(lambda name=name: list(hex_sections(tensor_blocks(file, name, 1))))
            stage(lambda: list(diff_sections(compare_files(file, file))))
            with GGUFFile.open(path) as again:
                stage(lambda: list(draft_sections(draft_pair(file, again))))
    return outcome


class Judge:
    """Runs files one after the other and keeps the worst of each measure; raises Finding where one breaks the bar."""

    def __init__(self, path: Path) -> None:
        """`path` is written before every run; beside it may lie other shards."""
        self.path = path
        self.n_runs = self.n_opened = self.n_loaded = 0
        self.slowest_s = self.largest_mb = 0.0

    def __call__(self, raw: bytes) -> list[str]:
        """Judge one file; the outcome of `load_all`."""
        self.path.write_bytes(raw)
        # The peak of this file alone: a guided fuzzer keeps thousands of files in this process's memory.
        reset_peak()
        before = memory_mb("VmRSS")
        start = time.process_time()
        try:
            outcome = load_all(self.path)
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error
        took, grown = time.process_time() - start, memory_mb("VmHWM") - before
        self.n_runs += 1
        self.n_opened += len(outcome) > 1
        self.n_loaded += len(outcome) > 1 and not any(outcome)
        if self.n_runs == 1:  # it imports and fills tables
            return outcome
        self.slowest_s, self.largest_mb = max(self.slowest_s, took), max(self.largest_mb, grown)
        if took > MAX_SECONDS:
            raise Finding(f"it took {took:.2f} s of CPU time")
        if grown > MAX_MB:
            raise Finding(f"the process grew by {grown:.0f} MB")
        return outcome

    def report(self) -> str:
        """One line of figures."""
        return (
            f"{self.n_runs:,} files: {self.n_opened:,} had a sound header, {self.n_loaded:,} loaded whole; "
            f"slowest {self.slowest_s:.3f} s, largest {self.largest_mb:.0f} MB"
        )
