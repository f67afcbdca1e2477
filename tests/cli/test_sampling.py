"""The sampling options that chat and run share, recommended sampling, and /params."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import store
from edgeinfer.cli.answer import recommended
from edgeinfer.cli.params import changed_params, params_line
from edgeinfer.errors import SettingError
from edgeinfer.generate.params import SAMPLERS, SamplingParams
from edgeinfer.load import LLM

OPTIONS = {
    "--temp": ("temperature", "0.5", 0.5),
    "--dynatemp-range": ("dynatemp_range", "0.2", 0.2),
    "--dynatemp-exp": ("dynatemp_exponent", "2", 2.0),
    "--top-k": ("top_k", "7", 7),
    "--top-p": ("top_p", "0.8", 0.8),
    "--min-p": ("min_p", "0.1", 0.1),
    "--typical": ("typical_p", "0.9", 0.9),
    "--top-nsigma": ("top_n_sigma", "1.5", 1.5),
    "--xtc-probability": ("xtc_probability", "0.3", 0.3),
    "--xtc-threshold": ("xtc_threshold", "0.2", 0.2),
    "--min-keep": ("min_keep", "2", 2),
    "--mirostat": ("mirostat", "2", 2),
    "--mirostat-ent": ("mirostat_tau", "4", 4.0),
    "--mirostat-lr": ("mirostat_eta", "0.2", 0.2),
    "--samplers": ("samplers", "top_k;temperature", ("top_k", "temperature")),
    "--repeat-penalty": ("repeat_penalty", "1.2", 1.2),
    "--repeat-last-n": ("repeat_last_n", "-1", -1),
    "--presence-penalty": ("presence_penalty", "0.5", 0.5),
    "--frequency-penalty": ("frequency_penalty", "0.25", 0.25),
    "--dry-multiplier": ("dry_multiplier", "0.8", 0.8),
    "--dry-base": ("dry_base", "2", 2.0),
    "--dry-allowed-length": ("dry_allowed_length", "3", 3),
    "--dry-penalty-last-n": ("dry_penalty_last_n", "100", 100),
    "--dry-sequence-breaker": ("dry_sequence_breakers", "###", ("###",)),
    "--stop": ("stop", "END", ("END",)),
    "--regex": ("regex", "[a-z|: ]+", "[a-z|: ]+"),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The sampling parameters that each question came with."""
    seen: list[dict[str, Any]] = []
    for name in ("chat", "generate"):
        plain = getattr(LLM, name)

        def watched(self: LLM, what: Any, *, plain: Any = plain, **sampling: Any) -> Any:
            seen.append(sampling)
            return plain(self, what, **sampling)

        monkeypatch.setattr(LLM, name, watched)
    return seen


@pytest.mark.parametrize("command", ["run", "chat"])
def test_options_become_parameters(edgeinfer: Any, asked: list[dict[str, Any]], command: str) -> None:
    arguments = [part for flag, (_, text, _) in OPTIONS.items() for part in (flag, text)]
    done = edgeinfer(command, edgeinfer.model, "-q", *arguments, stdin=b"hello")
    assert done.code == 0, done.err
    params = SamplingParams(**asked[0])
    assert {name: getattr(params, name) for name, _, _ in OPTIONS.values()} == {
        name: value for name, _, value in OPTIONS.values()
    }


@pytest.mark.parametrize("command", ["run", "chat"])
def test_help_shows_the_groups(edgeinfer: Any, command: str) -> None:
    text = edgeinfer(command, "--help").out
    places = [text.index(f"\n{group}:") for group in ("Options", "Which token comes next", "Against repetition")]
    assert places == sorted(places)
    assert text.index("--dry-base") > places[2] > text.index("--top-k") > places[1] > text.index("--system")
    assert text.rindex("--json-schema") > text.index("What the answer may be:")
    assert "\n  MODEL\n" not in text
    for flag in OPTIONS:
        assert f"{flag} " in text


