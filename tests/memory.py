"""What the kernel knows of this process's memory."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_mb", "reset_peak"]


def memory_mb(name: str) -> float:
    """VmRSS (now) or VmHWM (the most since it was reset) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def reset_peak() -> None:
    """Let VmHWM begin anew. Raises OSError where the kernel does not offer that."""
    Path("/proc/self/clear_refs").write_text("5")
