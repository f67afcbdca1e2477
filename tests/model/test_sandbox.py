"""Templates that attack: each ends within a bound of time and memory, crashes nothing and changes nothing."""

from __future__ import annotations

import gc
import resource
import threading
import time

import pytest

from edgeinfer.errors import TemplateError
from edgeinfer.model.template import ChatTemplate
from tests.memory import memory_mb, reset_peak
from tests.template_attacks import BOUNDED, GROWN, REFUSED, grown
from tests.tiny_tokenizers import bpe

MESSAGES = [{"role": "user", "content": "hi", "tags": ["a"]}]
ALL = {**REFUSED, **BOUNDED}
HUNGRY = ("loops in loops", "in loop", "set blocks nested", "text nested root", "dag compare small")


def attack(source: str, **limit: float) -> tuple[TemplateError | None, float, float]:
    """What a template ends with, the seconds of work and the MB of memory that it took from its source on."""
    gc.collect()
    try:
        reset_peak()  # the peak is that of what comes now
        before = memory_mb("VmRSS")
    except OSError:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    error, start = None, time.thread_time()
    try:
        ChatTemplate(source, bpe(), **limit).render(MESSAGES)
    except TemplateError as caught:
        error = caught
    return error, time.thread_time() - start, memory_mb("VmHWM") - before


def soon(seconds: float) -> bool:
    """Whether work was done within a second, as long as this machine keeps its usual speed.

    A machine that is lent to others at the same moment counts more seconds for the same work: where a second was not
    enough, an honest template as long as the longest in use is compiled there and then, and twelve times that may pass.
    """
    if seconds < 1.0:
        return True
    start = time.thread_time()
    honest = "{% if messages[0].role == 'user' and true %}{{ messages[0].content }}{% endif %}\n" * 200
    ChatTemplate(honest, bpe()).render(MESSAGES)
    return seconds < 12.0 * (time.thread_time() - start)


@pytest.mark.parametrize("name", ALL)
def test_an_attack_is_over_soon(name: str) -> None:
    error, seconds, memory = attack(ALL[name], max_seconds=0.05)
    assert soon(seconds)
    assert memory < 200
    assert error is not None or name in BOUNDED
    assert "\n" not in str(error)
    assert MESSAGES == [{"role": "user", "content": "hi", "tags": ["a"]}]


@pytest.mark.parametrize("name", GROWN)
def test_a_source_is_compiled_or_refused_soon(name: str) -> None:
    error, seconds, memory = attack(grown(name, 8_000), max_seconds=0.05)
    assert soon(seconds)
    assert memory < 200
    assert error is None or "line 1" in str(error) or "is nested" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWN)
def test_the_longest_source_is_compiled_or_refused_in_a_second(name: str) -> None:
    _, seconds, memory = attack(grown(name, 48_000), max_seconds=0.05)
    assert soon(seconds)
    assert memory < 200


@pytest.mark.slow
@pytest.mark.parametrize("name", HUNGRY)
def test_the_usual_limits_are_a_second_and_200_mb(name: str) -> None:
    _, seconds, memory = attack(ALL[name])
    assert soon(seconds)
    assert memory < 200


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
