"""Every weight type against llama.cpp on the same file: tiny models of random blocks, and real models quantized by llama.cpp.

llama.cpp rounds its activations too (to 8 bits, or for BF16 weights to BF16), so the logits are near, not equal.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.evaluate.divergence import compare_rows
from edgeinfer.evaluate.exact import log_softmax
from edgeinfer.formats import FORMATS
from tests.engine.open import ids_of, open_engine, run
from tests.evaluate.test_exact import llama_cpp_logits
from tests.models import ROOT
from tests.tiny import build_tiny

pytestmark = [pytest.mark.slow, pytest.mark.llama_cpp]

TYPES = [fmt.name for fmt in FORMATS.values() if fmt.native]
MOST_KL = {"F32": 5e-5, "F16": 5e-5, "BF16": 1e-3}  # the rest: 1e-2


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", TYPES)
def test_tiny_models_agree(tmp_path: Path, arch: str, weight_type: str) -> None:
    """Random weights make flat distributions, in which a wrong sub-block or scale shows at once."""
    path = build_tiny(tmp_path / "m.gguf", arch, {"default": weight_type}, n_layer=3)
    ids = ids_of(80)
    with open_engine(path) as engine:
        rows = run(engine, ids)
    found = compare_rows(log_softmax(llama_cpp_logits(path, ids)), rows)
    assert found.mean_kl <= MOST_KL.get(weight_type, 1e-2)
    assert found.top1_agreement >= 0.85


# What llama.cpp's recipes put into a real model, and into one whose rows are multiples of 256.
REAL = {
    "smollm2-135m": ("F16", "BF16", "MXFP4", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q4_K_M"),
    "wide": ("Q2_K", "Q3_K_M", "IQ4_XS"),
}


@pytest.mark.parametrize("model", REAL)
def test_files_of_llama_cpps_quantizer_agree(model: str) -> None:
    """The script ends with 1 when a mean KL divergence is above 0.01."""
    command = [sys.executable, str(ROOT / "scripts" / "make_quants.py"), "--model", model, "--limit", "128"]
    done = subprocess.run([*command, *REAL[model]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(f"| {model}.")]
    assert [row[0] for row in rows] == [f"| {model}.{name}" for name in REAL[model]]
    assert all(float(row[4].strip(" |%")) >= 85 for row in rows), done.stdout
