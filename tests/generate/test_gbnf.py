"""GBNF read and cut into lexemes, against a plain reader that tries everything character by character."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import SettingError
from edgeinfer.generate.gbnf import Choice, Class, Node, Repeat, Rule, Sequence, Token, is_gbnf, parse
from edgeinfer.generate.lexemes import _ending, lark_of_gbnf
from edgeinfer.generate.params import SamplingParams
from edgeinfer.generate.tools import SamplerTools
from tests.fakes import ByteTokenizer

TOKENIZER: Any = ByteTokenizer()
TOOLS = SamplerTools(TOKENIZER)


def matches(rules: dict[str, Node], node: Node, text: str, at: int, depth: int = 0) -> set[int]:
    """Where a node may end that begins at `at`: the definition of GBNF."""
    if depth > 60:
        return set()
    if isinstance(node, Class):
        fits = at < len(text) and any(low <= ord(text[at]) <= high for low, high in node.ranges)
        return {at + 1} if fits else set()
    if isinstance(node, Rule):
        return matches(rules, rules[node.name], text, at, depth + 1)
    if isinstance(node, Choice):
        return set().union(*(matches(rules, part, text, at, depth + 1) for part in node.parts))
    if isinstance(node, Sequence):
        ends = {at}
        for part in node.parts:
            ends = set().union(*(matches(rules, part, text, end, depth + 1) for end in ends))
        return ends
    assert isinstance(node, Repeat)
    ends, found = {at}, {at} if node.least == 0 else set()
    for n in range(1, (node.most or len(text) + 1) + 1):
        ends = set().union(*(matches(rules, node.part, text, end, depth + 1) for end in ends)) if ends else set()
        found |= ends if n >= node.least else set()
        if not ends or (n >= node.least and n > len(text)):
            break
    return found


class Taker:
    """A grammar that is asked about many texts."""

    def __init__(self, grammar: str) -> None:
        found = TOOLS.grammar(SamplingParams(grammar=grammar))
        assert found is not None
        self._matcher = found._matcher

    def __call__(self, text: str) -> bool:
        """Whether it takes the text as a whole."""
        ids = list(text.encode())
        assert self._matcher.reset()
        return bool(self._matcher.try_consume_tokens(ids) == len(ids) and self._matcher.is_accepting())


def accepts(grammar: str, text: str) -> bool:
    return Taker(grammar)(text)


RULES = [
    'root ::= "a" "b"* | "c"',
    'root ::= [ab]+ "b"',
    'root ::= x | "(" root ")"\nx ::= [ab]+ "b"',
    'root ::= "a" root "a" | "a" | "aa"',
    'root ::= ("a" | "ab" | "b") root | "c"',
    'root ::= item ("," item)* | "(" root ")"\nitem ::= "a"* ","?',
    'root ::= x{2,3} ("(" root ")")?\nx ::= "a" | "ab"',
    'root ::= expr\nexpr ::= expr "," term | term # left recursion\nterm ::= [a-b]? "(" expr ")" | "a"',
    'root ::= "(" ws root ws ")" ws | "a"+ ws\nws ::= | "," ws',
    'root ::= .{1,3} | "((" root',
    "root ::= [^a] root | [^b]",
    'root ::= ("ab"? "a")+ ("(" root)?',
]


@pytest.mark.parametrize("grammar", RULES)
def test_it_takes_what_the_grammar_says_and_no_more(grammar: str) -> None:
    rules = parse(grammar)
    left_recursive = "expr ::= expr" in grammar
    taken, takes = 0, Taker(grammar)
    for n in range(5):
        for letters in itertools.product("ab,()c"[: 5 if n == 4 else 6], repeat=n):
            text = "".join(letters)
            expected = len(text) in matches(rules, rules["root"], text, 0, 46 if left_recursive else 0)
            assert takes(text) == expected, text
            taken += expected
    assert taken > 0


regular = st.sampled_from(
    ['"a"', '"b"', '"ab"', "[ab]", '"a"*', "[ab]*", '"b"+', '"a"?', '("a" | "bb")', '("ab" | "a")']
)
parts = st.one_of(regular, st.sampled_from(['"(" root ")"', "x", "y", '"," x']))
body = st.lists(st.lists(parts, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=2).map(" | ".join)


@settings(max_examples=60, deadline=None)
@given(body, body, st.lists(regular, min_size=1, max_size=2).map(" ".join))
def test_random_grammars(root: str, x: str, y: str) -> None:
    # x may come back to root only behind a parenthesis, so that nothing is left-recursive
    grammar = f"root ::= {root.replace('x', '( x )')}\nx ::= {x.replace('x', 'y')}\ny ::= {y}\n"
    rules = parse(grammar)
    texts = ["".join(t) for n in range(4) for t in itertools.product("ab(),", repeat=n)]
    if "root" not in _ending(rules):  # then nothing fits, however long
        with pytest.raises(SettingError, match="'root' has no end"):
            Taker(grammar)
        longer = ["(" * n + middle + ")" * n for n in range(4) for middle in texts]
        assert not any(len(text) in matches(rules, rules["root"], text, 0) for text in longer)
        return
    takes = Taker(grammar)
    for text in texts:
        assert takes(text) == (len(text) in matches(rules, rules["root"], text, 0)), text


def test_what_can_be_read_greedily_stays_whole() -> None:
    lark = lark_of_gbnf('root ::= "[" (num | root) ("," (num | root))* "]"\nnum ::= "-"? [0-9]+ ("." [0-9]+)?')
    assert lark.count("T_") - lark.count("T_0:") > 0
    number = next(line for line in lark.splitlines() if '"."' in line)
    assert number.startswith("T_")  # a number is one lexeme
    assert lark_of_gbnf('root ::= [a-z]+ "b"').count("\nT_") == 1  # no recursion: all of it is one


def test_escapes_classes_and_comments() -> None:
    rules = parse('# a comment\nroot ::= "\\x41\\u00e9\\U0001F600\\n\\"\\\\" # more\n  \n\nx ::= [^a-c\\]\\-] | [x-]\n')
    assert rules["root"] == Sequence(tuple(Class(((c, c),)) for c in (0x41, 0xE9, 0x1F600, 10, 34, 92)))
    assert rules["x"] == Choice((Class(((0, 44), (46, 92), (94, 96), (100, 0x10FFFF))), Class(((45, 45), (120, 120)))))
    assert parse("root ::= <[5]> <think> !<[7]>")["root"] == Sequence(
        (Token("<[5]>"), Token("<think>"), Token("<[^7]>"))
    )
    assert parse('root ::= ("a"\n | "b"\n) |\n "c"') == parse('root ::= ("a"|"b")|"c"')
    assert accepts('root ::= "é" [ぁ-ゟ] "/" [^/]', "éあ/x")
    assert not accepts('root ::= "é" [ぁ-ゟ] "/" [^/]', "éア/x")


def test_tokens_by_name_and_number() -> None:
    named: Any = ByteTokenizer([b"<think>"])
    tools = SamplerTools(named)
    for grammar in ('root ::= <[260]> "a" root?', 'root ::= "(" root | <[260]> "a"'):
        found = tools.grammar(SamplingParams(grammar=grammar))
        assert found is not None
        assert found.allows(260)
        found.accept(260)
        assert found.allows(ord("a"))
        assert not found.allows(ord("b"))


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ('root ::= "a', "line 1, column 10: this string is not closed"),
        ('root ::= "a"\nx ::= [ab\n', "line 2, column 7: this class of characters is not closed"),
        ('root ::= ("a" | "b"', "line 1, column 10: this parenthesis is not closed"),
        ('root ::= "a" )', r"line 1, column 14: '\)' does not belong here"),
        ('root := "a"\nb ::= "c"', "line 1, column 6: wanted ::= after the rule's name 'root'"),
        ('root ::= x\ny ::= "a"', "line 1, column 10: there is no rule 'x'"),
        ('start ::= "a"', "line 1, column 1: there is no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: there are two rules 'root'"),
        ('root ::= "\\q"', r"line 1, column 11: there is no escape \\q"),
        ('root ::= "\\u12"', r"line 1, column 11: \\u12"),
        ("root ::= [z-a]", "line 1, column 11: this range is the wrong way round"),
        ("root ::= []", "line 1, column 10: this class of characters is empty"),
        ('root ::= "a"{x}', r"line 1, column 13: wanted \{m\}, \{m,\} or \{m,n\}"),
        ('root ::= "a"{3,2}', "line 1, column 13: .* the wrong way round"),
        ("root ::= <a b>", "line 1, column 10: this is no token"),
        ("root ::= " + "(" * 300, "nested more than 200 deep"),
    ],
)
def test_mistakes_are_told_with_line_and_column(grammar: str, says: str) -> None:
    assert is_gbnf(grammar)
    with pytest.raises(SettingError, match=says):
        lark_of_gbnf(grammar)


def test_lark_is_not_taken_for_gbnf() -> None:
    assert not is_gbnf('start: a "::="\na: /x/')
    assert not is_gbnf("%llguidance {}\nstart: /a/")


def test_a_grammar_of_many_rules_is_cut_in_good_time() -> None:
    rules = [f'r{i} ::= "k{i}" ws ":" ws (r{i + 1} | "[" root "]" | num) ws' for i in range(80)]
    text = "\n".join(['root ::= "{" r0 ("," r0)* "}"', *rules, 'r80 ::= "e"', "num ::= [0-9]+", "ws ::= [ ]*"])
    assert accepts(text, "{k0: k1:12}")
    assert not accepts(text, "{k0: k2:12}")
