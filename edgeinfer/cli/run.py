"""`edgeinfer run`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from .answer import (
    end_line,
    figures,
    given,
    kv_option,
    open_model,
    overflow_option,
    pre_option,
    recommended,
    say_cut,
    say_no_template,
    stream,
)
from .completion import complete_model
from .options import GroupedCommand, sampling_given, sampling_options
from .terminal import check_text, read_input, say
from .thinking import ThinkingView, check_thinking, thinking_options

__all__ = ["run"]


@click.command(cls=GroupedCommand)
@click.argument("model", shell_complete=complete_model)
@click.option("-p", "--prompt", help="The text to continue or answer; without it, all of standard input.")
@click.option("--chat", "as_chat", is_flag=True, help="Answer it as a message, with the model's chat template.")
@click.option("--system", help="With --chat: the system message.")
@click.option("-n", "--max-tokens", type=int, help="Most tokens of the answer.  [default: until it ends]")
@click.option("--n-ctx", type=int, help="Context in tokens.  [default: what it was trained for, at most 4096]")
@click.option("-t", "--threads", type=int, help="Threads to compute with.")
@click.option("--seed", type=int, help="Makes the answer repeatable.")
@overflow_option
@pre_option
@kv_option
@thinking_options
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's end token, up to the limit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document: text, tokens, timings, finish_reason.")
@click.option("--stats", is_flag=True, help="Print TTFT and tok/s on stderr.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@sampling_options
def run(
    model: str,
    prompt: str | None,
    as_chat: bool,
    system: str | None,
    ignore_eos: bool,
    as_json: bool,
    stats: bool,
    offline: bool,
    quiet: bool,
    n_ctx: int | None,
    threads: int | None,
    seed: int | None,
    overflow: str | None,
    pre: str | None,
    kv_type: str | None,
    thinking: bool | None,
    think_budget: int | None,
    hide_thinking: bool,
    max_tokens: int | None,
    **numbers: Any,
) -> int:
    """Answer one prompt with MODEL and exit.

    Without --chat the model continues the prompt as it is. The answer goes to standard output, all else to standard
    error.

    \b
    edgeinfer run smollm2-135m -p "The capital of France is" -n 16 --temp 0
    git diff | edgeinfer run smollm2-135m --chat --system "Summarise the change in one line."
    edgeinfer run smollm2-135m --chat -p "Invent a person." --json-schema person.json
    """
    if system is not None and not as_chat:
        raise click.UsageError("--system goes with --chat")
    about_thinking = given(thinking=thinking, think_budget=think_budget)
    if about_thinking and not as_chat:
        raise click.UsageError(
            "--think, --no-think and --think-budget go with --chat: only a chat has thinking told apart"
        )
    text = _prompt(prompt)
    taken = "the prompt comes from it; give the prompt with -p" if prompt is None else ""
    given_numbers = {"seed": seed, "max_tokens": max_tokens, **numbers}
    chosen = {**recommended(model), **sampling_given(given_numbers, taken)}
    if ignore_eos:
        chosen["ignore_eos"] = True
    chosen_load = given(overflow=overflow, pre=pre, kv_type=kv_type)
    if overflow not in (None, "error", "shift") and not as_chat:
        raise click.UsageError(f"--overflow {overflow} goes with --chat: a plain prompt has no turns")
    with open_model(model, n_ctx=n_ctx, threads=threads, seed=seed, offline=offline, quiet=quiet, **chosen_load) as llm:
        if as_chat:
            check_thinking(llm, thinking, think_budget)
        if as_chat and llm.template is None:
            if not quiet:
                say_no_template(llm)
            as_chat = False
        if as_chat:
            messages = [{"role": "system", "content": check_text(system, "--system")}] if system else []
            answer = llm.chat([*messages, {"role": "user", "content": text}], **about_thinking, **chosen)
        else:
            answer = llm.generate(text, **chosen)
        n_ctx_used = llm.n_ctx
        view = ThinkingView(hide_thinking or as_json, quiet)
        try:
            outcome = stream(answer, _nothing if as_json else view.write, view.think)
        finally:
            view.close()
    if as_json:
        timings = outcome.timings.as_dict() if outcome.timings else {}
        document = {
            "model": model,
            "mode": "chat" if as_chat else "completion",
            "prompt": text,
            "text": outcome.text,
            "thinking": outcome.thinking,
            "tokens": outcome.tokens,
            "finish_reason": outcome.finish_reason,
            "limited_by": outcome.limited_by,
            "dropped": outcome.dropped,
            "seed": answer.seed,
            "timings": timings,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        end_line(outcome.text)
    view.note(outcome)
    if not quiet:
        say_cut(outcome, n_ctx_used, chosen)
    if outcome.dropped and not quiet:
        say(f"[{outcome.dropped}]")
    if stats:
        say(figures(outcome.timings, outcome.finish_reason))
    return 130 if outcome.finish_reason == "cancelled" else 0


def _nothing(text: str) -> None:
    """Print nothing: the text comes in the JSON document."""


def _prompt(prompt: str | None) -> str:
    if prompt is not None:
        text = check_text(prompt, "the prompt")
    elif sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError('no prompt: give one with -p "TEXT" or pipe it in')
    else:
        text = read_input()
    if not text:
        raise click.UsageError("the prompt is empty")
    return text
