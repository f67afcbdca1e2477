"""What each filter and each method of a value may cost inside a chat template, decided before it runs.

Only methods listed here can be called. A filter or method that can make much out of little, or take long over it, has
a function that refuses such arguments. Must not know what a message is.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterator
from types import BuiltinMethodType
from typing import Any

from .template_budget import Budget, LimitError

__all__ = ["METHOD_NAMES", "Lazy", "allow_format", "allow_percent", "allow_replace", "filter_guard", "guarded_method"]

_PRECISION_LIMIT = 400  # of the filter `round`
_DIGITS = re.compile(r"\d+")  # of any script, as Python's own format takes them
_STRING_METHODS = (
    *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map"),
    *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
    *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip"),
    *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
)
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STRING_METHODS),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    int: frozenset(("as_integer_ratio", "bit_count", "bit_length", "conjugate", "is_integer")),
    float: frozenset(("as_integer_ratio", "conjugate", "hex", "is_integer")),
}

METHOD_NAMES = frozenset(name for names in _METHODS.values() for name in names)


class Lazy(Iterator[Any]):
    """An iterator that a filter returned. Like Jinja's generators it is true, has no length and is used up once."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def __next__(self) -> Any:
        return next(self._items)


# -- methods ----------------------------------------------------------------------------------------------------------


