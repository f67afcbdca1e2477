"""One file per GGML type: its number, its block layout, its sizes and its NumPy twin. Must not know numba or a file.

`FORMATS` is the registry: type id -> Format. Nobody else switches on a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .bf16 import BF16
from .f16 import F16
from .f32 import F32
from .format import Format
from .iq4_nl import IQ4_NL
from .iq4_xs import IQ4_XS
from .listed import LISTED, WITHDRAWN
from .mxfp4 import MXFP4
from .q2_k import Q2_K
from .q3_k import Q3_K
from .q4_0 import Q4_0
from .q4_1 import Q4_1
from .q4_k import Q4_K
from .q5_0 import Q5_0
from .q5_1 import Q5_1
from .q5_k import Q5_K
from .q6_k import Q6_K
from .q8_0 import Q8_0

__all__ = ["FORMATS", "Format", "by_name", "type_name"]

_ALL: tuple[Format, ...] = (
    *(F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4),
    *LISTED,
    *WITHDRAWN,
)

FORMATS: Mapping[int, Format] = MappingProxyType({fmt.type_id: fmt for fmt in _ALL})
_BY_NAME = {fmt.name: fmt for fmt in _ALL}


def by_name(name: str) -> Format:
    """The format with this GGML name ("Q4_K", any case). Raises KeyError."""
    return _BY_NAME[name.upper()]


def type_name(type_id: int) -> str:
    """The GGML name of a type id, or "unknown (200)"."""
    fmt = FORMATS.get(type_id)
    return fmt.name if fmt else f"unknown ({type_id})"
