"""A Jinja environment like the one Transformers renders chat templates with, but bounded in time and memory.

A template comes with a model file, from anyone. Jinja's immutable sandbox keeps it from Python's internals and from
changing what it is given; the budget here keeps it from running for ever or filling the memory. Must not know what a
message or a token is.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import TemplateError
from .template_budget import Budget, LimitError
from .template_dialect import CountingCode, GenerationTag, TemplateDict, TemplateNamespace
from .template_guards import Lazy, allow_percent, filter_guard, guarded_method

__all__ = ["TemplateSandbox"]

_SOURCE_LIMIT = 48_000  # characters; the largest in use have 17,000, and compiling takes some 10 us for each
_INDENT_LIMIT = 32
_FORMAT_LIMIT = 200  # characters of the format of a date

_REMOVED = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")  # of no use in a prompt, and hard to bound


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs templates; safe to use from several threads, one rendering at a time."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])
    code_generator_class = CountingCode

    def __init__(self, max_seconds: float) -> None:
        """`max_seconds` of work bound one rendering of a short conversation; longer ones get more."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self._max_seconds = max_seconds
        self._budget = Budget(max_seconds, 0)
        self._lock = threading.Lock()
        self.finalize = self._finalize
        for name in _REMOVED:
            self.filters.pop(name, None)
        self.filters["tojson"] = self._tojson
        self.filters = {name: self._guarded(name, function) for name, function in self.filters.items()}
        self.filters["_tick"] = lambda value: self._budget.tick()
        self.globals.pop("lipsum", None)
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            "namespace": TemplateNamespace,
            "dict": TemplateDict(),
        }

    # -- compile and run ----------------------------------------------------------------------------------------------

    def compiled(self, source: str) -> jinja2.Template:
        """Compile a template. Raises TemplateError naming the line."""
        if len(source) > _SOURCE_LIMIT:
            raise TemplateError(f"the chat template has {len(source)} characters; at most {_SOURCE_LIMIT} are read")
        try:
            with self._lock:
                return self.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
        except (RecursionError, MemoryError, SyntaxError, ValueError, TypeError, OverflowError) as error:
            line = _line_reached(error)
            where = f" (line {line})" if line else ""
            what = "it is nested too deeply" if isinstance(error, RecursionError) else _first_line(error)
            raise TemplateError(
                f"the chat template cannot be compiled{where}: {type(error).__name__}: {what}"
            ) from None

    def asked_for(self, source: str) -> frozenset[str]:
        """The names that a template takes from its caller, as far as can be told. Raises what jinja2 raises."""
        return frozenset(jinja2.meta.find_undeclared_variables(self.parse(source)))

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
        for scope in tree.find_all(nodes.ScopedEvalContextModifier):
            raise jinja2.TemplateSyntaxError(
                "autoescape is for web pages, not for prompts", scope.lineno, name, filename
            )
        for loop in list(tree.find_all(nodes.For)):
            tick = nodes.Filter(nodes.Const(None), "_tick", [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
        return tree

    # -- what templates do, counted -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """An operation that makes nothing."""
        self._budget.tick()

    def made(self, value: Any) -> Any:
        """A list, tuple, dict or slice that was just made."""
        self._budget.tick()
        self._budget.charge(value)
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`, counted."""
        self._budget.tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`, counted."""
        self._budget.tick()
        return super().getitem(obj, argument)

    def concat(self, parts: Any) -> str:
        """Join what a macro, a block or the template has written."""
        listed = list(parts)
        self._budget.allow(sum(map(len, listed)))
        text = "".join(listed)
        self._budget.charge(text)
        return text

    def join_values(self, values: tuple[Any, ...]) -> str:
        """The operator `~`."""
        self._budget.tick()
        self._budget.allow(sum(map(self._budget.size, values)))
        text = "".join(map(str, values))
        self._budget.charge(text)
        return text

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make something large out of something small."""
        budget = self._budget
        budget.tick()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (str, list, tuple)) and isinstance(other, int):
                    budget.allow(len(one) * max(other, 0))
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.allow_bits(left.bit_length() * right)
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, type(left)):
            budget.allow(len(left) + len(right))
        if operator == "%" and isinstance(left, str):
            allow_percent(budget, left, right)
        result = super().call_binop(context, operator, left, right)
        budget.charge(result)
        return result

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call of a macro, a function or a method."""
        self._budget.tick()
        args = guarded_method(self._budget, obj, args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        self._budget.charge(result)
        return result

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that cannot make something too large, nor take too long."""
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0
        check = filter_guard(name, function)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget
            budget.tick()
            head, given = args[:skip], args[skip:]
            if check is not None:
                given, kwargs = check(budget, given, kwargs)
            result = function(*head, *given, **kwargs)
            if isinstance(result, Iterator):
                return Lazy(result)
            if not any(result is value for value in given):
                budget.charge(result)
            return result

        return run

    @jinja2.pass_context  # so that Jinja does not call it while compiling
    def _finalize(self, context: Any, value: Any) -> Any:
        """What is about to be written as text."""
        self._budget.tick()
        if not isinstance(value, str):
            self._budget.size([value])
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
        size = self._budget.size([value])
        for text in separators or ():
            self._budget.allow(size * len(text) // 4)
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
        if len(format) > _FORMAT_LIMIT or re.search(r"[0-9]{3}", format):
            raise LimitError("it formats a date with a long format, or a width of three digits")
        return datetime.now().strftime(format)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _line_reached(error: BaseException) -> int | None:
    """The line of the template that the parser or the code generator was at when an error ended it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        inner = trace.tb_frame.f_locals
        node, parser = inner.get("node"), inner.get("self")
        if isinstance(node, nodes.Node) or isinstance(node := parser, nodes.Node):
            line = node.lineno or line
        elif isinstance(parser, Parser):
            line = parser.stream.current.lineno
        trace = trace.tb_next
    return line


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
