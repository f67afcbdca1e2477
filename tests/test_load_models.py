"""The public API on real files and the real engine, through everything from file to text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import ContextOverflowError, NumericError, TemplateError
from tests.tiny import build_tiny

pytestmark = pytest.mark.slow

FRANCE = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[edgeinfer.LLM]:
    with edgeinfer.load(smollm2_path, n_ctx=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[edgeinfer.LLM]:
    with edgeinfer.load(gemma3_path, n_ctx=1024) as llm:
        yield llm


def test_smollm2_answers(smollm2: edgeinfer.LLM) -> None:
    answer = smollm2.chat(FRANCE, temperature=0, max_tokens=32)
    text = answer.text()
    assert "Paris" in text
    assert "<|im_" not in text
    assert answer.timings.decode_tok_s is None or answer.timings.decode_tok_s > 0


def test_gemma3_completes_and_has_no_template(gemma3: edgeinfer.LLM) -> None:
    # what llama.cpp's greedy answer says too; the small base model knows no better
    text = gemma3.generate("The capital of France is", temperature=0, max_tokens=8).text()
    assert text.startswith(" the capital of the country")
    with pytest.raises(TemplateError, match="no chat template"):
        gemma3.chat(FRANCE)


def test_a_warm_cache_gives_the_same_ids_as_a_cold_one(smollm2: edgeinfer.LLM) -> None:
    def ids(messages: list[dict[str, str]]) -> tuple[list[int | None], int]:
        answer = smollm2.chat(messages, temperature=0, max_tokens=24)
        return [chunk.token for chunk in answer], answer.timings.n_reused

    smollm2.reset()
    first, reused = ids(FRANCE)
    assert reused == 0
    assert ids(FRANCE)[0] == first
    longer = [*FRANCE, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]
    warm, reused = ids(longer)
    assert reused > 10
    smollm2.reset()
    assert ids(longer) == (warm, 0)


def test_logits_do_not_depend_on_what_ran_before(smollm2: edgeinfer.LLM, gemma3: edgeinfer.LLM) -> None:
    for llm in (smollm2, gemma3):
        prompt = llm.tokenizer.encode("Once upon a time there was a little")
        rows = llm.logits(prompt)
        assert rows.shape == (len(prompt), llm.config.n_vocab)
        assert np.isfinite(rows).all()
        llm.generate("Something else entirely", max_tokens=5, seed=1).text()
        assert np.array_equal(llm.logits(prompt), rows)
        assert np.array_equal(llm.logits(prompt[:3]), rows[:3])
        first = next(llm.generate(prompt, temperature=0, ignore_eos=True)).token
        assert first == int(rows[-1].argmax())


def test_stop_strings_and_seeds(smollm2: edgeinfer.LLM) -> None:
    def text(**params: Any) -> str:
        return smollm2.generate("One, two, three, four,", max_tokens=24, **params).text()

    whole = text(temperature=0)
    assert "six" in whole
    assert text(temperature=0, stop=["six"]) == whole[: whole.index("six")]
    assert text(seed=5) == text(seed=5)
    assert len({text(seed=seed, temperature=1.5) for seed in range(4)}) > 1


def test_the_context_limit(smollm2_path: Path) -> None:
    with edgeinfer.load(smollm2_path, n_ctx=64) as llm:
        prompt = llm.tokenizer.encode("word " * 200)
        answer = llm.generate(prompt[:62], temperature=0, ignore_eos=True)
        assert (len(list(answer)), answer.finish_reason) == (2, "length")
        with pytest.raises(ContextOverflowError, match=r"64 tokens .* 64"):
            llm.generate(prompt[:64])


def test_a_cancelled_and_an_abandoned_answer(smollm2: edgeinfer.LLM) -> None:
    expected = smollm2.generate("The sea is", temperature=0, max_tokens=10).text()
    for _ in smollm2.generate("A long story about", temperature=0):
        break
    answer = smollm2.generate("Another one", temperature=0)
    next(answer)
    answer.cancel()
    assert [chunk.finish_reason for chunk in answer] == ["cancelled"]
    assert smollm2.generate("The sea is", temperature=0, max_tokens=10).text() == expected


def test_one_weight_that_is_not_a_number(tmp_path: Path) -> None:
    """Case 25 with the real kernels: the finite check is not optimised away."""
    norm = np.ones(64, np.float32)
    norm[7] = np.nan
    path = build_tiny(tmp_path / "nan.gguf", replace_tensors={"output_norm.weight": norm})
    with edgeinfer.load(path) as llm:
        with pytest.raises(NumericError, match="step 0"):
            llm.generate("hello", temperature=0, max_tokens=4).text()
        with pytest.raises(NumericError, match="NaN"):
            llm.generate("hello", max_tokens=4).text()
