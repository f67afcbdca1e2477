"""How a sampling parameter is read: each check returns the value in one form or raises a SettingError that names it."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import SettingError

__all__ = ["biases", "json_text", "number", "sampler_names", "strings", "text", "whole"]

# what llama.cpp's command line takes for these names, too
_ALIASES = {"typical_p": "typ_p", "typical": "typ_p", "typ": "typ_p", "nucleus": "top_p", "temp": "temperature"}


def number(name: str, value: Any, low: float, high: float, wanted: str = "") -> float:
    """A finite number from low to high."""
    if type(value) is float and low <= value <= high and math.isfinite(value):
        return value
    if not wanted:
        if math.isfinite(high):
            wanted = f"a number from {low:g} to {high:g}"
        else:
            wanted = f"a number, {low:g} or above" if math.isfinite(low) else "a number"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise SettingError(f"{name} is {value!r}; wanted {wanted}")
    found = float(value)
    if not math.isfinite(found) or not low <= found <= high:
        raise SettingError(f"{name} is {value!r}; wanted {wanted}")
    return found


def whole(name: str, value: Any, low: int, wanted: str) -> int:
    """A whole number, at least low."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise SettingError(f"{name} is {value!r}; wanted a whole number, {wanted}")
    return int(value)


def biases(value: Any) -> Mapping[int, float]:
    """A mapping of token ids to numbers or -inf."""
    if not isinstance(value, Mapping):
        raise SettingError(f"logit_bias is {value!r}; wanted a mapping of token ids to numbers")
    clean: dict[int, float] = {}
    for key, bias in value.items():
        token = whole("a token id of logit_bias", key, 0, "0 or more")
        banned = isinstance(bias, float) and bias == -math.inf
        clean[token] = bias if banned else number(f"logit_bias[{token}]", bias, -math.inf, math.inf, "a number or -inf")
    return clean


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or a list of strings, without the empty ones."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable):
        raise SettingError(f"{name} is {value!r}; wanted a string or a list of strings")
    found = tuple(value)
    for i, entry in enumerate(found):
        if not isinstance(entry, str):
            raise SettingError(f"{name}[{i}] is {entry!r}; wanted a string")
    return tuple(entry for entry in found if entry)


def sampler_names(value: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of samplers, each at most once; llama.cpp's other names for them are understood."""
    wanted = f"wanted names out of {'; '.join(known)}, in the order in which they are to be used"
    if isinstance(value, str):
        value = [part for part in value.split(";") if part.strip()]
    if not isinstance(value, Iterable):
        raise SettingError(f"samplers is {value!r}; {wanted}")
    names: list[str] = []
    for entry in value:
        name = entry.strip().lower().replace("-", "_") if isinstance(entry, str) else entry
        name = _ALIASES.get(name, name) if isinstance(name, str) else name
        if name not in known:
            raise SettingError(f"samplers has {entry!r}; {wanted}")
        if name in names:
            raise SettingError(f"samplers has {name!r} twice; {wanted}")
        names.append(name)
    return tuple(names)


def text(name: str, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise SettingError(f"{name} is {value!r}; wanted a text")
    if not value.strip():
        raise SettingError(f"{name} is empty; wanted a text")
    return value


def json_text(name: str, value: Any) -> str:
    """A JSON schema as its JSON text: given as that, or as a dict (or True, which allows any JSON)."""
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except RecursionError:
            raise SettingError(f"{name} is nested too deeply") from None
        except ValueError as error:
            raise SettingError(f"{name} is no JSON document: {error}; wanted a JSON schema") from None
    else:
        found = value
    if not isinstance(found, (Mapping, bool)):
        kind = {list: "an array", tuple: "an array", str: "a string", type(None): "null"}.get(type(found), "a number")
        kind = kind if isinstance(found, (list, tuple, str, int, float, type(None))) else type(found).__name__
        raise SettingError(f"{name} is {kind}; wanted a JSON schema: an object, true or false, or its text")
    if found is False:
        raise SettingError(f"{name} is false, which no JSON fits; wanted a schema that something fits")
    try:
        return json.dumps(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(f"{name} cannot be written as JSON: {error}; wanted a JSON schema") from None
