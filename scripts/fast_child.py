"""The other end of `fast_side.py`: a process that holds one side of a comparison, as the Side, Stepper and limits that
`edgeinfer.evaluate` measures with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgeinfer.evaluate.bandwidth import TokenBytes
from edgeinfer.evaluate.sides import SideRun
from edgeinfer.settings import child_environment

__all__ = ["Child"]

ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A side in its own process; ends with `close` or the `with` block. `environment` changes variables for it."""

    def __init__(
        self, engine: str, model: Path, n_ctx: int, n_threads: int, *, cpus: Sequence[int] = (), tasks: str = "",
        python: str = sys.executable, environment: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = engine
        command = [python, str(ROOT / "scripts" / "fast_side.py"), engine, str(model)]
        command += ["--n-ctx", str(n_ctx), "--threads", str(n_threads)]
        command += ["--cpus", ",".join(map(str, cpus))] if cpus else []
        command += ["--tasks", tasks] if tasks else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**child_environment(first_on_path=ROOT), **(environment or {})},
        )  # fmt: skip
        try:
            self.facts: dict[str, Any] = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"the {self.name} side ended with exit code {self._process.wait()}; the lines above say why"
            )
        return json.loads(line)

    def _ask(self, do: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self, prefix: Sequence[int], prompt: Sequence[int], n_out: int) -> SideRun:
        """A run, as `Side` says."""
        return SideRun(**self._ask("run", prefix=list(prefix), prompt=list(prompt), n_out=n_out))

    def context(self, context: Sequence[int], more: Sequence[int]) -> None:
        """What `step` goes on from."""
        self._ask("context", context=list(context), more=list(more))

    def step(self, n: int) -> float:
        """A step, as `Stepper` says."""
        return float(self._ask("step", n=n))

    def bandwidth(self) -> float:
        """Bytes per second of the read loop in that process."""
        return float(self._ask("bandwidth"))

    def peak(self) -> float:
        """int8 operations per second of the register-only loop."""
        return float(self._ask("peak"))

    def mbu(self, tok_s: float, n_past: float, bandwidth: float) -> float:
        """As Limits says."""
        kv = tuple((int(a), int(b)) for a, b in self.facts["kv"])
        return TokenBytes(int(self.facts["weights"]), kv).at(n_past) * tok_s / bandwidth

    def of_peak(self, tok_s: float, peak: float) -> float:
        """As Limits says."""
        return 2 * float(self.facts["macs"]) * tok_s / peak

    def close(self) -> None:
        """End the process, which ends by itself when its stdin does."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
