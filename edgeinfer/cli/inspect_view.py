"""A summary of a model file as lines to read. Printing only: every value from the file is escaped here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .terminal import escaped

__all__ = ["LABEL", "Section", "count", "layers", "sections", "size"]

LABEL = 16  # columns
Rows = list[tuple[str, str]]
Section = tuple[str, Rows]  # a title, and lines of (label, text); a line without a label stands for itself


def sections(s: dict[str, Any]) -> Iterator[Section]:
    """The report on one file."""
    yield escaped(s["path"]), _file_rows(s)
    yield "Model", _model_rows(s)
    yield "Weights", _weight_rows(s["quantization"])
    yield "Text", _text_rows(s["tokenizer"], s["template"])
    if s["memory"]:
        yield "Memory", _memory_rows(s["memory"], s["memory_plans"])
    verdict = [("cannot run", escaped(problem)) for problem in s["native"]["problems"]]
    threads = [("threads", s["threads"]["text"])] if "threads" in s else []
    yield "Native engine", verdict or [*_runs(s["template"]), *threads]
    yield "llama.cpp", _llamacpp_rows(s["llamacpp"])
    if "tensors" in s:
        yield "Tensors", _tensor_rows(s["tensors"])
    if isinstance(s["template"].get("source"), str):
        yield "Chat template", [("", _line(i, line)) for i, line in enumerate(s["template"]["source"].split("\n"), 1)]


def _runs(template: dict[str, Any]) -> Rows:
    """What a model that can be computed is good for: without a template that works, plain completion only."""
    supported = "every tensor, the family and the tokenizer are supported"
    if not template["refuses"]:
        return [("runs", f"yes: {supported}")]
    why = template["error"] or f"the chat template {template['refuses']}"
    return [
        ("generates", f"yes (llm.generate, `edgeinfer run` without --chat): {supported}"),
        ("cannot chat", escaped(why)),
    ]


def _line(number: int, text: str) -> str:
    return f"{number:>4}  {escaped(text)}"


def _file_rows(s: dict[str, Any]) -> Rows:
    rows = [("name", escaped(s["name"]) if s["name"] else "not given")]
    about = s["about"]
    licence = [about[key] for key in ("license", "license.name", "license.link") if about.get(key)]
    rows.append(("licence", ", ".join(map(escaped, licence)) or "not given"))
    makers = [f"{key} {escaped(about[key])}" for key in ("organization", "author", "quantized_by") if about.get(key)]
    if makers:
        rows.append(("made by", ", ".join(makers)))
    bases = [value for key, value in about.items() if key.startswith("base_model.") and key.endswith(".name")]
    if bases:
        rows.append(("made from", ", ".join(map(escaped, bases))))
    rows.append(("size", f"{size(s['size'])} ({s['size']:,} bytes)"))
    rows.append(
        (
            "format",
            f"GGUF v{s['version']}, {s['byte_order']}-endian, {s['n_metadata']} metadata keys, {s['n_tensors']} tensors",
        )
    )
    if len(s["shards"]) > 1:
        rows.append(("shards", f"{len(s['shards'])} files"))
        for shard in s["shards"]:
            name = escaped(shard["path"].replace("\\", "/").rpartition("/")[2])
            rows.append(("", f"{'':<{LABEL}}{name}  {size(shard['size'])}, {shard['n_tensors']} tensors"))
    return rows


def _model_rows(s: dict[str, Any]) -> Rows:
    rows: Rows = [("family", escaped(s["architecture"] or "not given"))]
    c, parameters = s["config"], s["parameters"]
    if c:
        heads = f"{c['n_head']} heads of {c['head_dim']}, {c['n_head_kv']} for keys and values"
        rows += [
            ("layers", f"{c['n_layer']} of width {c['n_embd']}, feed-forward {c['n_ff']}"),
            ("attention", heads + (f", sliding window {c['sliding_window']}" if c["sliding_window"] else "")),
            ("rotary", _rotary(c, s["rope"])),
            ("context", f"trained for {c['n_ctx_train']:,} tokens"),
            ("vocabulary", f"{c['n_vocab']:,} rows, {c['n_tokens']:,} tokens"),
        ]
        if c["n_expert"]:
            rows.append(("experts", str(c["n_expert"])))
    else:  # not understood: what the file writes, as it writes it
        given = {key: value for key, value in s["hyperparameters"].items() if not isinstance(value, (list, dict))}
        rows += [(escaped(key)[:40] + " ", escaped(value)[:80]) for key, value in list(given.items())[:24]]
    total, embedding = parameters["total"], parameters["embedding"]
    shared = ""
    if parameters["tied_embeddings"]:
        again = "; the file stores them twice" if parameters["embeddings_stored_twice"] else ""
        shared = f", shared with the output matrix and counted once{again}"
    active = f", {count(parameters['active'])} active a token" if parameters["active"] else ""
    rows.append(("parameters", f"{count(total)} ({total:,}){active}, of which embeddings {count(embedding)}{shared}"))
    return rows


def _rotary(c: dict[str, Any], rope: dict[str, Any]) -> str:
    text = f"base {c['rope_base']:g}, {c['rope_dim']} dimensions"
    if c["rope_base_local"]:
        text += f", base {c['rope_base_local']:g} in sliding layers"
    if c["rope_scaling_type"]:
        text += f", {c['rope_scaling_type']} scaling by {c['rope_scaling_factor']:g}"
        if c["rope_n_ctx_orig"]:
            text += f" from {c['rope_n_ctx_orig']:,} positions"
    if rope["factor_tensors"]:
        text += f", factors in {', '.join(map(escaped, rope['factor_tensors']))}"
    return text


def _weight_rows(quantization: dict[str, Any]) -> Rows:
    if not quantization["types"]:
        return [("tensors", "none: a vocabulary without a model")]
    rows = [
        ("recipe", quantization["file_type"] or "not given"),
        ("bits per weight", f"{quantization['bits_per_weight']:.2f}, {size(quantization['bytes'])} in all"),
    ]
    for row in quantization["types"]:
        text = f"{row['tensors']:>4} tensors  {size(row['bytes']):>9}  {row['bits_per_weight']:.2f} bits"
        rows.append((row["type"], text + ("" if row["native"] else "  (does not run)")))
    mixes: dict[str, list[str]] = {}  # tensors of one mix share a line
    for group in quantization["groups"]:
        parts = []
        for kind, where in sorted(group["types"].items(), key=lambda item: -len(item[1])):
            only = len(group["types"]) > 1 and None not in where
            parts.append(kind + (f" (blk {layers(where)})" if only else ""))
        mixes.setdefault(", ".join(parts), []).append(escaped(group["group"]))
    for i, (mix, names) in enumerate(list(mixes.items())[:40]):
        shown = ", ".join(names[:16]) + (f" and {len(names) - 16} more" if len(names) > 16 else "")
        rows.append(("mix" if i == 0 else "", f"{mix}: {shown}" if i == 0 else f"{'':<{LABEL}}{mix}: {shown}"))
    return rows


def _text_rows(tokenizer: dict[str, Any], template: dict[str, Any]) -> Rows:
    pre = f", pre-tokenizer {escaped(tokenizer['pre'])}" if tokenizer["pre"] else ""
    merges = f", {tokenizer['n_merges']:,} merges" if tokenizer["n_merges"] else ""
    model = "" if tokenizer["model"] is None else f" ({escaped(tokenizer['model'])})"
    rows = [("tokenizer", f"{tokenizer['kind'] or 'none'}{model}{pre}{merges}")]
    if tokenizer["types"]:
        rows.append(("tokens", ", ".join(f"{n:,} {name}" for name, n in tokenizer["types"].items())))
    flags = [f"{name} {_yes(tokenizer[name])}" for name in ("add_bos", "add_eos", "add_space_prefix")]
    rows.append(("adds", ", ".join(flags)))
    for name, token in tokenizer["special"].items():
        rows.append((name, _token(token)))
    if tokenizer["fill"]:
        rows.append(("fill in middle", ", ".join(_token(token) for token in tokenizer["fill"].values())))
    rows.append(("ends an answer", ", ".join(map(_token, tokenizer["ends"])) or "nothing"))
    rows += [("odd" if i == 0 else "", _under(i, text)) for i, text in enumerate(tokenizer["oddities"])]
    others = f", others for {', '.join(map(escaped, template['others']))}" if template["others"] else ""
    if not template["present"]:
        rows.append(("chat template", "none; chat falls back to plain completion" + others))
    elif template["parses"]:
        rows.append(("chat template", f"yes, {template['length']:,} characters{others}"))
    else:
        rows.append(("chat template", f"broken: {escaped(template['error'])}{others}"))
    for i, finding in enumerate(template["lint"] or []):
        where = f" in line {finding['line']}" if finding["line"] else ""
        rows.append(("lint" if i == 0 else "", _under(i, f"{finding['severity']}{where}: {finding['text']}")))
    return rows


def _under(i: int, text: str) -> str:
    """A line of a list whose label stands before the first one only."""
    return escaped(text) if i == 0 else f"{'':<{LABEL}}{escaped(text)}"


def _memory_rows(memory: dict[str, Any], plans: list[dict[str, Any]]) -> Rows:
    rows = [
        ("context", f"{memory['n_ctx']:,} tokens"),
        ("weights", size(memory["weights"])),
        ("KV cache", f"{size(memory['kv'])} ({memory['kv_per_position']:,} bytes a token, {memory['kv_type']})"),
        ("scratch", f"about {size(memory['scratch'])}"),
        ("runtime", f"about {size(memory['runtime'])}"),
        ("total", f"about {size(memory['total'])}"),
    ]
    kinds = list(dict.fromkeys(plan["kv_type"] for plan in plans))
    rows.append(("in all, at", "".join(f"{kind + ' KV':>14}" for kind in kinds)))
    for n_ctx in dict.fromkeys(plan["n_ctx"] for plan in plans):
        totals = [size(plan["total"]) for plan in plans if plan["n_ctx"] == n_ctx]
        rows.append((f"{n_ctx:,}", "".join(f"{total:>14}" for total in totals)))
    return rows


def _llamacpp_rows(answer: dict[str, Any]) -> Rows:
    if answer["problems"]:
        return [("cannot run", escaped(problem)) for problem in answer["problems"]]
    here = "" if answer["available"] else "; edgeinfer has no llama.cpp backend here"
    return [("knows it", f"its family, tensor types and tokenizer are in the tables of {answer['version']}{here}")]


def _tensor_rows(tensors: list[dict[str, Any]]) -> Rows:
    width = max((len(escaped(t["name"])) for t in tensors), default=0)
    rows = []
    for t in tensors:
        shape = " x ".join(map(str, t["shape"]))
        rows.append(("", f"{escaped(t['name']):<{width}}  {t['type']:<8} {shape:<16} {size(t['bytes']):>9}"))
    return rows


def layers(numbers: list[int]) -> str:
    """Numbers in ascending order as ranges: "0-3, 7"."""
    ranges: list[list[int]] = []
    for n in numbers:
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:12]]
    return ", ".join(shown) + (", ..." if len(ranges) > 12 else "")


def _token(token: dict[str, Any]) -> str:
    return (
        f"{token['id']} {escaped(repr(token['text']))}"
        if token["text"] is not None
        else f"{token['id']} (no such token)"
    )


def _yes(value: object) -> str:
    return "not given" if value is None else "yes" if value is True else "no" if value is False else escaped(value)


def size(n: int) -> str:
    """Bytes in decimal units, as disks and downloads count."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= scale:
            return f"{n / scale:.2f} {unit}" if unit == "GB" else f"{n / scale:.1f} {unit}"
    return f"{n} B"


def count(n: int) -> str:
    """A number of weights in four digits: 134.5M."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= scale:
            return f"{n / scale:.4g}{unit}"
    return str(n)
