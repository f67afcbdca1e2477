"""What a reader should know about a chat template before trusting a model file to it. Must not know who asks.

    for finding in lint(source, tokenizer):
        print(finding.severity, finding.line, finding.text)

The template is looked at (its syntax tree) and tried, in the sandbox, with short chats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import nodes

from ..errors import TemplateError
from .sandbox import TemplateSandbox
from .template_guards import METHOD_NAMES
from .thinking import find_format, find_switch
from .tokenizer import Tokenizer
from .tool_list import PROBE, PROBE_NAME

__all__ = ["Finding", "lint"]

_SECONDS = 0.5  # of work for one trial
_LARGE = 100_000  # a number in a template above which it is not after text
_MUTATING = (
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
)
_MARK = re.compile(
    r"<\|[^|<>\s{}]{1,40}\|>|<｜[^｜<>\s{}]{1,40}｜>|<(?:start|end)_of_[a-z_]+>|</?s>|\[/?[A-Z_]{3,30}\]"
)
_TOKENS = {"bos_token": "<bos-of-lint>", "eos_token": "<eos-of-lint>"}  # where there is no vocabulary
_USER, _ANSWER, _SYSTEM = "Question-7f3a", "Answer-91bc", "Rule-c05d"


@dataclass(frozen=True)
class Finding:
    """One thing to know. "error": it does not work; "warning": it may not do what is expected; "info": how it is."""

    severity: str
    line: int | None
    text: str
    fatal: bool = False  # no chat at all can be rendered

    def __str__(self) -> str:
        """In one line."""
        return f"{self.severity}{f' in line {self.line}' if self.line else ''}: {self.text}"


def lint(source: str, tokenizer: Tokenizer | None = None) -> list[Finding]:
    """Findings about a template, errors first, then by line. With a tokenizer, also how it fits the vocabulary."""
    sandbox = TemplateSandbox(_SECONDS)
    try:
        template = sandbox.compiled(source)
        tree = sandbox.parse(source)
    except TemplateError as error:
        return [replace(_failure("error", str(error)), fatal=True)]
    except Exception as error:  # a filter that Jinja only misses when it parses for us
        return [Finding("error", getattr(error, "lineno", None), str(error))]
    found = [*_look(tree, sandbox, source), *_Trial(sandbox, template, source, tokenizer).findings()]
    if tokenizer is not None:
        found += _unknown_marks(tree, tokenizer)
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(dict.fromkeys(found), key=lambda f: (order[f.severity], f.line or 0))


def _failure(severity: str, message: str, prefix: str = "") -> Finding:
    """A finding of a TemplateError, which names the line itself."""
    line = re.search(r"\bline (\d+)", message)
    text = re.sub(
        r"^the chat template (has an error|failed|refused the messages|was stopped)?( in line \d+)?:? ?", "", message
    )
    return Finding(severity, int(line[1]) if line else None, prefix + (text or message))


# -- looked at --------------------------------------------------------------------------------------------------------


def _look(tree: nodes.Template, sandbox: TemplateSandbox, source: str) -> Iterator[Finding]:
    for node in tree.find_all(nodes.Filter):
        if node.name not in sandbox.filters:
            yield Finding("warning", node.lineno, f"there is no filter {node.name!r}; it fails where it is used")
        elif node.name == "random":
            yield Finding("warning", node.lineno, "writes something at random: the same chat gives different prompts")
    for test in tree.find_all(nodes.Test):
        if test.name not in sandbox.tests:
            yield Finding("warning", test.lineno, f"there is no test {test.name!r}; it fails where it is used")
    for other in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        yield Finding("warning", other.lineno, "reads another template; a model file holds none, so it fails there")
    asked = sandbox.asked_for(source)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name):
            name = call.node.name
            if name == "strftime_now":
                yield Finding(
                    "info", call.lineno, "writes the date: prompts change with it, and what is cached of them"
                )
            elif name in asked and name not in sandbox.globals and name not in _assigned(tree):
                yield Finding("warning", call.lineno, f"calls {name}(), which is not defined here nor in Transformers")
        elif isinstance(call.node, nodes.Getattr):
            name = call.node.attr
            if name in _MUTATING:
                yield Finding(
                    "warning", call.lineno, f"calls .{name}(), which changes a value: refused, as in Transformers"
                )
            elif name in ("translate", "encode", "maketrans", "to_bytes", "from_bytes"):
                yield Finding("warning", call.lineno, f"calls .{name}(), which is not available")
            elif name not in METHOD_NAMES and isinstance(call.node.node, nodes.Const):
                yield Finding("warning", call.lineno, f"calls .{name}() of a constant, which is not available")
    yield from _hostile(tree)


def _assigned(tree: nodes.Template) -> set[str]:
    """Names that are set somewhere: macros, variables, parameters."""
    names = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
    return names | {node.name for node in tree.find_all(nodes.Macro)} | {"caller", "loop"}


def _hostile(tree: nodes.Template) -> Iterator[Finding]:
    internal = "reaches for Python's internals ({}): the sandbox refuses it; ask who made this file"
    for node in tree.find_all(nodes.Getattr):
        if node.attr.startswith("__"):
            yield Finding("error", node.lineno, internal.format(node.attr))
    for const in tree.find_all(nodes.Const):
        if isinstance(const.value, str) and (found := re.search(r"__[a-z]+__", const.value)):
            yield Finding("error", const.lineno, internal.format(found[0]))
        elif isinstance(const.value, int) and not isinstance(const.value, bool) and abs(const.value) > _LARGE:
            yield Finding("warning", const.lineno, f"has the number {const.value}, which is large for a prompt")
    for power in tree.find_all(nodes.Pow):
        yield Finding("warning", power.lineno, "raises to a power, which a prompt has no use for")


def _unknown_marks(tree: nodes.Template, tokenizer: Tokenizer) -> Iterator[Finding]:
    """What the template writes that looks like a control token and is none in the vocabulary."""
    seen: dict[str, int] = {}
    for node in tree.find_all((nodes.TemplateData, nodes.Const)):
        text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
        if not isinstance(text, str):
            continue
        for match in _MARK.finditer(text):
            seen.setdefault(match[0], node.lineno + text.count("\n", 0, match.start()))
    strange = [mark for mark in seen if len(tokenizer.encode_fragment(mark, control=True)) != 1]
    for mark in strange[:5]:
        yield Finding(
            "warning", seen[mark], f"writes {mark}, which is no token of this vocabulary: the model sees letters"
        )
    if len(strange) > 5:
        yield Finding("warning", None, f"writes {len(strange) - 5} more marks that are no tokens of this vocabulary")


# -- tried ------------------------------------------------------------------------------------------------------------


class _Trial:
    """What a template makes of short chats."""

    def __init__(self, sandbox: TemplateSandbox, template: Any, source: str, tokenizer: Tokenizer | None) -> None:
        self.sandbox, self.template, self.source, self.tokenizer = sandbox, template, source, tokenizer
        self.tokens = dict(_TOKENS)
        if tokenizer is not None:
            ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
            self.tokens = {name: text for name, i in ids.items() if (text := tokenizer.token_text(i)) is not None}
        self.user = {"role": "user", "content": _USER}

    def render(
        self, messages: list[dict[str, Any]], *, prompt: bool = True, tools: Any = None, **variables: Any
    ) -> str:
        given = {
            **self.tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        return self.sandbox.rendered(self.template, {**given, **variables}, 1000)

    def tried(self, *args: Any, **kwargs: Any) -> tuple[str, str]:
        """The text and "", or "" and why there is none."""
        try:
            return self.render(*args, **kwargs), ""
        except TemplateError as error:
            return "", str(error)

    def findings(self) -> Iterator[Finding]:
        plain, why = self.tried([self.user])
        with_tools, why_tools = self.tried([self.user], tools=[PROBE])
        if why and why_tools:
            yield replace(_failure("error", why, "refuses even a chat of one message: "), fatal=True)
            return
        if why:
            yield _failure("warning", why, "wants tools, and fails without them: ")
        else:
            yield from self._tools(plain, with_tools, why_tools)
        base, more = (plain, {}) if plain else (with_tools, {"tools": [PROBE]})
        if _USER not in base:
            yield Finding("error", None, "leaves out what the user says")
        yield from self._system(more)
        yield from self._turns(base, more)
        yield from self._begin(base)
        yield from self._thinking(base)

    def _tools(self, plain: str, with_tools: str, why: str) -> Iterator[Finding]:
        if why:
            yield _failure("warning", why, "fails where tools are offered: ")
        elif with_tools == plain or PROBE_NAME not in with_tools:
            yield Finding("info", None, "does not tell the model about tools")
        else:
            yield Finding("info", None, "tells the model about tools")

    def _system(self, more: Mapping[str, Any]) -> Iterator[Finding]:
        text, why = self.tried([{"role": "system", "content": _SYSTEM}, self.user], **more)
        if why:
            yield _failure("warning", why, "refuses a system message: ")
        elif _SYSTEM not in text:
            yield Finding("warning", None, "leaves out the system message")
        else:
            yield Finding("info", None, "takes a system message")

    def _turns(self, base: str, more: Mapping[str, Any]) -> Iterator[Finding]:
        answer = {"role": "assistant", "content": _ANSWER}
        text, why = self.tried([self.user, answer, self.user], **more)
        if why:
            yield _failure("error", why, "refuses a second turn: ")
        elif _ANSWER not in text:
            yield Finding("error", None, "leaves out what the assistant said")
        elif self.tokenizer is not None:
            behind = text.partition(_ANSWER)[2].partition(_USER)[0]
            ends = [self.tokenizer.token_text(i) or "" for i in self.tokenizer.end_ids]
            if not any(end and end in behind for end in ends):
                yield Finding(
                    "warning",
                    None,
                    "writes no end token of this vocabulary behind an answer: answers may not end by themselves",
                )
        unprompted, why = self.tried([self.user], prompt=False, **more)
        if not why and unprompted == base:
            yield Finding(
                "info", None, "ignores add_generation_prompt, as templates may whose user turn ends with its own mark"
            )
        _, why = self.tried([self.user, self.user], **more)
        if why:
            yield _failure("info", why, "wants user and assistant in turns: ")

    def _begin(self, base: str) -> Iterator[Finding]:
        bos = self.tokens.get("bos_token")
        if not bos:
            return
        n = len(base) - len(base.removeprefix(bos + bos).removeprefix(bos))
        adds = self.tokenizer is not None and self.tokenizer.add_bos
        if n > len(bos):
            yield Finding("warning", None, "writes the begin token twice; one is kept")
        elif n and adds:
            yield Finding("info", None, "writes the begin token itself, and the file asks for one too; one is kept")
        elif n:
            yield Finding("info", None, "writes the begin token itself")
        elif adds:
            yield Finding("info", None, "leaves the begin token to the tokenizer")

    def _thinking(self, base: str) -> Iterator[Finding]:
        def prompt(variables: Mapping[str, Any]) -> str | None:
            text, why = self.tried([self.user], **variables)
            return None if why else text

        on, _, prompts = find_switch(self.source, prompt)
        found = find_format("\n".join([self.source, *prompts]))
        if found is None and not on:
            return
        parts = [
            f"marks its thinking with {found.start or '<|channel|>analysis'}"
            if found
            else "has thinking of a form unknown here"
        ]
        if found and found.start and base.rstrip().endswith((found.start + found.skip).rstrip()):
            parts.append("opens it for the model")
        parts.append(f"switched by {', '.join(on)}" if on else "has no switch for it")
        yield Finding("info", None, "; ".join(parts))
