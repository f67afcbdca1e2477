"""The targets of the load generator: a model's `generate`, and a server that speaks as llama.cpp's does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from edgeinfer.errors import BusyError, EngineError, MissingExtraError, SettingError
from edgeinfer.evaluate import llama_server
from edgeinfer.evaluate.llama_server import LlamaServer, ServerSettings
from edgeinfer.evaluate.load_generator import run_load
from edgeinfer.evaluate.targets import HttpTarget, LLMTarget, word_ids
from edgeinfer.evaluate.workload import Request
from edgeinfer.generate.chunk import Chunk
from edgeinfer.metrics import Timings

REQUEST = Request(0, (5, 6, 7), 3)
TIMINGS = {"prompt_ms": 20.0, "predicted_ms": 30.0, "cache_n": 0}


class Server(ThreadingHTTPServer):
    """Answers every request with the lines it was given, and keeps what was asked."""

    daemon_threads = True

    def __init__(self, lines: list[Any], status: int = 200, pause_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lines, self.status, self.pause_s = lines, status, pause_s
        self.asked: list[dict[str, Any]] = []
        self.broke = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.broke.set()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append({"path": self.path, **json.loads(body)})
        self.send_response(self.server.status)
        self.end_headers()
        for line in self.server.lines:
            time.sleep(self.server.pause_s)
            self.wfile.write(line if isinstance(line, bytes) else b"data: " + json.dumps(line).encode() + b"\n\n")
            self.wfile.flush()

    def log_message(self, *args: Any) -> None: ...


def token(*ids: int, text: str = "x") -> dict[str, Any]:
    return {"content": text, "tokens": list(ids), "stop": False}


def end(n: int) -> dict[str, Any]:
    return {"content": "", "tokens": [], "stop": True, "tokens_predicted": n, "timings": TIMINGS}


@pytest.fixture
def serve() -> Iterator[Any]:
    servers = []

    def start(lines: list[Any], **options: Any) -> tuple[Server, HttpTarget]:
        server = Server(lines, **options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server, HttpTarget(f"http://127.0.0.1:{server.server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_tokens_are_streamed_and_the_request_is_greedy_and_uncached(serve: Any) -> None:
    server, target = serve([token(11), token(12), token(13), end(3)])
    stream = target.start(REQUEST)
    assert list(stream) == [11, 12, 13]
    assert stream.figures() == {"prefill_s": 0.02, "decode_s": 0.03, "n_reused": 0}
    (asked,) = server.asked
    assert asked["path"] == "/completion"
    assert (asked["prompt"], asked["n_predict"]) == ([5, 6, 7], 3)
    assert asked["temperature"] == 0
    assert asked["ignore_eos"] is asked["stream"] is True
    assert asked["cache_prompt"] is False


def test_half_characters_that_were_held_back_are_counted(serve: Any) -> None:
    _, target = serve([token(11), token(13), end(3)])
    assert list(target.start(REQUEST)) == [11, 13, -1]


def test_a_full_server_is_a_refusal(serve: Any) -> None:
    _, target = serve([b'{"error": "no slot"}'], status=503)
    with pytest.raises(BusyError, match="no slot"):
        target.start(REQUEST)


@pytest.mark.parametrize(
    ("lines", "options", "sentence"),
    [
        ([b"bad prompt"], {"status": 400}, "status 400: bad prompt"),
        ([token(11)], {}, "before the answer was complete"),
        ([token(11), b'error: {"message": "out of memory"}\n\n'], {}, "out of memory"),
        ([b"data: {broken\n\n"], {}, "the connection to the server broke"),
    ],
)
def test_a_request_that_fails_says_why(serve: Any, lines: Any, options: Any, sentence: str) -> None:
    _, target = serve(lines, **options)
    run = run_load(target, [REQUEST], 1)
    assert run.records[0].outcome == "failed"
    assert sentence in run.records[0].error


def test_a_server_that_is_not_there(serve: Any) -> None:
    server, target = serve([])
    server.shutdown()
    server.server_close()
    with pytest.raises(EngineError, match="does not answer"):
        target.start(REQUEST)


def test_a_cancel_closes_the_connection(serve: Any) -> None:
    server, target = serve([token(i) for i in range(2000)], pause_s=0.005)
    stream = target.start(REQUEST)
    tokens = iter(stream)
    assert next(tokens) == 0
    stream.cancel()
    assert len(list(tokens)) < 100
    assert server.broke.wait(10.0)


@pytest.mark.parametrize("address", ["https://x", "127.0.0.1:8080", "http://"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(SettingError, match="is not the address of a server"):
        HttpTarget(address)


class FakeAnswer:
    timings = Timings(n_prompt=3, n_reused=1, n_prefill=2, n_out=2, queue_s=0.5, prefill_s=0.2, decode_s=0.1)

    def __init__(self) -> None:
        self.cancelled = False

    def __iter__(self) -> Iterator[Chunk]:
        yield Chunk("", 9)
        yield Chunk("x", 8)
        yield Chunk("", None, "length")

    def cancel(self) -> None:
        self.cancelled = True


def test_a_loaded_model_is_asked_for_the_same() -> None:
    asked: dict[str, Any] = {}
    answer = FakeAnswer()

    def generate(prompt: list[int], **sampling: Any) -> FakeAnswer:
        asked.update(prompt=prompt, **sampling)
        return answer

    stream = LLMTarget(generate).start(REQUEST)
    assert list(stream) == [9, 8]
    assert asked == {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0.0, "ignore_eos": True}
    assert stream.figures() == {"wait_s": 0.5, "prefill_s": 0.2, "decode_s": 0.1, "n_reused": 1}
    stream.cancel()
    assert answer.cancelled


class Words:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.n_vocab = len(pieces)

    def piece(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def test_prompts_are_made_of_words() -> None:
    words = [b" w" + bytes([97 + i]) for i in range(20)]
    ids = word_ids(Words(b"", b"<s>", b" 12", b" caf\xc3\xa9", b"no", b" ", *words))
    assert ids == list(range(6, 26))
    with pytest.raises(SettingError, match="has 3 words"):
        word_ids(Words(*words[:3]))


def test_without_the_package_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 12\n")
    fake.chmod(0o755)
    monkeypatch.setattr(llama_server.sys, "executable", str(fake))
    with pytest.raises(MissingExtraError, match="pip install xllamacpp"):
        LlamaServer(ServerSettings("model.gguf", 512))


def test_a_server_that_does_not_start_says_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho first >&2; echo 'bad magic' >&2; exit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(llama_server.sys, "executable", str(fake))
    with pytest.raises(EngineError, match=r"exit code 3\): bad magic"):
        LlamaServer(ServerSettings("model.gguf", 512))


def test_its_settings_can_be_stated() -> None:
    stated = str(ServerSettings("m", 2176, n_parallel=16, n_threads=2))
    assert stated.startswith("-np 16 -c 34816 -b 2048 -ub 512 -t 2 -tb 2")


@pytest.mark.llama_cpp
def test_the_server_of_llama_cpp_answers(smollm2_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.chdir(smollm2_path.parent)
    with LlamaServer(ServerSettings(smollm2_path.name, 256, n_parallel=2, n_threads=1)) as server:
        target = HttpTarget(server.address)
        run = run_load(target, [Request(i, (504, 3575, 282), 4) for i in range(3)], 2)
    assert {record.tokens for record in run.records} == {(260, 1797, 1918, 314)}  # " the United States is"
    assert [record.outcome for record in run.records] == ["done"] * 3
    assert server._process.returncode == 0
