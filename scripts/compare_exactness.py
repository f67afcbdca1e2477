"""How far our logits and llama.cpp's lie from the exact float forward, on English, code and Chinese text.

Prints, for each model and text, the mean KL divergence from the exact forward in nats, its ratio with a bootstrap
interval and the top-1 agreement. Wanted: a ratio of at most 1.10, agreement no more than a point below llama.cpp's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fetch_models import SOURCES, fetch
from llama_reference import LlamaCpp, machine

import edgeinfer
from edgeinfer.evaluate.divergence import Divergence, bootstrap_ratio, compare_rows, joined
from edgeinfer.evaluate.exact import ExactModel

TEXTS = Path(__file__).resolve().parent.parent / "tests" / "data" / "texts"
ROWS = 128  # positions compared at once: a large vocabulary times a long text would not fit in memory


def windows(ids: list[int], bos: int | None, size: int, limit: int) -> Iterator[list[int]]:
    """Cut a text's tokens into pieces of `size`, each with the begin token where the model wants one."""
    ids = ids[1:] if bos is not None else ids
    step = size - (bos is not None)
    for start in range(0, min(len(ids), limit), step):
        yield [*([bos] if bos is not None else []), *ids[start : start + step]]


def compare(name: str, args: argparse.Namespace) -> bool:
    """Compare one model over all texts, print its table and return whether it is as exact as wanted."""
    path = fetch(name)
    ours_of: dict[str, list[Divergence]] = {}
    theirs_of: dict[str, list[Divergence]] = {}
    theirs = LlamaCpp(path, args.window, args.threads, n_batch=ROWS)
    with edgeinfer.load(path, n_ctx=args.window, n_threads=args.threads) as ours, ExactModel.open(path) as exact:
        bos = ours.tokenizer.bos_id if ours.tokenizer.add_bos else None
        for text in args.texts:
            ids = ours.tokenizer.encode((TEXTS / f"{text}.txt").read_text("utf-8"))
            for window in windows(ids, bos, args.window, args.limit):
                logits = ours.logits(window)
                parts = zip(exact.log_prob_chunks(window, ROWS), theirs.logits(window), strict=True)
                for i, (truth, reference) in enumerate(parts):
                    skip = int(i == 0 and bos is not None)  # the begin token's row is the same in every window
                    rows = logits[i * ROWS : i * ROWS + len(truth)]
                    ours_of.setdefault(text, []).append(compare_rows(truth[skip:], rows[skip:]))
                    theirs_of.setdefault(text, []).append(compare_rows(truth[skip:], reference[skip:]))
    theirs.close()
    ours_of["all"] = [part for parts in ours_of.values() for part in parts]
    theirs_of["all"] = [part for parts in theirs_of.values() for part in parts]
    print(f"\n{path.name}, windows of {args.window}\n")
    print("| text | positions | KL edgeinfer | KL llama.cpp | ratio [95 %] | top-1 edgeinfer | top-1 llama.cpp |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for text in ours_of:
        a, b = joined(ours_of[text]), joined(theirs_of[text])
        ratio = bootstrap_ratio(a.kl, b.kl)
        print(
            f"| {text} | {len(a.kl)} | {a.mean_kl:.3e} | {b.mean_kl:.3e} | {ratio} "
            f"| {a.top1_agreement:.2%} | {b.top1_agreement:.2%} |",
            flush=True,
        )
        if text == "all":
            good = ratio.value <= 1.10 and a.top1_agreement >= b.top1_agreement - 0.01
    return good


def main() -> None:
    """Compare each model; exit 1 if one is less exact than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(SOURCES), help="default: all of them")
    parser.add_argument("--texts", nargs="+", default=["english", "code", "chinese"], help="names in tests/data/texts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--window", type=int, default=1024, help="positions of a text that see each other")
    parser.add_argument("--limit", type=int, default=1 << 30, help="most tokens taken of each text")
    args = parser.parse_args()
    print(machine())
    good = [compare(name, args) for name in args.model or SOURCES]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
