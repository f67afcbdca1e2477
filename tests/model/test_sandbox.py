"""Templates that attack: each ends as a TemplateError within a bound of time and memory, and changes nothing."""

from __future__ import annotations

import resource
import threading
import time

import pytest

from edgeinfer.errors import TemplateError
from edgeinfer.model.template import ChatTemplate
from tests.tiny_tokenizers import bpe

MESSAGES = [{"role": "user", "content": "hi", "tags": ["a"]}]

DOUBLE = "{% set ns = namespace(x=SEED) %}{% for i in range(64) %}{% set ns.x = STEP %}{% endfor %}"


def doubling(step: str, seed: str = "'a'") -> str:
    """A template that makes a value twice as large 64 times."""
    return DOUBLE.replace("SEED", seed).replace("STEP", step)


ATTACKS = {
    # Python's internals
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "class by format_map": "{{ '{m.__class__.__init__.__globals__}'.format_map({'m': messages}) }}",
    "class by map": "{{ ['']|map(attribute='__class__')|map(attribute='__mro__')|list|first|first }}",
    "globals": "{{ raise_exception.__globals__ }}{{ strftime_now.__func__ }}{{ x() }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__['os'] }}",
    "self": "{{ self.__init__.__globals__ }}",
    "import": "{% import 'os' as os %}",
    # changing what it is given
    "append": "{% set _ = messages.append(1) %}",
    "pop": "{{ messages.pop() }}",
    "update": "{{ messages[0].update({'content': 'x'}) }}",
    "inner list": "{{ messages[0].tags.append('b') }}",
    "clear": "{{ messages[0].clear() }}",
    # time
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that write": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "macro for ever": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macro like a tree": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "products": "{% set ns = namespace(x=10) %}{% for i in range(64) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "digits": "{{ ('9' * 4000000) | int(base=16) // 7 }}",
    "sum of lists": "{{ ([[1] * 9] * 100000) | sum(start=[]) | length }}",
    # memory
    "multiply": "{{ 'a' * 10 ** 9 }}",
    "multiply from the left": "{{ 10 ** 9 * 'a' }}",
    "multiply a list": "{{ ([1] * 10 ** 9) | length }}",
    "doubling with +": doubling("ns.x + ns.x"),
    "doubling with ~": doubling("ns.x ~ ns.x"),
    "doubling lists": doubling("[ns.x, ns.x]", "[1]") + "{{ ns.x }}",
    "nested lists as json": doubling("[ns.x, ns.x]", "[1]") + "{{ ns.x | tojson }}",
    "a namespace as text": "{% set ns = namespace(x='a' * 4000000) %}{% set ns.y = [ns.x, ns.x, ns.x, ns.x] %}{{ ns }}",
    "doubling by macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubling("m(ns.x)"),
    "doubling by block": doubling("y").replace("{% set ns.x", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x"),
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 9) }}",
    "replace": "{{ ('a' * 4000000).replace('', 'b' * 4000000) }}",
    "replace filter": "{{ ('a' * 4000000) | replace('', 'b' * 4000000) }}",
    "join": "{{ ('b' * 100000).join(range(100000) | map('string')) }}",
    "join filter": "{{ range(100000) | join('b' * 100000) }}",
    "percent": "{{ '%0999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent filter": "{{ '%0999999999d' | format(1) }}",
    "percent many": "{{ ('%(a)s' * 800000) % {'a': 'a' * 1000000} }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format nested": "{{ '{:>{}}'.format(1, 999999999) }}",
    "format many": "{{ ('{0}' * 1000000).format('a' * 1000000) }}",
    "json indent": "{{ [1] | tojson(indent=10 ** 9) }}",
    "json deep": "{% set ns = namespace(x=[1]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{{ ([ns.x] * 5000) | tojson(indent=32) }}",
    "strftime": "{{ strftime_now('%999999999Y') }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list | length }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000000}) }}",
    "many": doubling("ns.x + ['a' * 4000000]", "[]"),
    "lipsum": "{{ lipsum(10 ** 6) }}",
    "output": "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    # refusing
    "raise": "{{ raise_exception('no') }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_end_as_template_errors(name: str) -> None:
    template = ChatTemplate(ATTACKS[name], bpe(), max_seconds=1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with pytest.raises(TemplateError) as caught:
        template.render(MESSAGES)
    assert time.perf_counter() - start < 4.0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 300  # MB
    assert "\n" not in str(caught.value)
    assert MESSAGES == [{"role": "user", "content": "hi", "tags": ["a"]}]


def test_long_conversations_are_no_attack() -> None:
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text ~ m.role ~ ': ' ~ m.content %}{% endfor %}{{ ns.text }}"
    )
    messages = [{"role": "user", "content": "x" * 20_000}] * 300  # 6 MB, joined 300 times
    assert len(ChatTemplate(source, bpe()).render(messages)) == 300 * 20_006


def test_one_template_serves_several_threads() -> None:
    template = ChatTemplate("{% for i in range(300) %}{{ messages[0].content }}{% endfor %}", bpe())
    wrong: list[str] = []

    def work(content: str) -> None:
        for _ in range(20):
            if template.render([{"role": "user", "content": content}]) != content * 300:
                wrong.append(content)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
