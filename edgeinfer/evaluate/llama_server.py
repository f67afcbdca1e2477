"""llama.cpp's own server, from the `xllamacpp` package, in a process of its own on the loopback interface.

    python -m edgeinfer.evaluate.llama_server '{"path": "model.gguf", ...}'

prints one line of JSON (address, settings, build) once it listens, and ends when its standard input does, so that it
cannot outlive the process that started it. Needed for comparisons only; edgeinfer itself never starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import EngineError, MissingExtraError

__all__ = ["LlamaServer", "ServerSettings"]

_NO_PACKAGE = 12  # MissingExtraError's exit code


@dataclass(frozen=True)
class ServerSettings:
    """How the server runs, under the names of its command line where it has one; n_ctx is what each slot gets."""

    path: str
    n_ctx: int  # -c is this times n_parallel
    n_parallel: int = 16  # -np
    n_batch: int = 2048  # -b, llama.cpp's default
    n_ubatch: int = 512  # -ub, llama.cpp's default
    n_threads: int = 2  # -t and -tb

    def __str__(self) -> str:
        return (
            f"-np {self.n_parallel} -c {self.n_parallel * self.n_ctx} -b {self.n_batch} -ub {self.n_ubatch} "
            f"-t {self.n_threads} -tb {self.n_threads}, continuous batching, f16 KV cache, no prompt cache"
        )


class LlamaServer:
    """Starts the server and stops it again: `with LlamaServer(settings) as server: server.address`.

    Raises MissingExtraError without the package, EngineError when the server does not come up.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        # A file for what it says: a pipe that nobody reads would stop it when it is full.
        self._errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115 (closed in close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps({**asdict(settings), "path": os.path.abspath(settings.path)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=Path(__file__).resolve().parents[2],
            start_new_session=True,  # Ctrl-C is for the load; the server ends when its input does
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            facts: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._failure() from None
        self.address: str = facts["address"]
        self.build: str = facts["build"]
        self.pid = self._process.pid

    def _failure(self) -> Exception:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self.close()
        if code == _NO_PACKAGE:
            return MissingExtraError("the comparison needs llama.cpp's server: pip install xllamacpp")
        return EngineError(f"llama.cpp's server did not start (exit code {code}): {said[-1] if said else 'no reason'}")

    def close(self) -> None:
        """Stop the server; closing twice is fine."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(settings: ServerSettings) -> int:
    """Run the server in this process until standard input ends; return the exit code."""
    try:
        import xllamacpp
    except ImportError as error:
        print(error, file=sys.stderr)
        return _NO_PACKAGE
    params = xllamacpp.CommonParams()
    params.model.path = settings.path
    params.n_ctx = settings.n_ctx * settings.n_parallel
    params.n_parallel = settings.n_parallel
    params.n_batch, params.n_ubatch = settings.n_batch, settings.n_ubatch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.n_threads
    params.cont_batching, params.kv_unified = True, False
    params.cache_ram_mib = 0  # no copies of old prompts: none could be used again, and making them takes time
    params.fit_params = False  # use the settings as they are
    params.n_threads_http = settings.n_parallel + 4  # a connection holds one while its answer is streamed
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.ui, params.verbosity = False, 0
    server = xllamacpp.Server(params)
    build = f"xllamacpp {xllamacpp.__version__} ({xllamacpp.get_system_info().strip(' |')})"
    print(json.dumps({"address": server.listening_address, "build": build}), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    raise SystemExit(serve(ServerSettings(**json.loads(sys.argv[1]))))
