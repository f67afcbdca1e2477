"""Every format's twin against the `gguf` package, on blocks whose scales and bits are all in use (case A12)."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeinfer.formats import FORMATS, Format, by_name, type_name
from tests.tiny import random_blocks

TWINS = [fmt for fmt in FORMATS.values() if fmt.dequantize]
QUANTIZERS = [fmt for fmt in FORMATS.values() if fmt.quantize]
K_QUANTS = [by_name(name) for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")]


def name_of(fmt: Format) -> str:
    return fmt.name


def test_registry_holds_the_types_that_the_engine_promises() -> None:
    native = {fmt.name for fmt in FORMATS.values() if fmt.native}
    assert native == {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
    }
    assert {fmt.name for fmt in TWINS} >= native
    assert all(key == fmt.type_id for key, fmt in FORMATS.items())
    assert len({fmt.name for fmt in FORMATS.values()}) == len(FORMATS)


@pytest.mark.parametrize("kind", GGMLQuantizationType, ids=lambda kind: kind.name)
def test_ids_and_sizes_are_those_of_ggml(kind: GGMLQuantizationType) -> None:
    fmt = FORMATS[int(kind)]
    # the package still gives Q8_1 its old size, from when the two scales were f32
    sizes = (32, 36) if kind.name == "Q8_1" else GGML_QUANT_SIZES[kind]
    assert (fmt.name, fmt.block_size, fmt.block_bytes) == (kind.name, *sizes)


def test_withdrawn_and_unknown_types_have_names() -> None:
    assert type_name(36) == "IQ4_NL_4_4"
    assert "re-quantize" in FORMATS[36].withdrawn
    assert FORMATS[4].n_bytes(64) == 0
    assert FORMATS[36].bits_per_weight == 0.0
    assert type_name(200) == "unknown (200)"
    with pytest.raises(KeyError):
        by_name("Q9_Z")


def test_bits_per_weight() -> None:
    bits = {fmt.name: fmt.bits_per_weight for fmt in TWINS}
    assert bits["Q4_K"] == 4.5
    assert bits["Q5_0"] == 5.5
    assert bits["Q6_K"] == 6.5625


@pytest.mark.parametrize("fmt", TWINS, ids=name_of)
@pytest.mark.parametrize("width", [256, 512, 768])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_dequantize_is_exact(fmt: Format, width: int, rows: int) -> None:
    raw = random_blocks(fmt, np.random.default_rng(width + rows), (rows, width), 0.5)
    assert fmt.dequantize is not None
    ours = fmt.dequantize(raw)
    assert ours.dtype == np.float32
    assert ours.shape == (rows, width)
    assert ours.tobytes() == quants.dequantize(raw, GGMLQuantizationType(fmt.type_id)).tobytes()
    assert len(np.unique(ours)) > 8  # not a block of one value


def same_bits_or_both_nan(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Every bit, the sign of zeros included; a NaN's payload is nobody's promise."""
    nan = np.isnan(theirs)
    return bool(((ours.view(np.int32) == theirs.view(np.int32)) | nan).all()) and np.array_equal(np.isnan(ours), nan)


@pytest.mark.parametrize("fmt", TWINS, ids=name_of)
def test_dequantize_of_any_bytes_is_exact(fmt: Format) -> None:
    """Any bits at all, NaN and infinite scales included."""
    raw = np.random.default_rng(5).integers(0, 256, (3, 2, 800 * fmt.block_bytes), dtype=np.uint8)
    assert fmt.dequantize is not None
    with np.errstate(all="ignore"):
        ours, theirs = fmt.dequantize(raw), quants.dequantize(raw, GGMLQuantizationType(fmt.type_id))
    assert ours.shape == (3, 2, 800 * fmt.block_size)
    assert same_bits_or_both_nan(ours, theirs)


# Where each type keeps its f16 numbers, by which a whole block can become subnormal, infinite or NaN.
F16_AT = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)), "Q3_K": (108,), "Q6_K": (208,),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)), "Q2_K": (80, 82),
}  # fmt: skip
# zeros, the least and the largest subnormal, the least normal, the largest, infinities, quiet and signalling NaN
ODD_F16 = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01)


@pytest.mark.parametrize("fmt", [fmt for fmt in TWINS if fmt.name in F16_AT], ids=name_of)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_dequantize_with_odd_scales_is_exact(fmt: Format, data: st.DataObject) -> None:
    raw = np.frombuffer(data.draw(st.binary(min_size=fmt.block_bytes, max_size=fmt.block_bytes)), np.uint8).copy()
    for at in F16_AT[fmt.name]:
        raw[at : at + 2] = np.array([data.draw(st.sampled_from(ODD_F16))], "<u2").view(np.uint8)
    assert fmt.dequantize is not None
    with np.errstate(all="ignore"):
        ours, theirs = fmt.dequantize(raw), quants.dequantize(raw[None], GGMLQuantizationType(fmt.type_id))[0]
    assert same_bits_or_both_nan(ours, theirs)


