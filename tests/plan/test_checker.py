"""The checker: sound programs pass, and every kind of damage is named by step."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from edgeinfer.errors import EngineError
from edgeinfer.plan.checker import check_program
from edgeinfer.plan.program import Program, Scratch, Step
from tests.plan.test_builder import programs
from tests.tiny import build_tiny

MODELS = list(itertools.product(["llama", "gemma3"], ["decode", "batch"]))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Program]:
    folder = tmp_path_factory.mktemp("checker")
    types = {"default": "Q8_0", "attn_v": "F16", "ffn_down": "F32", "ffn_up": "Q4_0"}
    made = {arch: programs(build_tiny(folder / f"{arch}.gguf", arch, types)) for arch in ("llama", "gemma3")}
    return {(arch, phase): made[arch][phase] for arch, phase in MODELS}


def changed(program: Program, number: int, **new: object) -> Program:
    """The program with one step changed."""
    steps = list(program.steps)
    steps[number] = replace(steps[number], **new)  # type: ignore[arg-type]
    return replace(program, steps=tuple(steps))


@pytest.mark.parametrize(("arch", "phase"), MODELS)
def test_sound_programs_pass(sound: dict[tuple[str, str], Program], arch: str, phase: str) -> None:
    assert check_program(sound[arch, phase]) is sound[arch, phase]


@pytest.mark.parametrize(("arch", "phase"), MODELS)
def test_every_barrier_is_needed(sound: dict[tuple[str, str], Program], arch: str, phase: str) -> None:
    """But the last, after which nothing comes."""
    program = sound[arch, phase]
    barriers = [i for i, step in enumerate(program.steps[:-1]) if step.sync]
    assert len(barriers) > 10
    for i in barriers:
        with pytest.raises(EngineError, match=rf"program '{phase}', step \d+ \(.*a barrier is missing before it"):
            check_program(changed(program, i, sync=False))


@pytest.mark.parametrize(("arch", "phase"), MODELS)
def test_a_field_too_few_or_too_many_is_named(sound: dict[tuple[str, str], Program], arch: str, phase: str) -> None:
    program = sound[arch, phase]
    for i, step in enumerate(program.steps):
        name = next(iter(step.fields))
        fewer = {k: v for k, v in step.fields.items() if k != name}
        with pytest.raises(EngineError, match=rf"step {i} .*fields differ from the kind's: \['{name}'\]"):
            check_program(changed(program, i, fields=fewer))
    with pytest.raises(EngineError, match=r"step 0 .*\['colour'\]"):
        check_program(changed(program, 0, fields={**program.steps[0].fields, "colour": 1}))


def test_an_unknown_kind_is_refused(sound: dict[tuple[str, str], Program]) -> None:
    with pytest.raises(EngineError, match=r"step 3 \(softmax.*unknown kind"):
        check_program(changed(sound["llama", "batch"], 3, kind="softmax"))


def test_a_kind_that_is_no_step_of_a_program_is_refused(sound: dict[tuple[str, str], Program]) -> None:
    pack = Step("pack", "q8_0", dict.fromkeys(("rows", "quants", "scales", "blocks", "groups"), 0), "pack")
    program = sound["llama", "batch"]
    with pytest.raises(EngineError, match=r"step 0 \(pack.*unknown kind"):
        check_program(replace(program, steps=(pack, *program.steps)))


def test_a_buffer_without_a_size_is_refused(sound: dict[tuple[str, str], Program]) -> None:
    program = sound["llama", "batch"]
    fields = {**program.steps[0].fields, "x": Scratch("nowhere")}
    with pytest.raises(EngineError, match=r"buffer 'nowhere' has no size"):
        check_program(changed(program, 0, fields=fields))


def test_writing_where_another_thread_still_reads_is_refused(sound: dict[tuple[str, str], Program]) -> None:
    program = sound["llama", "decode"]
    first = next(i for i, step in enumerate(program.steps) if step.kind == "matmul")
    fields = {**program.steps[first].fields, "y": Scratch("x")}  # the norm before it reads x, without a barrier between
    with pytest.raises(EngineError, match=rf"step {first} .*overwrites what another thread may still be using"):
        check_program(changed(program, first, fields=fields))
