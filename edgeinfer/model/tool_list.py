"""The tools that a conversation offers, checked once, and the one that a template is tried with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SettingError

__all__ = ["PROBE", "PROBE_NAME", "check_tools"]

_WANTED = "{'type': 'function', 'function': {'name': ..., 'description': ..., 'parameters': {...}}}"
PROBE_NAME = "lookup_d41d"  # where it stands in a prompt, the template has told the model about it
PROBE = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "Looks up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "k"}},
            "required": ["key"],
        },
    },
}


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The tools as a list of dicts, as the OpenAI API has them; None where there are none.

    Raises SettingError naming the tool and the field that cannot be used.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise SettingError(f"tools is {type(tools).__name__}; wanted a list of {_WANTED}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise SettingError(f"tools[{i}] is {type(tool).__name__}; wanted {_WANTED}")
        if tool.get("type") != "function":
            raise SettingError(f"tools[{i}]['type'] is {tool.get('type')!r}; wanted 'function', as in {_WANTED}")
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise SettingError(f"tools[{i}]['function'] is {type(function).__name__}; wanted a dict, as in {_WANTED}")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise SettingError(f"tools[{i}]['function']['name'] is {name!r}; wanted the name of the function")
        for key, kind, wanted in (("description", str, "a text"), ("parameters", Mapping, "a JSON schema as a dict")):
            value = function.get(key)
            if value is not None and not isinstance(value, kind):
                raise SettingError(f"tools[{i}]['function'][{key!r}] is {type(value).__name__}; wanted {wanted}")
        try:
            json.dumps(tool)
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError(f"tools[{i}] cannot be written as JSON: {error}; wanted {_WANTED}") from None
    return [dict(tool) for tool in tools] or None
