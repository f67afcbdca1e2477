"""Two files beside each other, and a tensor's bytes, as lines to read. Printing only: what comes from a file is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .inspect_view import LABEL, Rows, Section, count, size
from .terminal import escaped

__all__ = ["diff_sections", "draft_sections", "hex_sections"]

_MOST = 40  # lines of one kind; --json has all
_WIDE = 60  # characters of a value


def diff_sections(d: dict[str, Any]) -> Iterator[Section]:
    """The report on what differs between two files."""
    metadata, tensors = d["metadata"], d["tensors"]
    heading: Rows = [(name, f"{escaped(d[name]['path'])} ({size(d[name]['size'])})") for name in ("a", "b")]
    if d["same"]:
        heading.append(("same", f"yes: every metadata key and all {tensors['n_same']} tensors"))
    yield "Two files", heading
    rows = [
        (only[-1] + " only", f"{escaped(k)}: {_value(v)}")
        for only in ("only_a", "only_b")
        for k, v in metadata[only].items()
    ]
    for change in metadata["changed"]:
        text = f"{escaped(change['key'])}: {_value(change['a'])} -> {_value(change['b'])}"
        if "first" in change:
            text += f"; {change['n_differing']:,} differ, first [{change['first']}]: "
            text += f"{_value(change['first_a'])} -> {_value(change['first_b'])}"
        rows.append(("changed", text))
    if rows:
        yield "Metadata", _some(rows)
    rows = [(only[-1] + " only", escaped(name)) for only in ("only_a", "only_b") for name in tensors[only]]
    for kind in ("shape", "type"):
        for t in tensors[kind]:
            rows.append((kind, f"{escaped(t['name'])}: {_shape(t['a'])} -> {_shape(t['b'])}{_distance(t)}"))
    for t in tensors["content"]:
        hashes = f"sha256 {t['a_sha256'][:12]} -> {t['b_sha256'][:12]}"
        rows.append(("content", f"{escaped(t['name'])}: {t['type']}, {hashes}{_distance(t)}"))
    if rows:
        yield "Tensors", [*_some(rows), ("same", f"{tensors['n_same']} tensors")]
    elif not d["same"]:
        yield "Tensors", [("same", f"all {tensors['n_same']}")]


def draft_sections(d: dict[str, Any]) -> Iterator[Section]:
    """The report on a target and a draft."""
    rows: Rows = []
    for name in ("target", "draft"):
        m = d[name]
        trained = f", trained for {m['n_ctx_train']:,} tokens" if isinstance(m["n_ctx_train"], int) else ""
        rows.append((name, escaped(m["path"])))
        family = escaped(m["architecture"] or "family not given")
        what = f"{family}, {count(m['parameters'])} parameters, {size(m['bytes'])} of weights{trained}"
        rows.append(("", f"{'':<{LABEL}}{what}"))
    if all(d[name][key] for name in ("target", "draft") for key in ("parameters", "bytes")):
        by = {key: _beside(d["draft"][key], d["target"][key]) for key in ("parameters", "bytes")}
        rows.append(("ratio", f"the draft is {by['parameters']} ({by['bytes']} by bytes)"))
    yield "Draft pair", rows
    v = d["vocabulary"]
    rows = [("tokens", f"{v['n_target']:,} and {v['n_draft']:,}, {v['n_differing']:,} of them differ")]
    for t in v["differing"]:
        rows.append(("", f"{'':<{LABEL}}{t['id']}: {escaped(repr(t['target']))} and {escaped(repr(t['draft']))}"))
    rows += [("problem", escaped(text)) for text in d["problems"]]
    rows += [("note", escaped(text)) for text in d["notes"]]
    fits = "yes: every id means the same text in both" if d["compatible"] else "no: the draft would propose other text"
    yield "Vocabulary", [*rows, ("can draft", fits)]


def _beside(draft: int, target: int) -> str:
    """How large the draft is beside its target, in words: "1.99 times larger"."""
    times = f"{max(draft, target) / min(draft, target):.3g}"
    if times == "1":
        return "as large"
    return f"{float(times):g} times {'larger' if draft > target else 'smaller'}"


def hex_sections(h: dict[str, Any]) -> Iterator[Section]:
    """The report on the first blocks of a tensor."""
    shape = " x ".join(map(str, h["shape"]))
    blocks = f", blocks of {h['block_size']} weights in {h['block_bytes']} bytes" if h["block_size"] > 1 else ""
    yield escaped(h["name"]), [("type", f"{h['type']}{blocks}"), ("shape", shape), ("size", f"{h['n_bytes']:,} bytes")]
    for i, block in enumerate(h["blocks"]):
        raw = bytes.fromhex(block["bytes"])
        rows: Rows = [("", f"{at:04x}  {raw[at : at + 16].hex(' ')}") for at in range(0, len(raw), 16)]
        weights = block["weights"]
        if weights is None:
            rows.append(("", "the weights of this type cannot be shown here"))
        else:
            shown = [w if isinstance(w, str) else f"{w:.6g}" for w in weights]
            rows += [
                ("", f"{at:>4}  " + " ".join(f"{w:>12}" for w in shown[at : at + 8])) for at in range(0, len(shown), 8)
            ]
        yield f"block {i}, at byte {block['offset']:,} of the file", rows


def _some(rows: Rows) -> Rows:
    """At most so many lines of each label, then how many there are more."""
    kept: Rows = []
    seen: dict[str, int] = {}
    for label, text in rows:
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= _MOST:
            kept.append((label, text))
    return kept + [(label, f"{n - _MOST} more; --json lists all") for label, n in seen.items() if n > _MOST]


def _value(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"kind", "length"}:
        return f"{value['length']:,} of {value['kind']}"
    text = escaped(repr(value))
    return text if len(text) <= _WIDE else text[: _WIDE - 3] + "..."


def _shape(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, list) else str(value)


def _distance(t: dict[str, Any]) -> str:
    distance = t.get("distance")
    return "" if distance is None else f", {100 * distance:.3g} % apart in its first weights"
