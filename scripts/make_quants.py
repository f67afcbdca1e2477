"""Make a model in every quant that we run, and check each beside llama.cpp: scripts/quants [--model NAME] [TYPE...].

The files are made by llama.cpp's own quantizer, from the fetched model by way of F16, and lie in .cache/models/made. (What is
lost on the way does not matter: both sides read the same file.) `wide` is a random llama whose rows are multiples of
256, so that the types with blocks of 256 stand in every matrix; in SmolLM2 (576 wide) they stand in a few.

Then each file is run by both: mean KL divergence and top-1 agreement over a text, and with --speed the speed at one
thread, taking turns. Exits 1 when a mean KL divergence is above 0.01 nats, or with --speed when we are slower.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_compare import STORY, Tokens, ours, pp, tg, theirs
from fetch_models import FOLDER, SOURCES, fetch
from llama_reference import LlamaCpp, machine

import edgeinfer
from edgeinfer.evaluate.divergence import compare_rows
from edgeinfer.evaluate.exact import log_softmax
from edgeinfer.metrics import spread

__all__ = ["TYPES", "made", "make", "quantize"]

MADE = FOLDER / "made"
MOST_KL = 0.01
ROWS = 128

# Our name -> llama.cpp's number of the recipe; all tensors get the type itself where it is `pure`.
TYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q5_1": 9, "Q5_0": 8, "Q4_K_M": 15, "Q4_1": 3,
    "Q4_0": 2, "Q3_K_M": 12, "Q2_K": 10, "IQ4_NL": 25, "IQ4_XS": 30, "MXFP4": 38,
}  # fmt: skip
_SAID: list[str] = []  # llama.cpp's log
_LISTENER: list[Any] = []  # its receiver, which must outlive every later call into the library
PURE = ("MXFP4",)  # the recipe leaves all but experts at Q8_0


def quantize(source: Path, target: Path, name: str, pure: bool | None = None) -> Path:
    """Write `source` as `target` in one of TYPES with llama.cpp's quantizer. Ends the program when that fails."""
    import llama_cpp

    _SAID.clear()
    if not _LISTENER:
        _LISTENER.append(
            llama_cpp.llama_log_callback(lambda _, text, __: _SAID.append(text.decode("utf-8", "replace")))
        )
    llama_cpp.llama_log_set(_LISTENER[0], ctypes.c_void_p(0))
    params: Any = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = TYPES[name], True, 2
    params.pure = name in PURE if pure is None else pure
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(part).encode(), ctypes.byref(params))
    if failed:
        part.unlink(missing_ok=True)
        raise SystemExit(f"llama.cpp could not make {target.name} of {source.name}: {''.join(_SAID[-3:]).strip()}")
    return part.replace(target)


def made(model: str, name: str) -> Path:
    """Where a model's copy of a type lies once it is made."""
    return MADE / f"{model}.{name}.gguf"


def make(model: str, name: str) -> Path:
    """Return the model's copy of a type, making it first if it is not there."""
    path = made(model, name)
    if path.exists():
        return path
    source = path.with_name(f"{model}.F16.gguf")
    if not source.exists():
        if model == "wide":
            source = wide(source)
        else:
            source = quantize(fetch(model), source, "F16")
    return source if path == source else quantize(source, path, name)


def wide(path: Path, width: int = 1024, layers: int = 6) -> Path:
    """A random llama of F16 weights with SmolLM2's tokenizer, its rows multiples of 256."""
    import gguf

    rng = np.random.default_rng(1)
    reader, writer = gguf.GGUFReader(fetch("smollm2-135m")), gguf.GGUFWriter(path.with_suffix(".part"), "llama")
    for key in reader.fields:
        if key.startswith("tokenizer."):
            field = reader.fields[key]
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    heads, kv_heads, n_ff = 16, 4, 3 * width
    n_kv = width * kv_heads // heads
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(1)

    def add(name: str, rows: int, cols: int, size: float = 1.0) -> None:
        values = rng.standard_normal((rows, cols), np.float32) * (size / np.sqrt(cols))
        writer.add_tensor(name, values.astype(np.float16))

    add("token_embd.weight", n_vocab, width, 2.0)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(width, np.float32))
        shapes = {
            "attn_q": (width, width), "attn_k": (n_kv, width), "attn_v": (n_kv, width),
            "attn_output": (width, width), "ffn_gate": (n_ff, width), "ffn_up": (n_ff, width), "ffn_down": (width, n_ff),
        }  # fmt: skip
        for name, (rows, cols) in shapes.items():
            add(f"blk.{i}.{name}.weight", rows, cols)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_suffix(".part").replace(path)


