"""`edgeinfer inspect FILE`: what is in a GGUF file, what it needs, and what runs here. Options and printing only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from ..model.gguf import GGUFFile
from ..profile.summary import summarize
from ..settings import settings

__all__ = ["inspect"]

_LABEL = 16  # columns


@click.command()
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--n-ctx", type=int, help="Plan memory for this context (default: as chat would, at most 4096).")
def inspect(file: str, as_json: bool, tensors: bool, n_ctx: int | None) -> None:
    """Show what is in FILE (a .gguf file, or the name of a model on this disk) and whether it runs here."""
    with GGUFFile.open(_path_of(file)) as opened:
        summary = summarize(opened, n_ctx, tensors)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False, indent=2, allow_nan=False))
        return
    if sys.stdout.isatty() and not settings().no_color:
        _print_rich(summary)
        return
    for title, rows in _sections(summary):
        click.echo(title)
        for label, text in rows:
            click.echo(f"  {label:<{_LABEL}}{text}" if label else f"  {text}")


def _path_of(name: str) -> str | os.PathLike[str]:
    """FILE as a path: itself where it exists or looks like one, else the file of a model by that name."""
    if os.path.lexists(name) or "/" in name or os.sep in name or name.endswith(".gguf"):
        return name
    from ..store import resolve

    return resolve(name, settings())


def _print_rich(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for title, rows in _sections(summary):
        console.print(Text(title, style="bold"))
        for label, text in rows:
            style = "red" if label == "cannot run" else "green" if label == "runs" else ""
            console.print(Text.assemble("  ", (f"{label:<{_LABEL}}" if label else "", "cyan"), (text, style)))


def _sections(s: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The report: titles, and lines of (label, text); a line without a label stands for itself."""
    config, parameters, quantization = s["config"], s["parameters"], s["quantization"]
    yield (
        _clean(s["path"]),
        [
            ("name", _clean(s["name"]) if s["name"] else "not given"),
            ("size", f"{_size(s['size'])} ({s['size']:,} bytes)"),
            ("format", f"GGUF v{s['version']}, {s['n_metadata']} metadata keys, {s['n_tensors']} tensors"),
        ],
    )
    rows = [("family", _clean(s["architecture"] or "not given"))]
    if config:
        rows += _model_rows(config)
    total, embedding = parameters["total"], parameters["embedding"]
    shared = ""
    if parameters["tied_embeddings"]:
        again = "; the file stores them twice" if parameters["embeddings_stored_twice"] else ""
        shared = f", shared with the output matrix and counted once{again}"
    rows.append(("parameters", f"{_count(total)} ({total:,}), of which embeddings {_count(embedding)}{shared}"))
    yield "Model", rows
    yield "Weights", _weight_rows(quantization)
    yield "Text", _text_rows(s["tokenizer"], s["template"])
    if s["memory"]:
        yield "Memory", _memory_rows(s["memory"])
    problems = s["native"]["problems"]
    verdict = [("cannot run", _clean(problem)) for problem in problems]
    yield "Native engine", verdict or [("runs", "yes: every tensor, the family and the tokenizer are supported")]
    if "tensors" in s:
        yield "Tensors", _tensor_rows(s["tensors"])


def _model_rows(c: dict[str, Any]) -> list[tuple[str, str]]:
    heads = f"{c['n_head']} heads of {c['head_dim']}, {c['n_head_kv']} for keys and values"
    rope = f"base {c['rope_base']:g}, {c['rope_dim']} dimensions"
    if c["rope_base_local"]:
        rope += f", base {c['rope_base_local']:g} in sliding layers"
    if c["rope_scaling_type"]:
        rope += f", {c['rope_scaling_type']} scaling by {c['rope_scaling_factor']:g}"
    rows = [
        ("layers", f"{c['n_layer']} of width {c['n_embd']}, feed-forward {c['n_ff']}"),
        ("attention", heads + (f", sliding window {c['sliding_window']}" if c["sliding_window"] else "")),
        ("rotary", rope),
        ("context", f"trained for {c['n_ctx_train']:,} tokens"),
        ("vocabulary", f"{c['n_vocab']:,} rows, {c['n_tokens']:,} tokens"),
    ]
    if c["n_expert"]:
        rows.append(("experts", str(c["n_expert"])))
    return rows


def _weight_rows(quantization: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("recipe", quantization["file_type"] or "not given"),
        ("bits per weight", f"{quantization['bits_per_weight']:.2f}, {_size(quantization['bytes'])} in all"),
    ]
    for row in quantization["types"]:
        text = f"{row['tensors']:>4} tensors  {_size(row['bytes']):>9}  {row['bits_per_weight']:.2f} bits"
        rows.append((row["type"], text + ("" if row["native"] else "  (does not run)")))
    return rows


def _text_rows(tokenizer: dict[str, Any], template: dict[str, Any]) -> list[tuple[str, str]]:
    pre = f", pre-tokenizer {_clean(tokenizer['pre'])}" if tokenizer["pre"] else ""
    rows = [("tokenizer", f"{tokenizer['kind'] or 'none'} ({_clean(tokenizer['model'])}){pre}")]
    flags = [f"{name} {_yes(tokenizer[name])}" for name in ("add_bos", "add_eos", "add_space_prefix")]
    rows.append(("adds", ", ".join(flags)))
    for name, token in tokenizer["special"].items():
        rows.append((name, _token(token)))
    rows.append(("ends an answer", ", ".join(map(_token, tokenizer["ends"])) or "nothing"))
    if not template["present"]:
        rows.append(("chat template", "none; chat falls back to plain completion"))
    elif template["parses"]:
        rows.append(("chat template", f"yes, {template['length']:,} characters"))
    else:
        rows.append(("chat template", f"broken: {_clean(template['error'])}"))
    return rows


def _memory_rows(memory: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("context", f"{memory['n_ctx']:,} tokens"),
        ("weights", _size(memory["weights"])),
        ("KV cache", f"{_size(memory['kv'])} ({memory['kv_per_position']:,} bytes a token, f16)"),
        ("scratch", f"about {_size(memory['scratch'])}"),
        ("runtime", f"about {_size(memory['runtime'])}"),
        ("total", f"about {_size(memory['total'])}"),
    ]


def _tensor_rows(tensors: list[dict[str, Any]]) -> list[tuple[str, str]]:
    width = max((len(_clean(t["name"])) for t in tensors), default=0)
    rows = []
    for t in tensors:
        shape = " x ".join(map(str, t["shape"]))
        rows.append(("", f"{_clean(t['name']):<{width}}  {t['type']:<8} {shape:<16} {_size(t['bytes']):>9}"))
    return rows


def _token(token: dict[str, Any]) -> str:
    return (
        f"{token['id']} {_clean(repr(token['text']))}"
        if token["text"] is not None
        else f"{token['id']} (no such token)"
    )


def _yes(value: object) -> str:
    return "not given" if value is None else "yes" if value is True else "no" if value is False else _clean(value)


def _clean(value: object) -> str:
    """Text from a file without line breaks or control characters, which could drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def _size(n: int) -> str:
    """Bytes in decimal units, as disks and downloads count."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= scale:
            return f"{n / scale:.2f} {unit}" if unit == "GB" else f"{n / scale:.1f} {unit}"
    return f"{n} B"


def _count(n: int) -> str:
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= scale:
            return f"{n / scale:.4g}{unit}"
    return str(n)
