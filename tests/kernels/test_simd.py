"""The SIMD vocabulary's functions on every instruction set: accuracy, special values, conversions for all halves."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.runtime.library import KernelLibrary, object_path
from edgeinfer.settings import settings
from tests.kernels import probes
from tests.kernels.harness import ISAS, Buffer, kernels_of
from tests.models import ROOT

Array = NDArray[Any]


@cache
def library_of(isa: str) -> KernelLibrary:
    """The probes of an instruction set, compiled in a child process and kept beside the kernels."""
    library = KernelLibrary(kernels_of(isa).isa, settings().cache)
    source = Path(probes.__file__).read_bytes()
    name = f"{library.folder.name}-{hashlib.sha256(source).hexdigest()[:16]}"
    library.folder = settings().cache / "probes" / name
    library.folder.mkdir(parents=True, exist_ok=True)
    if not all(object_path(library.folder, probe).exists() for probe in probes.NAMES):
        command = [sys.executable, "-m", "tests.kernels.probes", str(library.folder), isa]
        subprocess.run(command, check=True, cwd=ROOT)
    return library


def probe(isa: str, name: str, source: Array, dtype: type, each: int = 16) -> Array:
    """What a probe makes of an array whose length is a multiple of 16; `each` results for 16 values."""
    vectors = source.size // 16
    a, b = Buffer.of(source), Buffer(vectors * each * np.dtype(dtype).itemsize)
    step = Buffer.of(np.array([a.address, b.address, vectors, 0], np.int64))
    library_of(isa).function(f"probe.{name}")(step.address, 0, 0, 1)
    for buffer in (a, b):
        buffer.check()
    return b.bytes.view(dtype).copy()


def padded(*values: float) -> Array:
    """float32 values, filled up with zeros to a multiple of 16."""
    x = np.array(values, np.float32)
    return np.concatenate([x, np.zeros(-len(x) % 16, np.float32)])


@pytest.mark.parametrize("isa", ISAS)
def test_exp_is_accurate(isa: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-87, 87, 1 << 16), rng.standard_normal(1 << 16)]).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    assert (np.abs(probe(isa, "exp", x, np.float32) / want - 1)).max() < 2e-7


@pytest.mark.parametrize("isa", ISAS)
def test_exp_of_special_values(isa: str) -> None:
    below = float(np.nextafter(np.float32(-87), np.float32(-88)))
    x = padded(0.0, -0.0, below, -88, -1000, -1e30, -np.inf, -87, 88, np.nan, -np.nan)
    y = probe(isa, "exp", x, np.float32)
    assert y[:2].tolist() == [1, 1]
    assert y[2:7].tolist() == [0, 0, 0, 0, 0]
    assert y[7] == pytest.approx(np.exp(-87.0), rel=2e-7)
    assert y[8] == pytest.approx(np.exp(88.0), rel=2e-7)
    assert np.isnan(y[9:11]).all()
    assert np.isfinite(probe(isa, "exp", padded(1000, np.inf), np.float32)).all()  # held at e^88


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_activation_functions(isa: str, name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 4096), np.linspace(-1, 1, 4096), padded(0, 1e4, -1e4)]).astype(np.float32)
    wide = x.astype(np.float64)
    z = wide if name == "silu" else 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    want = wide / (1 + np.exp(np.clip(-z, -700, 700)))
    y = probe(isa, name, x, np.float32)
    # Far below zero e^-z is held at e^88, so tiny results may stand for tinier ones.
    assert (np.abs(y - want) <= (5e-7 + 2e-7 * np.minimum(np.abs(z), 90)) * np.abs(want) + 1e-30).all()
    assert np.isnan(probe(isa, name, padded(np.nan), np.float32)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["from_half", "half_scalar"])
def test_every_half_widens_exactly(isa: str, name: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    want, got = halves.astype(np.float32), probe(isa, name, halves, np.float32)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))  # signs of zeros too
    assert np.isnan(got[~numbers]).all()


def floats_to_narrow() -> Array:
    """float32 values of every size that matters to a half, ties and their neighbours, and random bits."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(s)) for s in (0, np.inf)]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = padded(65504, 65519.996, 65520, 65536, 1e30, np.inf, 5.9604645e-8, 2.9802322e-8, 2.9802326e-8, 1e-30, 1e-45)
    random = [rng.uniform(-size, size, 4096).astype(np.float32) for size in (7e4, 1e-4)]
    x = np.concatenate([middles, *near, *random, bits, edges])
    return np.concatenate([x, -x, np.zeros(-2 * len(x) % 16, np.float32)])


@pytest.mark.parametrize("isa", ISAS)
def test_floats_narrow_to_the_nearest_even_half(isa: str) -> None:
    x = floats_to_narrow()
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    got = probe(isa, "to_half", x, np.float16)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(got[numbers].view(np.uint16), want[numbers].view(np.uint16))
    assert np.isnan(got[~numbers]).all()
    assert (~numbers).sum() > 100


@pytest.mark.parametrize("isa", ISAS)
def test_bf16_widens_exactly(isa: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    want = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(probe(isa, "bf16", bits, np.float32), want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["power", "power_scalar"])
def test_every_power_of_mxfp4_is_exact(isa: str, name: str) -> None:
    """The two least are subnormal, and must not be flushed to zero."""
    e = np.arange(256, dtype=np.uint8)
    want = np.ldexp(np.float32(1), e.astype(np.int32) - 128)
    np.testing.assert_array_equal(probe(isa, name, e, np.float32), want)
    assert 0 < want[0] < want[1] < np.finfo(np.float32).tiny


@pytest.mark.parametrize("isa", ISAS)
def test_sums_fold_by_halves_in_one_order(isa: str) -> None:
    x = (np.random.default_rng(0).standard_normal((1000, 16)) * 10.0 ** np.arange(-8, 8)).astype(np.float32)
    want = x
    while want.shape[1] > 1:
        want = want[:, : want.shape[1] // 2] + want[:, want.shape[1] // 2 :]
    np.testing.assert_array_equal(probe(isa, "sums", x, np.float32, each=1), want[:, 0])


@pytest.mark.parametrize("isa", ISAS)
def test_top_is_the_largest_lane(isa: str) -> None:
    x = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
    x[0] = -np.inf
    np.testing.assert_array_equal(probe(isa, "top", x, np.float32, each=1), x.max(1))


@pytest.mark.parametrize("isa", ISAS)
def test_rounding_is_to_even(isa: str) -> None:
    x = padded(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.49999, 0.49999997, 8388609)
    np.testing.assert_array_equal(probe(isa, "round", x, np.float32), np.rint(x))
