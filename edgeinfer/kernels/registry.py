"""Every kernel by name. Imports numba, so only the compiling child process imports this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..runtime import threads_native
from . import (
    attention,
    floats,
    iq4_nl,
    iq4_xs,
    logits,
    meter,
    mxfp4,
    norm,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    rope,
    short_conv,
)
from .experts import experts_kernels

QUANTIZED = (q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4)
FORMATS = (floats, *QUANTIZED)
MODULES = (norm, rope, attention, short_conv, logits, meter, *FORMATS)

KERNELS: Mapping[str, Callable[..., Any]] = {
    "runtime.run": threads_native.run,
    "runtime.work": threads_native.work,
    "runtime.stop": threads_native.stop,
    **{name: function for module in MODULES for name, function in module.KERNELS.items()},
    **experts_kernels({module.__name__.rpartition(".")[2]: module.dot for module in QUANTIZED}),
}
