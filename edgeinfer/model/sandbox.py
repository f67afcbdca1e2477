"""A Jinja environment like the one Transformers renders chat templates with, but bounded in time and memory.

A template comes with a model file, from anyone. Jinja's immutable sandbox keeps it from Python's internals and from
changing what it is given; the budget here keeps it from running for ever or filling the memory. Must not know what a
message or a token is.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import TemplateError
from .template_budget import Budget, LimitError

__all__ = ["TemplateSandbox"]

_SOURCE_LIMIT = 1 << 18  # characters; the largest in use have 30,000
_INDENT_LIMIT = 32

# filters that read their arguments as text
_STRINGIFY = {
    "batch",
    "capitalize",
    "center",
    "dictsort",
    "e",
    "escape",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
} | {"join", "lower", "replace", "string", "sum", "title", "trim", "truncate", "upper", "urlencode", "wordcount"}
_REMOVED = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")  # of no use in a prompt, and hard to bound


class _CodeGenerator(CodeGenerator):
    """Joins strings through the environment, so that it can count them."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join_values((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's part of a training text; it changes nothing in the text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inner"), [], [], body).set_lineno(line)

    def _inner(self, caller: Callable[[], str]) -> str:
        return caller()


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs templates; safe to use from several threads, one rendering at a time."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])
    code_generator_class = _CodeGenerator

    def __init__(self, max_seconds: float) -> None:
        """`max_seconds` bounds one rendering."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self._max_seconds = max_seconds
        self._budget = Budget(max_seconds, 0)
        self._lock = threading.Lock()
        self.finalize = self._finalize
        for name in _REMOVED:
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        self.filters["tojson"] = self._tojson
        self.filters = {name: self._guarded(name, function) for name, function in self.filters.items()}
        self.filters["_tick"] = lambda value: self._budget.tick()
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now

    # -- compile and run ----------------------------------------------------------------------------------------------

    def compiled(self, source: str) -> jinja2.Template:
        """Compile a template. Raises TemplateError naming the line."""
        if len(source) > _SOURCE_LIMIT:
            raise TemplateError(f"the chat template has {len(source)} characters; at most {_SOURCE_LIMIT} are read")
        try:
            return self.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
        except (RecursionError, MemoryError, SyntaxError, ValueError, TypeError, OverflowError) as error:
            raise TemplateError(
                f"the chat template cannot be compiled: {type(error).__name__}: {_first_line(error)}"
            ) from None

    def rendered(self, template: jinja2.Template, variables: Mapping[str, Any], n_input: int) -> str:
        """Run a template on `variables` of some `n_input` characters. Raises TemplateError naming the line."""
        with self._lock:
            self._budget = Budget(self._max_seconds, n_input)
            parts = []
            try:
                for part in template.root_render_func(template.new_context(dict(variables))):
                    self._budget.charge(part)
                    parts.append(part)
                return self.concat(parts)
            except Exception as error:
                raise TemplateError(_explain(error, template)) from None

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and have every turn of a loop look at the clock."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            tick = nodes.Filter(nodes.Const(None), "_tick", [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
        return tree

    # -- what templates do, counted -----------------------------------------------------------------------------------

    def concat(self, parts: Any) -> str:
        """Join what a macro, a block or the template has written."""
        listed = list(parts)
        self._budget.allow(sum(map(len, listed)))
        text = "".join(listed)
        self._budget.charge(text)
        return text

    def join_values(self, values: tuple[Any, ...]) -> str:
        """The operator `~`."""
        self._budget.measure(*values)
        text = "".join(map(str, values))
        self._budget.charge(text)
        return text

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make something large out of something small."""
        budget = self._budget
        budget.tick()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (str, bytes, list, tuple)) and isinstance(other, int):
                    budget.allow(len(one) * max(other, 0))
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.allow_bits(left.bit_length() * right)
        if operator == "+" and isinstance(left, (str, bytes, list, tuple)) and isinstance(right, type(left)):
            budget.allow(len(left) + len(right))
        if operator == "%" and isinstance(left, str):
            self._check_format(left, "%", right)
        result = super().call_binop(context, operator, left, right)
        budget.charge(result)
        return result

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call of a macro, a function or a method."""
        self._budget.tick()
        owner = getattr(obj, "__self__", None) or getattr(getattr(obj, "__wrapped__", None), "__self__", None)
        if isinstance(owner, str):
            args = self._checked_arguments(owner, getattr(obj, "__name__", ""), args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        self._budget.charge(result)
        return result

    def _checked_arguments(self, text: str, method: str, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
        """The arguments of a method of `text`, if the result cannot be too large."""
        allow = self._budget.allow
        if method in ("translate", "maketrans"):
            raise LimitError(f"the method {method} is not available")
        if method == "join" and args:
            args = ([*args[0]], *args[1:])
            allow(self._budget.measure(args[0]) + len(args[0]) * len(text))
        elif method == "replace" and len(args) >= 2:
            self._check_replace(text, args[0], args[1])
        elif method in ("center", "ljust", "rjust", "zfill"):
            allow(max([0, *(n for n in (*args, *kwargs.values()) if isinstance(n, int))]))
        elif method == "expandtabs":
            allow(text.count("\t") * max([8, *(n for n in (*args, *kwargs.values()) if isinstance(n, int))]))
        elif method in ("format", "format_map"):
            self._check_format(text, "{", args, kwargs)
        return args

    def _check_replace(self, text: Any, old: Any, new: Any) -> None:
        text, old, new = str(text), str(old), str(new)
        self._budget.allow(len(text) + text.count(old) * max(len(new) - len(old), 0))

    def _check_format(self, text: str, mark: str, *values: Any) -> None:
        if re.search(r"%[^a-zA-Z%]*([0-9]{5}|\*)" if mark == "%" else r"\{[^{}]*[0-9]{5}", text):
            raise LimitError("it formats with a width of five digits or one that is computed")
        widest = max([9999, *(n for value in values if isinstance(value, tuple) for n in value if isinstance(n, int))])
        self._budget.allow(len(text) + text.count(mark) * self._budget.measure(*values))
        if mark == "{" and "{" in re.sub(r"\{[^{}]*\}", "", text):  # a field inside a field: a width from a value
            self._budget.allow(text.count(mark) * widest)

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that cannot make something too large."""
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget
            budget.tick()
            head, given = args[:skip], list(args[skip:])
            if name in _STRINGIFY:
                if name in ("join", "sum", "batch") and given and not isinstance(given[0], str):
                    given[0] = list(given[0])
                size = budget.measure(*given, *kwargs.values())
                if name == "sum" and not isinstance(
                    kwargs.get("start", given[2] if len(given) > 2 else 0), (int, float)
                ):
                    raise LimitError("it adds up values that are not numbers")
                if name == "join":
                    separator = kwargs.get("d", given[1] if len(given) > 1 else "")
                    budget.allow(size + len(given[0]) * len(str(separator)))
                elif name == "replace" and len(given) >= 3:
                    self._check_replace(*given[:3])
                elif name == "format" and given:
                    self._check_format(str(given[0]), "%", tuple(given[1:]), kwargs)
                elif name in ("center", "indent", "batch"):
                    width = kwargs.get("width", given[1] if len(given) > 1 else 0)
                    lines = str(given[0]).count("\n") + 1 if name == "indent" else 1
                    budget.allow(size + lines * (width if isinstance(width, int) else len(str(width))))
            result = function(*head, *given, **kwargs)
            budget.charge(result)
            return result

        return run

    def _finalize(self, value: Any) -> Any:
        """What is about to be written as text."""
        if not isinstance(value, str):
            self._budget.measure(value)
        return value

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as Transformers writes it: no HTML escapes, other scripts as they are."""
        self._budget.measure(value)
        if indent is not None and (indent if isinstance(indent, int) else len(indent)) > _INDENT_LIMIT:
            raise LimitError(f"it indents by more than {_INDENT_LIMIT}")
        options = {"ensure_ascii": ensure_ascii, "separators": separators, "sort_keys": sort_keys}
        if indent is None:
            return json.dumps(value, **options)  # type: ignore[arg-type]
        parts, size = [], 0
        for part in json.JSONEncoder(indent=indent, **options).iterencode(value):  # type: ignore[arg-type]
            parts.append(part)
            size += len(part)
            self._budget.allow(size)
        return "".join(parts)

    def _strftime_now(self, format: str) -> str:
        """The date and time of now, local."""
        if re.search(r"[0-9]{3}", format):
            raise LimitError("it formats a date with a width of three digits")
        return datetime.now().strftime(format)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def _explain(error: Exception, template: jinja2.Template) -> str:
    """One sentence that says what went wrong and in which line of the template."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == (template.filename or "<template>"):
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    where = f" in line {line}" if line else ""
    if type(error) is jinja2.TemplateError:
        return f"the chat template refused the messages{where}: {_first_line(error)}"
    if isinstance(error, LimitError):
        return f"the chat template was stopped{where}: {_first_line(error)}"
    kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
    return f"the chat template failed{where}: {kind}{_first_line(error)}"