def test_every_power_of_mxfp4_is_exact() -> None:
    """All 256 exponents with all 16 numbers: two powers are subnormal, and the largest numbers become infinite."""
    raw = np.zeros((256, 17), np.uint8)
    raw[:, 0] = np.arange(256)
    raw[:, 1:] = np.arange(16) | np.arange(16)[::-1] << 4
    fmt = by_name("MXFP4")
    assert fmt.dequantize is not None
    with np.errstate(over="ignore"):
        theirs = quants.dequantize(raw, GGMLQuantizationType.MXFP4)
    assert fmt.dequantize(raw).tobytes() == theirs.tobytes()
    assert np.isinf(theirs).sum() == 4 * (6 + 4 + 2)  # from 2, from 4 and from 8 on


@pytest.mark.parametrize("fmt", K_QUANTS, ids=name_of)
def test_every_sub_block_has_its_own_scale(fmt: Format) -> None:
    """Changing one byte of the block changes only what the layout says it may; all bytes matter."""
    raw = random_blocks(fmt, np.random.default_rng(1), (1, 256), 1.0)
    assert fmt.dequantize is not None
    base = fmt.dequantize(raw)[0]
    reach = []
    for i in range(fmt.block_bytes):
        changed = raw.copy()
        changed[0, i] ^= 1
        moved = np.flatnonzero(fmt.dequantize(changed)[0] != base)
        assert np.array_equal(
            moved, np.flatnonzero(quants.dequantize(changed, GGMLQuantizationType(fmt.type_id))[0] != base)
        )
        reach.append(len(moved))
    assert min(reach) >= 1
    quant_bytes = {"Q2_K": 64, "Q3_K": 96}.get(fmt.name, 128)
    assert sum(n == 1 for n in reach) >= quant_bytes  # they reach one weight by their lowest bit


@pytest.mark.parametrize("fmt", QUANTIZERS, ids=name_of)
@pytest.mark.parametrize("shape", [(256,), (3, 64), (2, 5, 96)])
def test_quantize_is_byte_exact(fmt: Format, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(3).normal(scale=0.3, size=shape).astype(np.float32)
    assert fmt.quantize is not None
    ours = fmt.quantize(values)
    theirs = quants.quantize(values, GGMLQuantizationType(fmt.type_id))
    assert ours.dtype == np.uint8
    assert ours.tobytes() == theirs.tobytes()
    assert ours.shape == (*shape[:-1], shape[-1] // fmt.block_size * fmt.block_bytes)


@pytest.mark.parametrize("fmt", QUANTIZERS, ids=name_of)
@settings(deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        64,
        elements=st.floats(-60000, 60000, width=32, allow_subnormal=True) | st.sampled_from([0.0, 1.0, -1.0]),
    )
)
def test_quantize_agrees_on_odd_numbers(fmt: Format, values: np.ndarray) -> None:
    assert fmt.quantize is not None
    with np.errstate(all="ignore"):
        theirs = quants.quantize(values, GGMLQuantizationType(fmt.type_id))
        assert fmt.quantize(values).tobytes() == theirs.tobytes()


@pytest.mark.parametrize(("name", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q5_0", 5), ("Q5_1", 5), ("Q8_0", 8)])
def test_round_trip_error_is_half_a_step(name: str, bits: int) -> None:
    fmt = by_name(name)
    values = np.random.default_rng(9).uniform(-1, 1, (50, 256)).astype(np.float32)
    assert fmt.quantize is not None
    assert fmt.dequantize is not None
    error = np.abs(fmt.dequantize(fmt.quantize(values)) - values)
    # a step is at most the block's span / levels; the types with an offset of their own clip one step at one end
    step = 2.0 / (2**bits - 2)
    assert error.max() <= step * 1.01
    assert error.mean() <= step / 3.5


@pytest.mark.parametrize("fmt", [fmt for fmt in TWINS if fmt.block_bytes > 4], ids=name_of)
def test_a_cut_block_is_refused(fmt: Format) -> None:
    assert fmt.dequantize is not None
    with pytest.raises(ValueError, match="multiple of"):
        fmt.dequantize(np.zeros((2, fmt.block_bytes + 1), np.uint8))
