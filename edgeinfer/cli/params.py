"""The sampling parameters of a chat in words, and how a user changes them there. Prints nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors import SettingError
from ..generate.params import GRAMMARS, SamplingParams, merged
from .answer import recommended

__all__ = ["changed_params", "params_line"]

_TEXTS = ("samplers", *GRAMMARS)
_ALWAYS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")
_NOT_SHOWN = ("stop", "logit_bias", "seed", "max_tokens", "ignore_eos", *GRAMMARS)


def params_line(chosen: Mapping[str, Any], model: str) -> str:
    """One line: the usual parameters and all that differ from the defaults, and where they come from."""
    params, plain = merged(None, chosen), SamplingParams()
    shown = [
        f"{entry.name} {_show(getattr(params, entry.name))}"
        for entry in fields(SamplingParams)
        if entry.name in _ALWAYS
        or (entry.name not in _NOT_SHOWN and getattr(params, entry.name) != getattr(plain, entry.name))
    ]
    shown += [f"{name} given" for name in GRAMMARS if getattr(params, name) is not None]
    advice = recommended(model)
    if not advice:
        return f"sampling: {', '.join(shown)}"
    followed = all(chosen.get(name) == value for name, value in advice.items())
    return f"sampling: {', '.join(shown)} ({'recommended for' if followed else 'not all as recommended for'} {model})"


def changed_params(chosen: Mapping[str, Any], text: str) -> dict[str, Any]:
    """`chosen` with NAME=VALUE pairs on top; "NAME=" takes one out. Raises SettingError that names what is wrong."""
    known = [entry.name for entry in fields(SamplingParams)]
    try:
        pairs = shlex.split(text)
    except ValueError:
        pairs = [""]
    found = dict(chosen)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or name not in known:
            raise SettingError(f"/params wants NAME=VALUE; {pair!r} is not that (names: {', '.join(known)})")
        if value:
            found[name] = _read(name, value)
        else:
            found.pop(name, None)
    merged(None, found)
    return found


def _read(name: str, value: str) -> Any:
    if name in _TEXTS:
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ";".join(value).replace("\n", "\\n")
    return f"{value:g}" if isinstance(value, float) else str(value)
