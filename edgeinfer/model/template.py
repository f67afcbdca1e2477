"""Messages -> prompt: the chat template of a model file. Must not know the engine or where messages come from.

    template = ChatTemplate.from_gguf(file, tokenizer)
    ids = template.encode([{"role": "user", "content": "Hello"}])

The template's own markers become control tokens; text in a message that looks like one stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from ..errors import SettingError, TemplateError
from .sandbox import TemplateSandbox
from .thinking import Thinking, find_format, find_switch, speaks_of_thinking
from .tokenizer import HasMetadata, Tokenizer
from .tool_list import PROBE, PROBE_NAME

__all__ = ["ChatTemplate"]

_KEY = "tokenizer.chat_template"
_THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")
_PRIVATE = range(0x100000, 0x10FFFE)  # code points that mean nothing


class ChatTemplate:
    """A Jinja chat template with the special tokens of a tokenizer. Safe to use from several threads.

    Making one does not compile it, so that a broken template stands in nobody's way; `error` says what is wrong.
    """

    source: str

    def __init__(
        self, source: str, tokenizer: Tokenizer, *, tool_source: str | None = None, max_seconds: float = 0.6
    ) -> None:
        """`tool_source` is used instead where tools are given; `max_seconds` of work bound a rendering of a short chat."""
        self.source = source
        self._tool_source = tool_source
        self._tokenizer = tokenizer
        self._sandbox = TemplateSandbox(max_seconds)
        self._tokens = {
            name: text
            for name, index in (
                ("bos_token", tokenizer.bos_id),
                ("eos_token", tokenizer.eos_id),
                ("unk_token", tokenizer.unknown_id),
                ("pad_token", tokenizer.padding_id),
            )
            if (text := tokenizer.token_text(index)) is not None
        }

    @classmethod
    def from_gguf(cls, file: HasMetadata, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of an open file, None when it has none: such a model is not made for chat."""
        sources = {
            key: value for key, value in file.metadata.items() if key.startswith(_KEY) and isinstance(value, str)
        }
        if not sources.get(_KEY):
            return None
        return cls(sources[_KEY], tokenizer, tool_source=sources.get(f"{_KEY}.tool_use"))

    @cached_property
    def error(self) -> str | None:
        """What is wrong with the template, with the line; None when it compiles."""
        try:
            _ = self._compiled
        except TemplateError as error:
            return str(error)
        return None

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return self._sandbox.compiled(self.source)

    @cached_property
    def _compiled_for_tools(self) -> jinja2.Template:
        return self._compiled if self._tool_source is None else self._sandbox.compiled(self._tool_source)

    @cached_property
    def thinking(self) -> Thinking | None:
        """How the model thinks aloud, as far as its template and vocabulary tell; None where they say nothing of it."""
        if not speaks_of_thinking(self.source) or self.error is not None:
            return None
        message = [{"role": "user", "content": "Hi"}]

        def prompt(variables: Mapping[str, Any]) -> str | None:
            try:
                return self.render(message, **variables)
            except TemplateError:
                return None

        on, off, prompts = find_switch(self.source, prompt)
        found = find_format("\n".join([self.source, *prompts]))
        thinking = Thinking.of(found, self._tokenizer, on, off)
        return thinking if thinking.format or on else None

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template tells the model about tools: tried, with a short chat and a tool."""
        user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "Help."}
        for messages in ([user], [system, user]):
            try:
                if PROBE_NAME in self.render(messages, tools=[PROBE]):
                    return True
            except TemplateError:
                pass
        return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text, as Transformers would render it; `variables` are passed to the template too.

        As there, what is None in a message is left out, thinking text goes under each of the names that templates know,
        and nothing but JSON's types reaches the template.

        Raises TemplateError when the template is broken, refuses the messages, or asks for too much time or memory;
        SettingError when `messages` is not a list of mappings that have a role.
        """
        if isinstance(messages, (str, Mapping)) or not all(
            isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages
        ):
            raise SettingError("messages must be a list of mappings, each with a 'role' and mostly a 'content'")
        try:
            given, n_input = self._given(messages, add_generation_prompt, tools, variables)
        except RecursionError:
            raise SettingError("messages, tools or variables are nested too deeply, or hold themselves") from None
        return self._sandbox.rendered(self._compiled_for_tools if tools else self._compiled, given, n_input)

    def _given(
        self, messages: Any, add_generation_prompt: bool, tools: Any, variables: Mapping[str, Any]
    ) -> tuple[dict[str, Any], int]:
        """What the template is given, in JSON's types, and how many characters that is."""
        given = {
            **self._tokens,
            "messages": [_plain_message(message) for message in messages],
            "tools": None if tools is None else _plain(list(tools)),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **{name: _plain(value) for name, value in variables.items()},
        }
        return given, sum(map(len, _texts(given)))

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt as ids, with exactly one BOS where the template or the file asks for one.

        Only what the template itself writes is read as control tokens, whatever messages, tools and variables contain.
        Raises what `render` does.
        """
        text, masked = self._render_masked(messages, add_generation_prompt, tools, variables)
        ids = self._tokenizer.encode_fragment(text, masked, control=True)
        bos = self._tokenizer.bos_id
        if bos is not None:
            while ids[:2] == [bos, bos]:
                del ids[0]
            if self._tokenizer.add_bos and ids[:1] != [bos]:
                ids.insert(0, bos)
        return ids

    def _render_masked(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> tuple[str, str]:
        """The prompt, and the same with characters changed so that no text of the caller's reads as a control token.

        The first characters of control tokens are replaced by private ones in the caller's texts before rendering: what
        is private afterwards came from the caller. A template that looks into a text (for "</think>", say) may write
        something else then; for it only whole control tokens, and beginnings of one at the end of a text, are changed.
        """
        special = self._tokenizer.special
        plain = self.render(messages, add_generation_prompt, tools, **variables)
        given = (messages, tools, dict(variables))
        characters = set().union(*_texts(given))
        firsts = sorted(special.control_firsts & characters)
        if not firsts:
            return plain, plain
        used = characters | set(self.source) | set(plain)
        private = (chr(point) for point in _PRIVATE if chr(point) not in used)
        stand_ins = dict(zip(firsts, private, strict=False))
        back = {ord(stand_in): first for first, stand_in in stand_ins.items()}

        def rendered(mask: Mapping[str, str] | None) -> str:
            changed_messages, changed_tools, changed = _mapped(given, lambda text: self._masked(text, stand_ins, mask))
            result = self.render(changed_messages, add_generation_prompt, changed_tools, **changed)
            for stand_in in stand_ins.values():  # a template may write its values as ASCII
                result = result.replace(json.dumps(stand_in)[1:-1], stand_in)
            return result

        try:
            masked = rendered(stand_ins)
        except TemplateError:
            masked = ""
        if masked.translate(back) != plain:
            masked = rendered(None)
        return masked.translate(back), masked

    def _masked(self, text: str, stand_ins: Mapping[str, str], everywhere: Mapping[str, str] | None) -> str:
        """One of the caller's texts with stand-ins: everywhere, or only where a control token is or may begin."""
        if everywhere is not None:
            return text.translate({ord(first): stand_in for first, stand_in in everywhere.items()})
        special = self._tokenizer.special
        places = {
            place
            for token, found in special.occurring(text, control=True).items()
            if special.is_control(token)
            for place in found
        }
        end = len(text.rstrip())
        for match in re.finditer("[" + re.escape("".join(stand_ins)) + "]", text[:end]):
            if special.begins_control(text[match.start() : end]):
                places.add(match.start())
        return "".join(stand_ins[c] if i in places else c for i, c in enumerate(text)) if places else text


def _plain(value: Any) -> Any:
    """A copy of a value in JSON's types, whose methods are known to be harmless; anything else as its type's name."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return getattr(kind, f"__{kind.__name__}__")(value)  # a subclass may have methods of its own
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else [*map(_plain, value)]
    return f"<{type(value).__name__}>"


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {key: _plain(value) for key, value in message.items() if value is not None}
    thinking = next((plain[name] for name in _THINKING_KEYS if name in plain), None)
    return plain if thinking is None else {"thinking": thinking, **plain, "reasoning_content": thinking}


def _texts(value: Any) -> Iterator[str]:
    """All strings inside a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Any) -> Any:
    """A copy of a value in which `change` was applied to all strings but keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    return value