def guarded_method(budget: Budget, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments to call a method with, if it is one of those that may be called and cannot cost too much.

    Anything that is no method of a built-in type is left alone.
    """
    inner = getattr(method, "__wrapped__", method)  # the sandbox wraps str.format
    if not isinstance(inner, BuiltinMethodType):
        return args
    owner, name = inner.__self__, inner.__name__
    for kind, names in _METHODS.items():
        if isinstance(owner, kind) and name in names:
            return _text_arguments(budget, owner, name, args, kwargs) if isinstance(owner, str) else args
    raise LimitError(f"the method {name} of a {type(owner).__name__} is not available in a chat template")


def _text_arguments(
    budget: Budget, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    given = [*args, *kwargs.values()]
    first = given[0] if given else None
    if name in ("center", "ljust", "rjust", "zfill"):
        budget.allow(first if isinstance(first, int) else 0)
    elif name == "expandtabs":
        budget.allow(len(text) + text.count("\t") * (first if isinstance(first, int) else 8))
    elif name in ("split", "rsplit", "splitlines"):
        n = text.count(first) if isinstance(first, str) and first else len(text) // 2
        budget.allow(8 * n)
    if name.startswith("r") and name not in ("replace", "rjust") and isinstance(first, str):
        budget.allow_work(len(text) * len(first))  # Python's search from the right compares again and again
    elif name in ("strip", "lstrip") and isinstance(first, str):
        budget.allow_work(len(text) * len(first))
    elif name == "join" and args:
        if not isinstance(args[0], str):
            args = ([*args[0]], *args[1:])
        budget.allow(budget.size(args[0]) + len(args[0]) * len(text))
    elif name == "replace" and len(given) >= 2:
        allow_replace(budget, text, given[0], given[1])
    elif name in ("format", "format_map"):
        allow_format(budget, text, given)
    return args


def allow_replace(budget: Budget, text: Any, old: Any, new: Any) -> None:
    """Refuse a replacement that would make too long a text."""
    text, old, new = str(text), str(old), str(new)
    budget.allow(len(text) + text.count(old) * max(len(new) - len(old), 0))


def allow_format(budget: Budget, text: str, values: list[Any]) -> None:
    """Refuse a `str.format` that would make too long a text, or whose widths cannot be read off it."""
    fields, widest = 0, 0
    try:
        for _, field, spec, _ in string.Formatter().parse(text):
            fields += field is not None
            if spec and "{" in spec:
                raise LimitError("it formats with a width that is computed")
            widest = max([widest, *_numbers(spec or "")])
    except ValueError:
        return  # the format fails by itself
    budget.allow(len(text) + fields * (sum(map(budget.size, values)) + widest))


def allow_percent(budget: Budget, text: str, values: Any) -> None:
    """Refuse a `text % values` that would make too long a text, or whose widths cannot be read off it."""
    widest = 0
    for spec in re.findall(r"%(?:\([^)]*\))?([^a-zA-Z%]*)", text):
        if "*" in spec:
            raise LimitError("it formats with a width that is computed")
        widest = max([widest, *_numbers(spec)])
    budget.allow(len(text) + text.count("%") * (budget.size(values) + widest))


def _numbers(spec: str) -> list[int]:
    """The numbers in a format, of any script; more than four digits are refused."""
    found = _DIGITS.findall(spec)
    if any(len(digits) > 4 for digits in found):
        raise LimitError("it formats with a width of five digits")
    return [int(digits) for digits in found]


# -- filters ----------------------------------------------------------------------------------------------------------

Arguments = dict[str, Any]


def _indent(budget: Budget, given: Arguments) -> None:
    width, text = given["width"], str(given["s"])
    each = width if isinstance(width, int) else len(str(width))
    budget.allow(len(text) + (text.count("\n") + 1) * max(each, 0))


def _center(budget: Budget, given: Arguments) -> None:
    budget.allow(given["width"] if isinstance(given["width"], int) else 0)


def _batch(budget: Budget, given: Arguments) -> None:
    budget.allow(given["linecount"] if isinstance(given["linecount"], int) else 0)


def _slice(budget: Budget, given: Arguments) -> None:
    budget.allow(given["slices"] if isinstance(given["slices"], int) else 0)


def _join(budget: Budget, given: Arguments) -> None:
    if not isinstance(given["value"], str):
        given["value"] = list(given["value"])
    budget.allow(budget.size(given["value"]) + len(given["value"]) * len(str(given["d"])))


def _replace(budget: Budget, given: Arguments) -> None:
    allow_replace(budget, given["s"], given["old"], given["new"])


def _format(budget: Budget, given: Arguments) -> None:
    allow_percent(budget, str(given["value"]), [*given["args"], *given["kwargs"].values()])


def _sum(budget: Budget, given: Arguments) -> None:
    if not isinstance(given["start"], (int, float)):
        raise LimitError("it adds up values that are not numbers")


def _round(budget: Budget, given: Arguments) -> None:
    if not isinstance(given["precision"], int) or abs(given["precision"]) > _PRECISION_LIMIT:
        raise LimitError(f"it rounds to more than {_PRECISION_LIMIT} places")


def _trim(budget: Budget, given: Arguments) -> None:
    if given["chars"] is not None:
        budget.allow_work(len(str(given["value"])) * len(str(given["chars"])))


def _sorted(budget: Budget, given: Arguments) -> None:
    """Comparing takes many steps for each element: fewer of them."""
    value = given["value"]
    if isinstance(value, Iterator):
        value = given["value"] = list(value)
    budget.allow(8 * len(value) if hasattr(value, "__len__") else 0)
    budget.allow(2 * budget.size(value))


_FILTERS: dict[str, Callable[[Budget, Arguments], None]] = {
    "indent": _indent,
    "center": _center,
    "batch": _batch,
    "slice": _slice,
    "join": _join,
    "replace": _replace,
    "format": _format,
    "sum": _sum,
    "round": _round,
    "trim": _trim,
    **dict.fromkeys(("sort", "unique", "groupby", "dictsort", "min", "max"), _sorted),
}


def filter_guard(name: str, function: Callable[..., Any]) -> Callable[[Budget, Any, Any], tuple[Any, Any]] | None:
    """A function (budget, args, kwargs) -> (args, kwargs) that refuses what a filter must not be given; None where
    nothing can be wrong. `args` begin with the filter's value, behind what Jinja passes by itself."""
    check = _FILTERS.get(name)
    if check is None:
        return None
    signature = inspect.signature(inspect.unwrap(function))
    own = [p for p in signature.parameters.values() if p.name not in ("environment", "eval_ctx", "context")]
    signature = signature.replace(parameters=own)

    def guard(budget: Budget, args: Any, kwargs: Any) -> tuple[Any, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        check(budget, bound.arguments)
        return bound.args, bound.kwargs

    return guard
