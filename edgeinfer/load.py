"""The composition root: a name or path and some settings -> everything from file to text, in one object.

`load` never downloads: a name that is not on this disk ends in an error that names the `edgeinfer pull` command. The
engine, and with it numba, is imported when a model is loaded and not before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import SettingError
from .generate.params import SamplingParams
from .llm import LLM
from .profile.threads import choose_threads
from .profile.tuned import find_tuned, with_tuned
from .schedule.fingerprint import open_store
from .schedule.options import ScheduleSettings
from .schedule.prefix_cache import PrefixCache
from .settings import Settings
from .settings import settings as read_settings

if TYPE_CHECKING:
    from .model.gguf import GGUFFile

__all__ = ["LLM", "load"]

_DEFAULT_N_CTX = 4096  # the KV cache of a model's whole trained window would often not fit in memory


def load(
    name_or_path: str | Path,
    *,
    n_ctx: int | None = None,
    n_batch: int = 512,
    n_threads: int | None = None,
    n_kv: int | None = None,
    kv_type: str | None = None,
    max_streams: int = 16,
    max_queue: int = 256,
    split: bool = True,
    schedule: ScheduleSettings | None = None,
    overflow: str = "error",
    pre: str | None = None,
    prefix_cache: bool | None = None,
    seed: int | None = None,
    progress: Callable[[str], None] | None = None,
    settings: Settings | None = None,
) -> LLM:
    """Load a GGUF model by path, or by the name of one that was pulled, and return it ready to answer.

    n_ctx is the context in tokens (default: what the model was trained with, at most 4096), n_batch the most tokens of
    one prefill step, n_threads the threads to compute with (default: EDGEINFER_THREADS, else what `edgeinfer bench
    --tune-threads` found, else the cores this process may use; more than can run at once are not used), seed makes the
    answers of this object repeatable in their order, progress is given lines of text while kernels are compiled. n_kv is
    how many tokens all answers together and the prefix cache may hold (default: 2 n_ctx), kv_type how they are stored
    ("f16", "q8_0", "q4_0").

    max_streams answers are made at once and max_queue requests wait, one more is refused with BusyError; split=False
    reads every prompt whole before answers go on (for benchmarks); `schedule` sets these and more in one record.
    overflow is what happens when prompt and answer do not fit in n_ctx ("error", "drop-oldest-turns", "shift",
    "summarise"), unless a call says otherwise. pre names the rule that cuts text into words before they become tokens,
    for a file that names none in `tokenizer.ggml.pre` or one that is not known here. prefix_cache says whether
    beginnings that prompts share are kept on disk for the next start (default: as EDGEINFER_PREFIX_CACHE says, else
    yes).

    Raises NotFoundError, ModelFileError, UnsupportedModelError, SettingError, MemoryLimitError, EngineError.

    >>> with edgeinfer.load("smollm2-135m") as llm:  # doctest: +SKIP
    ...     print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text())
    """
    from . import store
    from .arch import config_of
    from .model.gguf import GGUFFile
    from .model.template import ChatTemplate
    from .model.tokenizer import Tokenizer
    from .model.weights import Weights

    if not isinstance(name_or_path, (str, Path)):
        raise SettingError(f"the model is {type(name_or_path).__name__}; wanted a name or the path of a .gguf file")
    started = time.perf_counter()
    settings = settings or read_settings()
    n_batch = _at_least_one("n_batch", n_batch)
    if schedule is None:
        schedule = ScheduleSettings(max_streams, max_queue, "auto" if split else "whole")
    if seed is not None:
        seed = SamplingParams(seed=seed).seed
    threads = choose_threads(n_threads, settings)
    more: dict[str, Any] = {} if kv_type is None else {"kv_type": kv_type}
    if n_kv is not None:
        more["n_kv"] = _at_least_one("n_kv", n_kv)
    with ExitStack() as opened:
        file = opened.enter_context(GGUFFile.open(store.resolve(name_or_path, settings)))
        config = config_of(file)
        window = choose_n_ctx(n_ctx, config.n_ctx_train)
        tokenizer = Tokenizer.from_gguf(file, pre)
        template = ChatTemplate.from_gguf(file, tokenizer)
        weights = Weights(file, config)
        opened.callback(weights.close)

        from .engine.native import NativeEngine, kernel_library

        if threads.automatic:
            threads = with_tuned(threads, find_tuned(settings, file.path, kernel_library(settings).folder.name))
        engine = NativeEngine(
            weights, n_ctx=window, n_batch=n_batch, n_threads=threads.n_threads, progress=progress,
            phase_threads=threads.phases(), **more,
        )  # fmt: skip
        opened.callback(engine.close)
        compile_s = getattr(engine, "compile_s", None)
        return LLM(
            engine,
            tokenizer,
            template,
            threads=threads,
            schedule=schedule,
            prefix=_prefix_cache(engine, file, settings, prefix_cache),
            overflow=overflow,
            seed=seed,
            load_s=time.perf_counter() - started - (compile_s or 0.0),
            compile_s=compile_s,
            on_close=opened.pop_all().close,
        )


def _prefix_cache(engine: Any, file: GGUFFile, settings: Settings, on_disk: bool | None) -> PrefixCache | None:
    """The cache of prompts' beginnings, in RAM and on disk, for an engine whose KV cache has pages to share."""
    if not hasattr(engine.kv, "hold"):
        return None
    if on_disk is not None:
        settings = dataclasses.replace(settings, prefix_cache=on_disk)
    return PrefixCache(engine.kv, store=open_store(settings, file, engine.kv.layout, engine.library.folder.name))


def choose_n_ctx(asked: int | None, n_ctx_train: int) -> int:
    """The context: `asked`, else the trained one up to 4096. Raises SettingError above the trained one."""
    if asked is None:
        return min(n_ctx_train, _DEFAULT_N_CTX)
    n_ctx = _at_least_one("n_ctx", asked)
    if n_ctx > n_ctx_train:
        raise SettingError(
            f"n_ctx is {n_ctx}, but the model was trained with {n_ctx_train} positions and answers nonsense beyond; "
            f"wanted at most {n_ctx_train}"
        )
    return n_ctx


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise SettingError(f"{name} is {value!r}; wanted a whole number, at least 1")
    return int(value)
