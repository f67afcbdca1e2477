"""GGML types that are listed by name and size only, so that `inspect` can show any file; and the withdrawn ones."""

from __future__ import annotations

from .format import Format

__all__ = ["LISTED", "WITHDRAWN"]

LISTED: tuple[Format, ...] = (
    Format("Q8_1", 9, 32, 36),  # the `gguf` package still says 40, from when the scales were f32
    Format("Q8_K", 15, 256, 292),
    Format("IQ2_XXS", 16, 256, 66),
    Format("IQ2_XS", 17, 256, 74),
    Format("IQ3_XXS", 18, 256, 98),
    Format("IQ1_S", 19, 256, 50),
    Format("IQ3_S", 21, 256, 110),
    Format("IQ2_S", 22, 256, 82),
    Format("I8", 24, 1, 1),
    Format("I16", 25, 1, 2),
    Format("I32", 26, 1, 4),
    Format("I64", 27, 1, 8),
    Format("F64", 28, 1, 8),
    Format("IQ1_M", 29, 256, 56),
    Format("TQ1_0", 34, 256, 54),
    Format("TQ2_0", 35, 256, 66),
    Format("NVFP4", 40, 64, 36),
    Format("Q1_0", 41, 128, 18),
    Format("Q2_0", 42, 64, 18),
)

_OLD = "GGML has withdrawn this type; re-quantize the model from its original weights"
_PACKED = "GGML has withdrawn this pre-packed type; re-quantize the model to Q4_0, which is packed when it is loaded"

WITHDRAWN: tuple[Format, ...] = (
    Format("Q4_2", 4, 0, 0, withdrawn=_OLD),
    Format("Q4_3", 5, 0, 0, withdrawn=_OLD),
    Format("Q4_0_4_4", 31, 0, 0, withdrawn=_PACKED),
    Format("Q4_0_4_8", 32, 0, 0, withdrawn=_PACKED),
    Format("Q4_0_8_8", 33, 0, 0, withdrawn=_PACKED),
    Format("IQ4_NL_4_4", 36, 0, 0, withdrawn=_PACKED),
    Format("IQ4_NL_4_8", 37, 0, 0, withdrawn=_PACKED),
    Format("IQ4_NL_8_8", 38, 0, 0, withdrawn=_PACKED),
)
