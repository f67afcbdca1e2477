"""The two models that tests run on, fetched on first use by scripts/fetch_models.py into .cache/models."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def _fetch(name: str) -> Path:
    command = [sys.executable, str(ROOT / "scripts" / "fetch_models.py"), name]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def smollm2() -> Path:
    """SmolLM2-135M-Instruct: llama, Q4_1 and Q8_0, byte-level BPE, chat template."""
    return _fetch("smollm2-135m")


def gemma3() -> Path:
    """Gemma 3 270M: gemma3, Q4_K, Q5_0, Q6_K and Q8_0, SPM, 262,144 tokens, sliding window, no chat template."""
    return _fetch("gemma3-270m")