def test_schema_and_grammar_files(edgeinfer: Any, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "a.json", tmp_path / "a.gbnf"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": false}')
    grammar.write_text('\ufeff# b\nroot ::= "x" [0-9]{2}\n')
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "hi", "--json-schema", str(schema), "--seed", "1")
    assert set(json.loads(done.out)) <= {"a"}
    inline = edgeinfer("run", edgeinfer.model, "-q", "-p", "hi", "--json-schema", '{"enum": [5]}')
    assert json.loads(inline.out) == 5
    done = edgeinfer("chat", edgeinfer.model, "-q", "--grammar", str(grammar), stdin=b"hi")
    assert done.code == 0
    assert done.out[0] == "x"
    assert done.out[1:3].isdigit()
    document = json.loads(
        edgeinfer("run", edgeinfer.model, "-p", "x", "--json", "-n", "3", "--json-schema", '{"enum": ["abcdefgh"]}').out
    )
    assert document["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--json-schema", "nowhere.json"], 2, "--json-schema: cannot read nowhere.json: No such file or directory"),
        (["--grammar", "/dev/null"], 2, "--grammar: /dev/null is neither a file nor a pipe"),
        (["--json-schema", "{"], 2, "--json-schema is no JSON document"),
        (["--json-schema", '{"type": "strin"}'], 2, "--json-schema cannot be used: at #: Invalid type: strin"),
        (["--regex", "a("], 2, "--regex 'a(' cannot be used: character 2: unclosed group"),
        (["--regex", "a", "--json-schema", "{}"], 2, "--json-schema and --regex are both given"),
        (["--typical", "2"], 2, "--typical is 2.0; wanted a number from 0 to 1"),
        (["--mirostat", "1"], 2, "--mirostat is 1; wanted 0 (off) or 2"),
        (["--samplers", "top_k;nonsense"], 2, "--samplers has 'nonsense'; wanted names out of penalties; dry;"),
        (["--dry-base", "0"], 2, "--dry-base is 0.0; wanted a number, 1 or above"),
    ],
)
def test_refusals(edgeinfer: Any, arguments: list[str], code: int, says: str) -> None:
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", *arguments)
    assert done.code == code
    assert says in done.err
    assert len(done.err.splitlines()) == 1


def test_a_file_that_is_no_text(edgeinfer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gbnf"
    path.write_bytes(b"root ::= \xff")
    done = edgeinfer("run", edgeinfer.model, "-q", "-p", "x", "--grammar", str(path))
    assert done.code == 2
    assert "is not UTF-8 text: byte 9" in done.err


def test_recommended_sampling_is_used_unless_told_otherwise(
    edgeinfer: Any, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.cli.answer.pull_with_progress", lambda name, quiet: None)
    advice = dict(store.manifest().models[0].sampling)
    assert advice["temperature"] == 0.2
    assert edgeinfer("run", "smollm2-135m", "-p", "x", "-q").code == 0
    assert {name: asked[-1][name] for name in advice} == advice
    assert edgeinfer("run", "SmolLM2-135M", "-p", "x", "-q", "--temp", "1.5").code == 0
    assert {name: asked[-1][name] for name in advice} == advice | {"temperature": 1.5}
    assert edgeinfer("chat", "-q", stdin=b"hi").code == 0
    assert {name: asked[-1][name] for name in advice} == advice
    assert edgeinfer("run", edgeinfer.model, "-p", "x", "-q").code == 0
    assert not advice.keys() & asked[-1].keys()


def test_the_manifests_advice_can_be_used() -> None:
    for model in store.manifest().models:
        SamplingParams(**dict(model.sampling))


def test_a_pulled_file_by_its_path_is_known(tmp_path: Path) -> None:
    model = store.manifest().models[0]
    path = tmp_path / model.file
    with path.open("wb") as file:
        file.truncate(model.size)
    assert recommended(str(path)) == dict(model.sampling)
    with path.open("wb") as file:
        file.truncate(model.size - 1)
    assert recommended(str(path)) == {}
    assert recommended("nowhere") == {}


def test_the_line_of_parameters() -> None:
    plain = "sampling: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, repeat_penalty 1"
    assert params_line({}, "x.gguf") == plain
    advice = dict(store.manifest().models[0].sampling)
    assert params_line(advice, "smollm2-135m").endswith("(recommended for smollm2-135m)")
    assert params_line({**advice, "temperature": 1}, "smollm2-135m").endswith(
        "(not all as recommended for smollm2-135m)"
    )
    line = params_line({"dry_multiplier": 0.8, "samplers": "top_k;dry", "regex": "a", "stop": ("x",)}, "x")
    assert "dry_multiplier 0.8" in line
    assert "samplers top_k;dry" in line
    assert line.endswith("regex given")


def test_changing_parameters() -> None:
    assert changed_params({"temperature": 0.2}, "top_k=5 temperature=1 samplers='top_k;temp'") == {
        "temperature": 1,
        "top_k": 5,
        "samplers": "top_k;temp",
    }
    assert changed_params({"temperature": 0.2, "top_k": 3}, "temperature=") == {"top_k": 3}
    for text, says in (
        ("hot", "/params wants NAME=VALUE; 'hot' is not that"),
        ("heat=5", "'heat=5' is not that"),
        ("temperature=hot", "temperature is 'hot'; wanted a number, 0 or above"),
        ("top_k=-1", "top_k is -1"),
        ("a='", "/params wants NAME=VALUE"),
    ):
        with pytest.raises(SettingError, match=says):
            changed_params({}, text)
    assert len(SAMPLERS) == 9
