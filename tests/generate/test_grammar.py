"""JSON schemas, regular expressions and grammars over a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.errors import MissingExtraError, NumericError, SettingError
from edgeinfer.generate.grammar import Grammar
from edgeinfer.generate.params import SamplingParams
from edgeinfer.generate.sampler import Sampler
from edgeinfer.generate.tools import SamplerTools
from tests.fakes import BOS, EOM, EOS, EOT, N_VOCAB, ByteTokenizer, RowLogits

TOKENIZER: Any = ByteTokenizer([b'{"', b'":', b"ab", b"true", "é".encode()])
TOOLS = SamplerTools(TOKENIZER)


def grammar(**shape: Any) -> Grammar:
    found = TOOLS.grammar(SamplingParams(**shape))
    assert found is not None
    return found


def allowed(found: Grammar) -> set[int]:
    row = np.zeros(TOKENIZER.n_vocab, np.float32)
    found.mask(row)
    left = set(np.flatnonzero(row > -np.inf).tolist())
    fitting = {token for token in range(TOKENIZER.n_vocab) if found.allows(token)}
    # where the text can go on in one way only, llguidance wants the tokens that the tokenizer would give it
    assert left == fitting or (len(left) == 1 and left < fitting)
    return left


def after(text: str, **shape: Any) -> set[str]:
    """What may follow a text: tokens as text, "END" for the end."""
    found = grammar(**shape)
    for token in text.encode():
        found.accept(token)
    tokens = allowed(found)
    ends = tokens & {EOS, EOT, EOM}
    assert ends in (set(), {EOS, EOT, EOM})
    assert BOS not in tokens
    pieces = {TOKENIZER.pieces[token].decode("latin-1") for token in tokens - ends}
    return pieces | ({"END"} if ends else set())


def test_only_what_fits_may_follow() -> None:
    assert after("", regex="a(b|c)?") == {"a", "ab"}
    assert after("a", regex="a(b|c)?") == {"b", "c", "END"}
    assert after("ab", regex="a(b|c)?") == {"END"}
    boolean = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    assert after("", json_schema=boolean | {"additionalProperties": False}) == {"{", '{"'}
    assert after('{"x":', json_schema=boolean) >= {"t", "f", "true", " "}
    assert "END" in after('{"x":true}', json_schema=boolean)


def test_an_answer_is_complete_when_nothing_can_follow() -> None:
    found = grammar(regex="a(b|c)?")
    assert not found.complete
    found.accept(ord("a"))
    assert not found.complete  # it may end or go on
    found.accept(ord("c"))
    assert found.complete


def test_white_space_in_json_has_an_end() -> None:
    assert after("{ ", json_schema={}) == {'"', '":', "}"}
    assert after("{\n", json_schema={}) >= {" ", "\t", '"', "}"}
    assert "\n" not in after("{\n  ", json_schema={})
    assert after("{\n" + " " * 20, json_schema={}) == {'"', '":', "}"}


def test_half_a_character_goes_on_as_one() -> None:
    assert after("", regex="é") >= {"Ã"}
    found = grammar(regex="[éè]")
    found.accept(0xC3)
    assert allowed(found) == {0xA9, 0xA8}


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({"regex": "a(b"}, r"regex 'a\(b' cannot be used: character 2: unclosed group"),
        ({"regex": "ab[z-a]"}, "character 4: invalid character class range"),
        ({"regex": "(?=a)b"}, "character 1: look-around"),
        ({"regex": r"(a)\1"}, "character 4: backreferences are not supported"),
        ({"json_schema": {"type": "strin"}}, "json_schema cannot be used: at #: Invalid type: strin"),
        (
            {"json_schema": {"type": "object", "properties": {"a": {"items": {"type": "array", "uniqueItems": True}}}}},
            r'at #/properties/a/items: Unimplemented keys: \["uniqueItems"\]',
        ),
        (
            {"json_schema": {"anyOf": [{"type": "null"}, {"pattern": "a(b", "type": "string"}]}},
            "at #/anyOf/1: unclosed",
        ),
        ({"json_schema": {"$ref": "#/nowhere"}}, "at #: Pointer '/nowhere' does not exist"),
        ({"json_schema": {"enum": []}}, "Unsatisfiable schema"),
        ({"grammar": "start: foo\n"}, 'grammar cannot be used: line 1, column 8: unknown name: "foo"'),
        ({"grammar": 'start: x\nx: "a\n'}, "grammar cannot be used: line 2"),
        ({"grammar": 'root ::= "a" b\n'}, "line 1, column 14: there is no rule 'b'"),
    ],
)
def test_mistakes_are_told_with_their_place(shape: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        grammar(**shape)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({"grammar": "root ::= root"}, "^grammar cannot be used: no text fits it, because 'root' has no end .*: root"),
        ({"grammar": 'root ::= a "x"\na ::= root "y" | "z" a'}, "always need themselves or each other again: a, root"),
        ({"grammar": 'root ::= "a" root'}, "'root' has no end"),
        ({"grammar": 'start: start "a"'}, "^grammar cannot be used: no text fits it .*give it a way to end"),
        ({"regex": "[a&&b]"}, "^regex cannot be used: no text fits it .its parts contradict"),
        ({"json_schema": {"$ref": "#"}}, "^json_schema cannot be used: no text fits it .it always needs itself"),
        (
            {"grammar": "root ::= " + " | ".join(f'"{7919 * i}"' for i in range(9000))},
            "9,000 pieces .*fewer alternatives",
        ),
        (
            {"json_schema": {"enum": [f"x{i}" for i in range(100_000)]}},
            "^json_schema cannot be used: .*fewer values in enum",
        ),
    ],
)
def test_grammars_without_an_end_and_huge_ones_are_told_plainly_and_first(shape: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        grammar(**shape)
    assert "NoExtension" not in str(caught.value)


def test_left_recursion_with_an_end_is_followed() -> None:
    assert after("", grammar='root ::= root "c" | "d"') == {"d"}
    assert after("dc", grammar='root ::= root "c" | "d"') == {"c", "END"}
    assert after("", grammar='root ::= a | "d"\na ::= a "c"') == {"d"}  # a dead alternative does no harm


def takes_until_refused(found: Grammar, text: str) -> None:
    for token in text.encode():
        found.mask(np.zeros(TOKENIZER.n_vocab, np.float32))
        found.accept(token)


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ({"regex": "(.{1,200}b.{1,200}){200}"}, "smaller counts"),
        ({"grammar": "start: (" + " | ".join(f'"{7919 * i}"' for i in range(3000)) + ")"}, "fewer alternatives"),
    ],
)
def test_one_that_grows_too_large_on_the_way_says_what_to_do(shape: dict[str, Any], advice: str) -> None:
    letters = "7" if "grammar" in shape else "aababbbbaababbabb" * 100
    name = next(iter(shape))
    with pytest.raises(SettingError, match=f"^{name} stopped the answer: it is too large .*{advice}"):
        takes_until_refused(grammar(**shape), letters)


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=r'pip install "edgeinfer\[grammar\]"'):
        SamplerTools(TOKENIZER).grammar(SamplingParams(regex="a"))
    assert SamplerTools(TOKENIZER).grammar(SamplingParams()) is None


def test_a_model_without_an_end_token_is_refused() -> None:
    endless = ByteTokenizer()
    endless.end_ids = frozenset()
    table: Any = endless
    with pytest.raises(SettingError, match="need a model with an end token"):
        SamplerTools(table).grammar(SamplingParams(regex="a"))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 3.0},
        {"typical_p": 0.5, "top_k": 0},
        {"mirostat": 2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01, "temperature": 2.0},
        {"repeat_penalty": 1.4, "dry_multiplier": 1.0},
        {"temperature": 0, "repeat_penalty": 1.4},
        {"logit_bias": {ord("x"): 50.0, 300: -1.0}, "temperature": 2.0} | {"logit_bias": {ord("x"): 50.0}},
    ],
)
def test_whatever_the_samplers_the_answer_fits(params: dict[str, Any]) -> None:
    random = np.random.default_rng(7)
    for seed in range(6):
        chosen = SamplingParams(**params, seed=seed, json_schema={"type": "array", "items": {"enum": ["a", 1, None]}})
        sampler = Sampler(chosen, n_vocab=300, n_tokens=TOKENIZER.n_vocab, grammar=TOOLS.grammar(chosen))
        text = bytearray()
        for step in range(200):
            row = random.normal(0.0, 4.0, 300)
            row[EOS] += 5.0
            token = sampler.sample(RowLogits([row]), step=step)
            if token in TOKENIZER.end_ids:
                break
            sampler.accept(token)
            text += TOKENIZER.pieces[token]
            if sampler.complete:
                break
        assert all(entry in ("a", 1, None) for entry in json.loads(text)), bytes(text)


def test_greedy_asks_about_the_best_token_alone_while_it_fits() -> None:
    chosen = SamplingParams(temperature=0, regex="a+")
    sampler = Sampler(chosen, n_vocab=N_VOCAB + 5, grammar=TOOLS.grammar(chosen))
    logits = RowLogits([np.zeros(N_VOCAB + 5)])
    logits.rows[0][ord("a")] = 5.0
    assert sampler.sample(logits) == ord("a")
    assert logits.whole_rows_read == 0
    logits.rows[0][ord("b")] = 9.0
    assert sampler.sample(logits) == ord("a")


def test_when_all_that_fits_is_banned_it_says_so() -> None:
    chosen = SamplingParams(regex="a", logit_bias={ord("a"): -np.inf, N_VOCAB + 2: -np.inf})
    sampler = Sampler(chosen, n_vocab=TOKENIZER.n_vocab, grammar=TOOLS.grammar(chosen))
    with pytest.raises(NumericError, match="no token is left to choose from at step 3"):
        sampler.sample(RowLogits([np.zeros(TOKENIZER.n_vocab)]), step=3)


class _Masked:
    """A grammar that always takes the way of the mask."""

    def __init__(self, plain: Grammar) -> None:
        self.mask, self.accept = plain.mask, plain.accept
        self.complete = False

    def allows(self, token: int) -> bool:
        return False


@pytest.mark.parametrize("regex", ["[a-y ]+", "[^x]{2,9}", "(ab|cd|true)+", "[0-9]{1,3}|x"])
@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_k": 1}, {"logit_bias": {97: 3.0}, "repeat_penalty": 1.3}])
def test_asking_about_the_best_tokens_finds_what_the_mask_finds(regex: str, params: dict[str, Any]) -> None:
    chosen = SamplingParams(**params, regex=regex)
    for seed in range(5):
        row = np.random.default_rng(seed).normal(0.0, 3.0, 300).astype(np.float32)
        found = []
        for grammar in (TOOLS.grammar(chosen), _Masked(TOOLS.grammar(chosen))):  # type: ignore[arg-type]
            sampler = Sampler(chosen, n_vocab=300, n_tokens=TOKENIZER.n_vocab, history=[97, 98], grammar=grammar)
            ids, probabilities = sampler.distribution(RowLogits([row.copy()]))
            found.append(dict(zip(ids.tolist(), probabilities.tolist(), strict=True)))
        assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize(("one_in", "masks"), [(1, 0), (4, 0), (6, 1)])
def test_as_many_questions_as_they_are_worth(one_in: int, masks: int) -> None:
    """A mask is made where more than 192 questions would be needed for the 40 that top-k keeps; 16 tell."""

    class Counted:
        complete = False
        n_asked = n_masks = 0

        def allows(self, token: int) -> bool:
            self.n_asked += 1
            return token % one_in == 0

        def mask(self, row: NDArray[np.float32]) -> None:
            self.n_masks += 1
            row[np.arange(len(row)) % one_in > 0] = -np.inf

        def accept(self, token: int) -> None: ...

    grammar = Counted()
    sampler = Sampler(SamplingParams(top_k=40, top_p=1.0, min_p=0.0), n_vocab=2000, grammar=grammar)
    ids, _ = sampler.distribution(RowLogits([-0.001 * np.arange(2000)]))
    assert ids.tolist() == list(range(0, 40 * one_in, one_in))
    assert (grammar.n_asked, grammar.n_masks) == (16 if masks else 39 * one_in + 1, masks)
