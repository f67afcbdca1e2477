"""What each backend can do with a file, and why not. Runs nothing and imports no backend."""

from __future__ import annotations

import importlib.util
from typing import Any

from ..arch import ARCHS, family_problem
from ..errors import EdgeInferError, ModelFileError, UnsupportedModelError
from ..formats import FORMATS
from ..model.config import ModelConfig
from ..model.gguf import GGUFFile, TensorInfo
from ..model.purpose import architecture, architecture_problem, other_purpose
from ..model.weights import Weights, unsupported_reason
from .llamacpp_families import LLAMACPP_FAMILIES, LLAMACPP_TOKENIZERS, LLAMACPP_VERSION
from .vocabulary import plain

__all__ = ["llamacpp", "native_problems", "read_config"]


def read_config(file: GGUFFile) -> tuple[ModelConfig | None, list[str]]:
    """The configuration, None where it cannot be read, and what is wrong with it or with its family.

    What is wrong with the keys of a family that does not run here is no news: it may have none of them.
    """
    problem = config = None
    try:
        problem = family_problem(architecture(file))
        config = ModelConfig.from_gguf(file)
    except (ModelFileError, UnsupportedModelError) as error:
        problem = problem or str(error).removeprefix(f"{file.path}: ")
    return config, [problem] if problem else []


def native_problems(file: GGUFFile, config: ModelConfig | None) -> list[str]:
    """One sentence per tensor type that does not run, naming one tensor of it; else what planning the model finds.

    Planning is what an engine does first: it asks for every tensor that the family needs, in its shape.
    """
    bad: dict[str, list[TensorInfo]] = {}
    for info in file:
        if unsupported_reason(info) is not None:
            bad.setdefault(info.type_name, []).append(info)
    answers = []
    for infos in bad.values():
        more = f" and {len(infos) - 1} more" if len(infos) > 1 else ""
        answers.append(f"tensor {infos[0].name!r}{more}: {unsupported_reason(infos[0])}")
    if not answers and config is not None and config.arch in ARCHS:
        from ..engine.native import build_programs, family_of  # which take a while to import

        try:
            build_programs(Weights(file, config), family_of(config))
        except EdgeInferError as error:
            answers.append(str(error).removeprefix(f"{file.path}: "))
    return answers


def llamacpp(file: GGUFFile) -> dict[str, Any]:
    """What llama.cpp would say: `runs` by its tables (which are of `version`), and `available`: whether it is here."""
    what = other_purpose(file)
    problems = _llamacpp_problems(file) if what is None else [f"this is {what}"]
    # found, not imported: an inspection must stay light
    backend = importlib.util.find_spec("edgeinfer.engine.llamacpp") is not None
    available = backend and importlib.util.find_spec("llama_cpp") is not None
    return {"runs": not problems, "problems": problems, "available": available, "version": LLAMACPP_VERSION}


def _llamacpp_problems(file: GGUFFile) -> list[str]:
    arch, model = (plain(file.metadata.get(key)) for key in ("general.architecture", "tokenizer.ggml.model"))
    problems = []
    if (problem := architecture_problem(file)) is not None:
        problems.append(problem)
    elif arch not in LLAMACPP_FAMILIES:
        problems.append(f"the family {arch!r:.60} is not one that llama.cpp knows")
    unknown = {info.type_name for info in file if (fmt := FORMATS.get(info.type_id)) is None or fmt.withdrawn}
    if unknown:
        problems.append(f"no such tensor type: {', '.join(sorted(unknown))}")
    if model is not None and (not isinstance(model, str) or model not in LLAMACPP_TOKENIZERS):
        problems.append(f"the tokenizer {model!r:.60} is not one that llama.cpp knows")
    return problems
