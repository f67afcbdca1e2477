"""GBNF: which tokens may come next, against llama.cpp's own grammar sampler, on its published grammars."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgeinfer.generate.params import SamplingParams
from edgeinfer.generate.tools import SamplerTools
from edgeinfer.model.gguf import GGUFFile
from edgeinfer.model.tokenizer import Tokenizer

from ..models import smollm2
from ..vocabularies import folder

pytestmark = [pytest.mark.llama_cpp, pytest.mark.slow]
pytest.importorskip("llguidance")

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
TEXTS = {
    "arithmetic": ["x = 10\n", "(a1 +b) *3=y\n\n12 -4 = z\nq=(1)\n"],
    "c": [
        "int main(){return 0;if(a==b){x = f(1, y);}else{}}",
        "float f(int n){ret = -n*2+(  3 );// done\nwhile(i<n){}}",
    ],
    "chess": ["1. e4 e5\n2. Nf3 Nc6\n", "1. exd5 O-O-O\n10. a8=Q+ Rae1#\n"],
    "english": ["Hello, world! It's\t(fine) [ok]\\^"],
    "japanese": ["こんにちは 世界、カタカナ"],
    "json": ['{"a": [1, -2.5e+3, "x\\n\\u00e9"], "b" : {"c":null}}', '{ "é": true, "": [ ]\n}'],
    "json_arr": ['[\n {"a":"b"},\n 7]'],
    "list": ["- one item\n- zwei / drei\n"],
}
# grammars whose pieces cannot be read greedily
TRICKY = [
    ('root ::= x | "(" root ")"\nx ::= [a-z]+ "b"', ["aab", "((abbb))"]),
    ('root ::= [a-z ]* "." | "<" root ">"', ["hello there.", "<<a b.>>"]),
    ('root ::= item ("," item)* | "{" root "}"\nitem ::= [0-9]* ","?', ["1,,2", "{,,}", ""]),
    ('root ::= "a" root "a" | "a" | "aa"', ["aaaaa", "aaaaaa"]),
    ('root ::= w (" " w)* "!"\nw ::= "the" | "then" | "n" | "(" root ")"', ["the then n!", "(then!) the!"]),
    ('root ::= ("ab" | "abc" | "c") root | "."', ["abc.", "abcab.", "abccc."]),
]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[tuple[Any, Any, Tokenizer, SamplerTools]]:
    import llama_cpp as api

    api.llama_backend_init()
    settings = api.llama_model_default_params()
    settings.vocab_only = True
    model = api.llama_model_load_from_file(str(smollm2()).encode(), settings)
    with GGUFFile.open(smollm2()) as file:
        tokenizer = Tokenizer.from_gguf(file)
    yield api, api.llama_model_get_vocab(model), tokenizer, SamplerTools(tokenizer)
    api.llama_model_free(model)


def whole(piece: bytes) -> bool:
    """Whether the bytes are whole characters, and not zero, which ends a string in C."""
    if b"\0" in piece:
        return False
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def compare(vocabulary: tuple[Any, Any, Tokenizer, SamplerTools], grammar: str, text: str) -> None:
    """Walk through a text token by token, comparing the tokens that may be next."""
    api, vocab, tokenizer, tools = vocabulary
    theirs = api.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    assert theirs
    ours = tools.grammar(SamplingParams(grammar=grammar))
    assert ours is not None
    n = tokenizer.n_vocab
    ends = sorted(tokenizer.end_ids)
    # llama.cpp takes a control token for the text that it is written as; and half a character, which may still become
    # one that fits, it lets pass only where nothing is excluded
    skipped = np.array([not tokenizer.piece(i) or not whole(tokenizer.piece(i)) for i in range(n)])
    skipped[ends] = False
    ids = tokenizer.encode(text, special=False)
    for step, token in enumerate([*ids, None]):
        data = np.zeros(n, CANDIDATE)
        data["id"] = np.arange(n)
        pointer = data.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
        array = api.llama_token_data_array(data=pointer, size=n, selected=-1, sorted=False)
        api.llama_sampler_apply(theirs, ctypes.byref(array))
        allowed = data["logit"] > -np.inf
        row = np.zeros(n, np.float32)
        ours.mask(row)
        found = row > -np.inf
        if found.sum() == 1:  # the text goes on in one way only, then llguidance wants it in as few tokens as it can be
            one = int(np.flatnonzero(found)[0])
            assert allowed[one]
            piece = tokenizer.piece(one)
            assert all(piece.startswith(tokenizer.piece(i)) for i in np.flatnonzero(allowed & ~skipped).tolist())
            found = allowed
        other = np.flatnonzero((found != allowed) & ~skipped)
        assert [(i, tokenizer.piece(i, True), bool(found[i])) for i in other[:9].tolist()] == [], text[: step + 9]
        assert [ours.allows(token) for token in ends] == allowed[ends].tolist()
        if token is None:
            assert allowed[ends].all(), "the text is whole here"
        else:
            assert allowed[token], f"the example does not fit the grammar at {tokenizer.piece(token)!r}"
            api.llama_sampler_accept(theirs, token)
            ours.accept(token)
    api.llama_sampler_free(theirs)


@pytest.mark.parametrize("name", TEXTS)
def test_published_grammars(vocabulary: Any, name: str) -> None:
    grammar = (folder() / "grammars" / f"{name}.gbnf").read_text(encoding="utf-8")
    for text in TEXTS[name]:
        compare(vocabulary, grammar, text)


@pytest.mark.parametrize("number", range(len(TRICKY)))
def test_grammars_whose_pieces_run_into_each_other(vocabulary: Any, number: int) -> None:
    grammar, texts = TRICKY[number]
    for text in texts:
        compare(vocabulary, grammar, text)
