"""Settings read from the environment, once, into a frozen record: the only reader of the environment in the package.

A test or a program may also build a `Settings` by hand. Nothing here imports anything else of edgeinfer but `errors`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import SettingError

__all__ = ["Settings", "child_environment", "settings"]


@dataclass(frozen=True)
class Settings:
    """What the environment says. Fields are never None where a default exists."""

    home: Path  # EDGEINFER_HOME: downloaded models, tokenizer and kernel caches, chat history
    cache: Path  # EDGEINFER_CACHE: what may be deleted at any time (kernels, tokenizer tables); default home/cache
    isa: str  # EDGEINFER_ISA: "" lets the CPU decide
    threads: int  # EDGEINFER_THREADS: 0 lets the profile decide
    offline: bool  # EDGEINFER_OFFLINE or HF_HUB_OFFLINE
    hf_token: str  # HF_TOKEN
    hf_endpoint: str  # HF_ENDPOINT
    hf_home: Path  # HF_HOME
    ollama_models: Path  # OLLAMA_MODELS
    xdg_config_home: Path
    no_color: bool  # NO_COLOR
    debug: bool  # EDGEINFER_DEBUG: show tracebacks of unexpected errors
    hf_hub_cache: Path = Path()  # HF_HUB_CACHE: where the Hugging Face library keeps repositories; default hf_home/hub
    user_home: Path = Path()  # HOME: where other programs keep their models
    prefix_cache: bool = True  # EDGEINFER_PREFIX_CACHE: keep often used beginnings of prompts in cache/prefix


def _flag(env: dict[str, str], name: str, default: bool = False) -> bool:
    value = env.get(name, "").strip().lower()
    if not value:
        return default
    if value in ("0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise SettingError(f"environment variable {name} is {env[name]!r}; wanted 1 or 0")


def _count(env: dict[str, str], name: str) -> int:
    value = env.get(name, "").strip()
    if not value:
        return 0
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise SettingError(f"environment variable {name} is {value!r}; wanted a whole number, 0 for automatic")
    return number


def settings(env: dict[str, str] | None = None) -> Settings:
    """Read the environment (or `env`, for tests) into a Settings record.

    Raises SettingError naming the variable when a value cannot be used.
    """
    env = dict(os.environ) if env is None else env
    user = Path(env.get("HOME") or os.path.expanduser("~"))
    if not user.is_absolute():
        user = Path("/tmp") / f"edgeinfer-{os.getuid()}"
    home = Path(env.get("EDGEINFER_HOME") or Path(env.get("XDG_DATA_HOME") or user / ".local" / "share") / "edgeinfer")
    hf_home = Path(env.get("HF_HOME") or user / ".cache" / "huggingface")
    return Settings(
        home=home,
        cache=Path(env.get("EDGEINFER_CACHE") or home / "cache"),
        isa=env.get("EDGEINFER_ISA", "").strip().lower(),
        threads=_count(env, "EDGEINFER_THREADS"),
        offline=_flag(env, "EDGEINFER_OFFLINE") or _flag(env, "HF_HUB_OFFLINE"),
        hf_token=env.get("HF_TOKEN", ""),
        hf_endpoint=env.get("HF_ENDPOINT", "").rstrip("/"),
        hf_home=hf_home,
        ollama_models=Path(env.get("OLLAMA_MODELS") or user / ".ollama" / "models"),
        xdg_config_home=Path(env.get("XDG_CONFIG_HOME") or user / ".config"),
        no_color=bool(env.get("NO_COLOR")),
        debug=_flag(env, "EDGEINFER_DEBUG"),
        hf_hub_cache=Path(env.get("HF_HUB_CACHE") or hf_home / "hub"),
        user_home=user,
        prefix_cache=_flag(env, "EDGEINFER_PREFIX_CACHE", True),
    )


def child_environment(drop: str = "", first_on_path: Path | None = None, **changes: str | None) -> dict[str, str]:
    """A copy of the environment for a child process: variables starting with `drop` removed, a folder put first on
    PYTHONPATH, and `changes` applied (None removes a variable)."""
    env = {name: value for name, value in os.environ.items() if not (drop and name.startswith(drop))}
    if first_on_path is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(first_on_path), env.get("PYTHONPATH")]))
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env
