"""What chat templates have beyond Jinja, as Transformers has it, and the code that is written for them.

The code counts every operation through its environment, `sandbox.TemplateSandbox`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

__all__ = ["CountingCode", "GenerationTag", "TemplateDict", "TemplateNamespace"]


class CountingCode(CodeGenerator):
    """Writes code whose every operation is counted by the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Values joined by `~`, whose length is counted before."""
        self.write("environment.join_values((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """A comparison: an operation."""
        self.write("(environment.tick() or ")
        super().visit_Compare(node, frame)
        self.write(")")

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        """A test: an operation."""
        self.write("(environment.tick() or ")
        super().visit_Test(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """A list that is made."""
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """A dict that is made."""
        self.write("environment.made(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """A tuple that is made; not one of names to be set."""
        loads = node.ctx == "load"
        self.write("environment.made(" if loads else "")
        super().visit_Tuple(node, frame)
        self.write(")" if loads else "")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """A slice that is made."""
        is_slice = isinstance(node.arg, nodes.Slice)
        self.write("environment.made(" if is_slice else "")
        super().visit_Getitem(node, frame)
        self.write(")" if is_slice else "")


class GenerationTag(Extension):
    """{% generation %} marks the assistant's part of a training text; it changes nothing in the text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag and what it holds, as a call that gives it back."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inner"), [], [], body).set_lineno(line)

    def _inner(self, caller: Callable[[], str]) -> str:
        return caller()


class TemplateNamespace(Namespace):
    """`namespace()`, which must not be given names that begin with an underscore: none of Transformers' may."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}: it begins with an underscore")


class TemplateDict:
    """`dict()`, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """A dict."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """A dict of keys that all have one value."""
        return dict.fromkeys(*args)
