"""What `/cache` shows: the prefix cache in a few lines, and what the cache doctor found last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .inspect_view import size as size_of

if TYPE_CHECKING:
    from ..load import LLM

__all__ = ["cache_report"]


def cache_report(llm: LLM) -> list[str]:
    """Lines about a model's prefix cache."""
    from ..schedule.doctor import diagnose  # with numpy, which `chat --help` does without

    cache = getattr(llm, "prefix_cache", None)
    if cache is None:
        return ["this engine has no prefix cache"]
    facts = cache.stats()
    share = f" ({100 * facts['tokens_reused'] / facts['tokens']:.0f} %)" if facts["tokens"] else ""
    lines = [
        f"prefix cache: {facts['pages']} of {facts['max_pages']} pages; {facts['tokens_reused']} of {facts['tokens']} "
        f"prompt tokens{share} were not evaluated again, in {facts['prompts_reused']} of {facts['prompts']} prompts",
        _disk(facts["disk"], facts["pages_restored"]),
    ]
    found = cache.last_divergence
    if found is None:
        return [*lines, "cache doctor: no prompt was made expensive by a small difference"]
    report = diagnose(found, lambda ids: llm.tokenizer.decode(ids, special=True))
    times = "" if facts["avoidable_misses"] == 1 else f" (the last of {facts['avoidable_misses']})"
    return [*lines, f"cache doctor{times}: {report.paragraph()}"]


def _disk(facts: dict[str, Any] | None, n_restored: int) -> str:
    if facts is None:
        return "on disk: off"
    size = f"{size_of(facts['n_bytes'])} in {facts['files']} file{'' if facts['files'] == 1 else 's'}"
    text = f"on disk: {size} of at most {size_of(facts['max_bytes'])}; {n_restored} pages read, "
    text += f"{facts['pages_written']} written"
    return f"{text}; not written any more: {facts['off']}" if facts["off"] else text
