"""What the lint says of templates made for it, and of every published one."""

from __future__ import annotations

import pytest

from edgeinfer.model.template_lint import Finding, lint
from tests import vocabularies
from tests.template_attacks import REFUSED
from tests.tiny import CHATML
from tests.tiny_tokenizers import bpe, spm

GOOD = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}"


def texts(source: str, severity: str | None = None, **more: object) -> list[str]:
    return [f.text for f in lint(source, **more) if severity in (None, f.severity)]  # type: ignore[arg-type]


def test_a_good_template_is_described() -> None:
    assert lint(GOOD, spm()) == [
        Finding("info", None, "does not tell the model about tools"),
        Finding("info", None, "takes a system message"),
        Finding("info", None, "writes the begin token itself, and the file asks for one too; one is kept"),
    ]
    assert "writes the begin token itself" in texts(GOOD)


def test_chatml_fits_its_vocabulary_and_not_another() -> None:
    assert texts(CHATML, "error", tokenizer=bpe(eos_token_id=1)) == []
    assert texts(CHATML, "warning", tokenizer=bpe(eos_token_id=1)) == []
    warned = lint(CHATML, spm())
    assert [(f.severity, f.text[:20]) for f in warned if f.severity == "warning"] == [
        ("warning", "writes no end token "),
        ("warning", "writes <|im_start|>,"),
        ("warning", "writes <|im_end|>, w"),
    ]
    assert all(f.line for f in warned if "no token of this vocabulary" in f.text)


@pytest.mark.parametrize(
    ("source", "severity", "line", "text"),
    [
        ("a\n{% if x %}\n", "error", 2, "Unexpected end of template"),
        ("a\nb\n{{ messages | shout }}", "error", 3, "No filter named 'shout'"),
        (GOOD + "{% if messages is tall %}{% endif %}", "warning", 2, "there is no test 'tall'"),
        (GOOD + "{% if false %}{{ x | shout }}{% endif %}", "warning", 2, "there is no filter 'shout'"),
        (GOOD + "\n{% if false %}{{ shout(1) }}{% endif %}", "warning", 3, "calls shout(), which is not defined"),
        (GOOD + "{% if false %}{% set _ = messages.append(1) %}{% endif %}", "warning", 2, "calls .append()"),
        (GOOD + "{% if false %}{% include 'x' %}{% endif %}", "warning", 2, "reads another template"),
        (GOOD + "\n\n{{ strftime_now('%Y') }}", "info", 4, "writes the date"),
        (GOOD + "{{ [1, 2] | random }}", "warning", 2, "at random"),
        (GOOD + "{{ ''.__class__ }}", "error", 2, "Python's internals (__class__)"),
        (GOOD + "{{ ''|attr('__class__') }}", "error", 2, "Python's internals (__class__)"),
        (GOOD + "{% for i in range(1000000000) if false %}{% endfor %}", "warning", 2, "has the number 1000000000"),
        (GOOD + "{{ 2 ** 3 }}", "warning", 2, "raises to a power"),
        ("a\n{{ raise_exception('never') }}", "error", 2, "refuses even a chat of one message: never"),
        (ENDLESS, "error", 1, "refuses even a chat of one message: it "),
        ("no words", "error", None, "leaves out what the user says"),
        ("{{ messages[0].content }}", "error", None, "leaves out what the assistant said"),
        (GOOD.partition("{% if")[0], "info", None, "ignores add_generation_prompt"),
        ("{{ tools | length }}" + GOOD, "warning", 1, "wants tools, and fails without them"),
        (GOOD + "{{ tools | tojson }}", "info", None, "tells the model about tools"),
        (GOOD + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}",
     "warning", 2, "fails where tools are offered: no"),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + GOOD,
            "warning", 1, "refuses a system message: no system",
        ),
        (GOOD.replace("{{ m.content }}", "{{ m.content if m.role != 'system' }}"), "warning", None, "leaves out the system"),
        ("{{ bos_token }}{{ bos_token }}" + GOOD, "warning", None, "writes the begin token twice"),
        (
            GOOD + "{% for m in messages[1:] %}{% if m.role == 'user' and messages[loop.index0].role == 'user' %}"
            "{{ raise_exception('take turns') }}{% endif %}{% endfor %}",
            "info", 2, "wants user and assistant in turns: take turns",
        ),
        (GOOD + "{% if enable_thinking %}<think>{% endif %}</think>",
     "info", None, "marks its thinking with <think>; switched by"),
        (GOOD + "</think><think>\n", "info", None, "marks its thinking with <think>; opens it for the model; has no switch"),
    ],
)  # fmt: skip
def test_findings(source: str, severity: str, line: int | None, text: str) -> None:
    found = lint(source)
    assert any(f.severity == severity and f.line == line and text in f.text for f in found), found


def test_a_finding_is_a_line() -> None:
    assert str(Finding("error", 3, "x")) == "error in line 3: x"
    assert str(Finding("info", None, "y")) == "info: y"


def test_published_templates_have_few_faults() -> None:
    faults = {}
    for path in sorted((vocabularies.folder() / "templates").glob("*.jinja")):
        found = lint(path.read_bytes().decode())
        faults[path.name] = [f for f in found if f.severity != "info"]
        assert any("tools" in f.text or f.severity == "error" for f in found), path.name
    assert [name for name, found in faults.items() if any(f.severity == "error" for f in found)] == [
        "fireworks-ai-llama-3-firefunction-v2.jinja"
    ]
    assert sum(bool(found) for found in faults.values()) == 11
    assert faults["google-gemma-2-2b-it.jinja"] == [
        Finding("warning", 1, "refuses a system message: System role not supported")
    ]


@pytest.mark.parametrize("name", list(REFUSED)[:60:6])
def test_hostile_templates_are_found_out_and_not_run(name: str) -> None:
    assert any(f.severity == "error" for f in lint(REFUSED[name]))
