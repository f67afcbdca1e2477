"""A file server on loopback that can misbehave: cut connections, forget ranges, redirect, refuse, stall."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["FileServer", "Reply", "Request", "serving"]


@dataclass
class Request:
    """What the server was asked."""

    path: str
    headers: dict[str, str]  # lower-case names

    @property
    def start(self) -> int:
        """Where the asked range begins; 0 without one."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(match[1]) if match else 0


@dataclass
class Reply:
    """What it answers."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # what Content-Length claims; None tells the truth, -1 leaves it out
    stall_s: float = 0.0  # silence before the last half of the body


class FileServer:
    """Routes: path -> function of the request. Every request is noted."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[Request], Reply]] = {}
        self.requests: list[Request] = []
        self.url = ""

    def file(self, path: str, data: bytes, etag: str = '"v1"', ranges: bool = True) -> None:
        """Serve a file as a good server does, or as one that knows no ranges."""

        def reply(request: Request) -> Reply:
            headers = {"ETag": etag} if etag else {}
            fresh = request.headers.get("if-range", etag) == etag
            start = request.start
            if not ranges or not start or not fresh:
                return Reply(body=data, headers=headers)
            if start >= len(data):
                return Reply(416, headers={"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return Reply(206, data[start:], headers)

        self.routes[path] = reply

    def cut(self, path: str, at: int, times: int = 1) -> None:
        """Let the next `times` answers of a route break off after `at` bytes of their body."""
        whole, left = self.routes[path], times

        def reply(request: Request) -> Reply:
            nonlocal left
            answer = whole(request)
            if left and answer.status in (200, 206):
                left -= 1
                answer.length, answer.body = len(answer.body), answer.body[:at]
            return answer

        self.routes[path] = reply

    def asked(self, path: str) -> list[Request]:
        """The requests for a path."""
        return [request for request in self.requests if request.path == path]


@contextmanager
def serving() -> Iterator[FileServer]:
    """Run a server on a free port of 127.0.0.1."""
    server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Request(self.path, {name.lower(): value for name, value in self.headers.items()})
            server.requests.append(request)
            route = server.routes.get(self.path.partition("?")[0])
            reply = route(request) if route else Reply(404, b"not here")
            length = len(reply.body) if reply.length is None else reply.length
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if length >= 0:
                self.send_header("Content-Length", str(length))
            if length != len(reply.body):
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            half = len(reply.body) // 2 if reply.stall_s else len(reply.body)
            try:
                self.wfile.write(reply.body[:half])
                if reply.stall_s:
                    self.wfile.flush()
                    time.sleep(reply.stall_s)
                    self.wfile.write(reply.body[half:])
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is part of the tests."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
