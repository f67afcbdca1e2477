"""`edgeinfer bench --tune-threads`: the fastest thread counts of a model on this board, measured and kept."""

from __future__ import annotations

from typing import Any

from ..errors import SettingError
from ..evaluate.targets import word_ids
from .bench_view import Counter, print_sweep

__all__ = ["tune_threads"]

_BUSY = 30.0  # percent of all CPUs that others may use where thread counts are measured for good


def tune_threads(opener: Any, n_prompt: int, n_out: int, repeats: int, seed: int, as_json: bool) -> tuple[Any, int]:
    """Measure thread counts, keep the best for this model and board, and show what was found."""
    import psutil

    from .. import store
    from ..evaluate.sides import Ours
    from ..evaluate.tune import Sweep, counts_up_to, sweep
    from ..profile.threads import usable_cores
    from ..profile.tuned import Tuned, keep_tuned
    from ..settings import settings

    if repeats < 1 or n_prompt < 1 or n_out < 2:
        raise SettingError("--tune-threads wants at least 1 repeat, 1 prompt token and 2 tokens out")
    counts = counts_up_to(usable_cores().most)
    busy = psutil.cpu_percent(interval=0.5)  # what others do: nothing of ours runs yet
    counter = Counter(opener.quiet)
    n_ctx = opener.window(max(n_prompt + 1, 32 + n_out))
    with opener.open(n_ctx, threads=counts[-1], prefix_cache=False) as llm:
        if not hasattr(llm.engine, "phase_threads"):
            raise SettingError("--tune-threads needs the native engine, whose threads it counts")
        counter.start(opener.model, (repeats + 1) * len(counts))
        try:
            result = sweep(
                llm.engine, Ours(llm.generate), word_ids(llm.tokenizer), counts, n_prompt=n_prompt, n_out=n_out,
                repeats=repeats, seed=seed, bos=llm.tokenizer.bos_id if llm.tokenizer.add_bos else None,
                done=lambda _: counter.count(),
            )  # fmt: skip
        finally:
            counter.stop()
        kernels = llm.engine.library.folder.name
    prefill, decode = Sweep.best(result.prefill), Sweep.best(result.decode)
    notes: list[str] = []
    kept = None
    if busy > _BUSY:
        notes.append(
            f"nothing was kept: other programs used {busy:.0f} % of the CPUs before the start, beside which fewer threads "
            "look best; run it again when the machine is quiet"
        )
    elif prefill is not None and decode is not None and not result.interrupted:
        rates = [
            {str(n): rate for n, rate in Sweep.medians(found).items()} for found in (result.prefill, result.decode)
        ]
        path = store.resolve(opener.model, settings())
        kept = keep_tuned(settings(), path, kernels, Tuned(prefill, decode, rates[0], rates[1], path.name))
        notes.append(f"prefill with {prefill} and decode with {decode} threads is used from now on for this model here")
    else:
        notes.append("nothing was kept: the sweep was not finished")
    document = {
        "model": opener.model,
        "mode": "tune-threads",
        "counts": list(counts),
        "prefill_tok_s": {str(n): found for n, found in result.prefill.items()},
        "decode_tok_s": {str(n): found for n, found in result.decode.items()},
        "best": {"prefill": prefill, "decode": decode},
        "kept_in": None if kept is None else str(kept),
        "interrupted": result.interrupted,
        "notes": notes,
    }
    if not as_json:
        print_sweep(counts, Sweep.medians(result.prefill), Sweep.medians(result.decode), prefill, decode)
    return document, 130 if result.interrupted else 0
