"""Render every published template with Transformers; writes tests/data/template_goldens.json.

    python -m venv /somewhere && /somewhere/bin/pip install transformers==5.24.0 jinja2==3.1.6
    /somewhere/bin/python scripts/template_goldens.py FOLDER_OF_TEMPLATES

The folder is what scripts/fetch_llama_cpp.py fetched, `.cache/llama.cpp/templates`. For each template and chat of
tests/template_cases.py the file holds the beginning of the sha256 of the text, or why Transformers refused; and the
whole text of a few. The tests compare with it, so that they need no Transformers.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests" / "data" / "template_goldens.json"
WHOLE = {
    "Qwen-Qwen3-0.6B.jinja": ("thinking off", "thinking before a tool call", "two tool calls"),
    "meta-llama-Llama-3.3-70B-Instruct.jinja": ("system", "tool result"),
    "google-gemma-4-31B-it.jinja": ("thinking off", "two tool calls"),
    "openai-gpt-oss-120b.jinja": ("plain", "thinking before a tool call"),
    "Mistral-Small-3.2-24B-Instruct-2506.jinja": ("plain", "tool result"),
}


def main(folder: Path) -> None:
    """Write the file."""
    sys.path.insert(0, str(ROOT))
    import jinja2
    import transformers
    from transformers.utils import chat_template_utils as theirs

    from tests.template_cases import CASES, NOW, TOKENS

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return NOW

    theirs.datetime = Frozen
    table: dict[str, Any] = {}
    texts: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode()
        row: dict[str, Any] = {}
        for name, case in CASES.items():
            try:
                messages = theirs._normalize_chat_messages(case.messages)
                (text,), _ = theirs.render_jinja_template(
                    [messages],
                    tools=case.tools,
                    chat_template=source,
                    add_generation_prompt=case.add_generation_prompt,
                    **TOKENS,
                    **case.variables,
                )
            except Exception as error:
                row[name] = [type(error).__name__, str(error).splitlines()[0][:200] if str(error) else ""]
                continue
            row[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
            if name in WHOLE.get(path.name, ()):
                texts.setdefault(path.name, {})[name] = text
        table[path.name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "cases": row}
    made_by = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    document = {"made_by": made_by, "templates": table, "texts": texts}
    TARGET.write_text(json.dumps(document, ensure_ascii=False, indent=0) + "\n")
    n_refused = sum(isinstance(found, list) for entry in table.values() for found in entry["cases"].values())
    print(f"{len(table)} templates, {len(CASES)} chats each, {n_refused} refused, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