def types_in(path: Path) -> str:
    """The types of a file's matrices and how many there are of each."""
    from edgeinfer.model.gguf import GGUFFile

    counts: dict[str, int] = {}
    with GGUFFile.open(path) as file:
        for info in file:
            if len(info.shape) > 1:
                counts[info.type_name] = counts.get(info.type_name, 0) + 1
    return " ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda item: -item[1]))


def check(path: Path, args: argparse.Namespace) -> tuple[str, bool]:
    """One row of the table about a file, and whether it is as good as wanted."""
    llama = LlamaCpp(path, 1024, 1, n_batch=512 if args.speed else ROWS)
    with edgeinfer.load(path, n_ctx=1024, n_threads=1) as llm:
        story = llm.tokenizer.encode(STORY)
        ids = llm.tokenizer.encode(args.text.read_text("utf-8"))[: args.limit]
        rows = llm.logits(ids)
        reference = np.concatenate([part.copy() for part in llama.logits(ids)])
        found = compare_rows(log_softmax(reference), rows)
        good = found.mean_kl <= MOST_KL
        cells = [
            types_in(path),
            f"{path.stat().st_size / 1e6:.0f}",
            f"{found.mean_kl:.2e}",
            f"{found.top1_agreement:.1%}",
        ]
        if args.speed:
            sides = (ours(llm), theirs(llama))
            for ratio, text in (race(sides, story, args.repeats, prefill) for prefill in (False, True)):
                good &= ratio >= 1
                cells.append(text)
    llama.close()
    return " | ".join(cells), good


def race(sides: Sequence[Tokens], story: list[int], repeats: int, prefill: bool) -> tuple[float, str]:
    """tg64 or pp512 of both sides, taking turns: the ratio of the medians, and the cells of the table."""
    rates: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 1):
        for side in (0, 1) if i % 2 else (1, 0):
            tokens = sides[side]
            rate = pp(tokens, story[1 + i : 513 + i]) if prefill else tg(tokens, story[1 + i : 33 + i], 64)
            if i:  # the first is a warm-up
                rates[side].append(rate)
    mine, other = (spread(r).median or 0.0 for r in rates)
    return mine / other, f"{mine:.0f} | {other:.0f} | {mine / other:.2f}"


def main() -> None:
    """Make and check; exit 1 if a file is not as wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", help=f"of {' '.join(TYPES)} (default: all)")
    parser.add_argument("--model", choices=[*SOURCES, "wide"], default="smollm2-135m")
    parser.add_argument("--make-only", action="store_true", help="do not run them")
    parser.add_argument("--speed", action="store_true", help="tg64 and pp512 at one thread too")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, default=512, help="tokens of the text")
    texts = Path(__file__).resolve().parent.parent / "tests" / "data" / "texts"
    parser.add_argument("--text", type=Path, default=texts / "english.txt")
    args = parser.parse_args()
    unknown = [name for name in args.types if name not in TYPES]
    if unknown:
        parser.error(f"no type {unknown[0]!r}; there are {', '.join(TYPES)}")
    paths = [make(args.model, name) for name in args.types or TYPES]
    if args.make_only:
        print(*paths, sep="\n")
        return
    print(machine())
    speed = " | tg64 | llama.cpp | ratio | pp512 | llama.cpp | ratio" if args.speed else ""
    print(f"\n| file | matrices | MB | KL | top-1{speed} |\n|{'---|' * (5 + (6 if args.speed else 0))}")
    all_good = True
    for path in paths:
        row, good = check(path, args)
        all_good &= good
        print(f"| {path.stem} | {row} |{'' if good else ' NOT as wanted'}", flush=True)
    raise SystemExit(0 if all_good else 1)


if __name__ == "__main__":
    main()
