from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.errors import DownloadError
from edgeinfer.store.download import Patience, RemoteFile, fetch

from .made import Told, gguf_bytes, sha256
from .server import FileServer, Reply, Request, serving

QUICK = Patience(connect_s=2.0, read_s=0.4, tries=3, pause_s=0.01)
DATA = gguf_bytes(700_000)
SUM = sha256(DATA)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


@pytest.fixture
def told() -> Told:
    return Told()


def get(server: FileServer, target: Path, told: Told, path: str = "/m.gguf", **known: object) -> tuple[int, str]:
    return fetch(RemoteFile(server.url + path, **known), target, "m", told, QUICK)  # type: ignore[arg-type]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_whole_file(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    assert get(server, tmp_path / "m", told, sha256=SUM, size=len(DATA)) == (len(DATA), SUM)
    assert (tmp_path / "m").read_bytes() == DATA
    assert leftovers(tmp_path) == ["m"]
    assert told.done == sorted(told.done)
    assert told.done[-1] == len(DATA)
    assert told.finished == 1


def test_a_cut_connection_is_resumed_with_if_range(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    server.cut("/m.gguf", 300_000)
    assert get(server, tmp_path / "m", told) == (len(DATA), SUM)
    assert (tmp_path / "m").read_bytes() == DATA
    first, second = server.requests
    assert "range" not in first.headers
    assert second.headers["range"] == "bytes=300000-"
    assert second.headers["if-range"] == '"v1"'


def test_a_later_call_resumes_what_an_earlier_one_left(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    server.cut("/m.gguf", 0, times=99)
    whole = server.routes["/m.gguf"]
    server.file("/m.gguf", DATA)
    server.cut("/m.gguf", 250_000)
    good_then_nothing = server.routes["/m.gguf"]
    server.routes["/m.gguf"] = lambda r: (whole if r.start else good_then_nothing)(r)
    with pytest.raises(DownloadError, match=r"gave up after 3 tries, 0 MB are kept: run the same command to resume"):
        get(server, tmp_path / "m", told, sha256=SUM)
    assert leftovers(tmp_path) == ["m.part", "m.part.json"]
    server.file("/m.gguf", DATA)
    server.requests.clear()
    again = Told()
    assert get(server, tmp_path / "m", again, sha256=SUM) == (len(DATA), SUM)
    assert [request.start for request in server.requests] == [250_000]
    assert again.starts[0] == ("m", None, 250_000)
    assert "resuming m" in again.lines[0]
    assert (tmp_path / "m").read_bytes() == DATA


def test_a_changed_file_is_not_glued_to_the_old_part(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    server.cut("/m.gguf", 300_000)
    first = server.routes["/m.gguf"]
    new = gguf_bytes(650_000, seed=9)
    server.file("/m.gguf", new, etag='"v2"')
    second = server.routes["/m.gguf"]
    server.routes["/m.gguf"] = lambda r: (second if server.requests[1:] else first)(r)
    assert get(server, tmp_path / "m", told) == (len(new), sha256(new))
    assert (tmp_path / "m").read_bytes() == new
    assert any("from the beginning again" in line for line in told.lines)


def test_a_server_without_ranges_starts_over(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA, etag="", ranges=False)
    server.cut("/m.gguf", 100_000, times=2)
    assert get(server, tmp_path / "m", told, sha256=SUM) == (len(DATA), SUM)
    assert (tmp_path / "m").read_bytes() == DATA


def test_a_part_that_nobody_vouches_for_is_dropped(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA, etag="")
    (tmp_path / "m.part").write_bytes(b"old" * 1000)
    get(server, tmp_path / "m", told)
    assert (tmp_path / "m").read_bytes() == DATA
    assert server.requests[0].start == 0


def test_a_resumed_part_that_does_not_fit_is_fetched_anew(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA, etag="")
    server.cut("/m.gguf", 200_000, times=1)
    server.routes["/m.gguf"], good = _once_then_fail(server.routes["/m.gguf"]), server.routes["/m.gguf"]
    with pytest.raises(DownloadError):
        get(server, tmp_path / "m", told, sha256=SUM)
    part = tmp_path / "m.part"
    part.write_bytes(b"X" * part.stat().st_size)
    server.routes["/m.gguf"] = good
    assert get(server, tmp_path / "m", told, sha256=SUM) == (len(DATA), SUM)
    assert any("does not fit; starting over" in line for line in told.lines)
    assert (tmp_path / "m").read_bytes() == DATA


def _once_then_fail(route: object) -> object:
    seen: list[Request] = []

    def reply(request: Request) -> Reply:
        seen.append(request)
        return route(request) if len(seen) == 1 else Reply(503)  # type: ignore[operator]

    return reply


def test_a_whole_part_needs_no_bytes(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    (tmp_path / "m.part").write_bytes(DATA)
    note = f'{{"url": "{server.url}/m.gguf", "sha256": "{SUM}", "validator": ""}}'
    (tmp_path / "m.part.json").write_text(note)
    assert get(server, tmp_path / "m", told, sha256=SUM) == (len(DATA), SUM)  # 416 tells that nothing is missing
    assert len(server.requests) == 1
    assert leftovers(tmp_path) == ["m"]


@pytest.mark.parametrize("note", ["", "{", "[]", '{"url": 3}', '{"url": "http://other/m.gguf", "validator": "x"}'])
def test_a_damaged_or_foreign_note_starts_over(server: FileServer, tmp_path: Path, told: Told, note: str) -> None:
    server.file("/m.gguf", DATA)
    (tmp_path / "m.part").write_bytes(b"junk" * 100)
    (tmp_path / "m.part.json").write_text(note)
    get(server, tmp_path / "m", told)
    assert (tmp_path / "m").read_bytes() == DATA


def test_wrong_checksum_is_deleted(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    with pytest.raises(DownloadError, match=f"wrong checksum: wanted SHA-256 {'0' * 64}, got {SUM}"):
        get(server, tmp_path / "m", told, sha256="0" * 64)
    assert leftovers(tmp_path) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "token", "says"),
    [
        (401, "", r"wants a login \(401\); set HF_TOKEN"),
        (401, "t", r"the token in HF_TOKEN was not accepted"),
        (403, "", r"is forbidden \(403\); set HF_TOKEN if the model is gated"),
        (403, "t", r"accepted the model's licence"),
        (404, "", r"does not exist \(404\)"),
        (410, "", r"does not exist \(410\)"),
        (418, "", r"unexpected status 418"),
    ],
)
def test_refusals_are_final(server: FileServer, tmp_path: Path, told: Told, status: int, token: str, says: str) -> None:
    server.routes["/m.gguf"] = lambda request: Reply(status, b"no")
    with pytest.raises(DownloadError, match=says):
        get(server, tmp_path / "m", told, token=token)
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    good = server.routes["/m.gguf"]
    busy = Reply(429, headers={"Retry-After": "0"})
    server.routes["/m.gguf"] = lambda r: good(r) if len(server.requests) > 2 else busy
    assert get(server, tmp_path / "m", told) == (len(DATA), SUM)
    assert len(server.requests) == 3
    assert told.lines == ["m: the server answered 429; trying again"] * 2


def test_a_server_that_stays_busy_is_given_up(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.routes["/m.gguf"] = lambda request: Reply(503)
    with pytest.raises(DownloadError, match="answered 503; gave up after 3 tries"):
        get(server, tmp_path / "m", told)
    assert len(server.requests) == 3


def test_silence_is_noticed_and_resumed(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.file("/m.gguf", DATA)
    good = server.routes["/m.gguf"]

    def reply(request: Request) -> Reply:
        answer = good(request)
        answer.stall_s = 0.0 if len(server.requests) > 1 else 1.5
        return answer

    server.routes["/m.gguf"] = reply
    assert get(server, tmp_path / "m", told) == (len(DATA), SUM)
    assert told.lines[0] == "m: the server went silent; trying again"
    assert server.requests[1].start > 0


def test_no_server(tmp_path: Path, told: Told) -> None:
    with serving() as server:
        pass
    with pytest.raises(DownloadError, match="gave up after 3 tries"):
        get(server, tmp_path / "m", told)


def test_a_body_without_length_is_taken_to_its_end(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.routes["/m.gguf"] = lambda request: Reply(body=DATA, length=-1)
    assert get(server, tmp_path / "m", told, sha256=SUM) == (len(DATA), SUM)


@pytest.mark.parametrize("wanted", [len(DATA) - 1, len(DATA) + 1])
def test_another_size_than_announced(server: FileServer, tmp_path: Path, told: Told, wanted: int) -> None:
    server.file("/m.gguf", DATA)
    with pytest.raises(DownloadError, match=f"the server has {len(DATA)} bytes, wanted {wanted}"):
        get(server, tmp_path / "m", told, size=wanted)


def test_more_bytes_than_announced(server: FileServer, tmp_path: Path, told: Told) -> None:
    server.routes["/m.gguf"] = lambda request: Reply(body=DATA, length=-1)
    with pytest.raises(DownloadError, match="sends more than the 1000 bytes"):
        get(server, tmp_path / "m", told, size=1000)


@pytest.mark.parametrize("content_range", ["bytes 5-9/10", "nonsense", ""])
def test_a_range_at_a_wrong_place_is_not_used(
    server: FileServer, tmp_path: Path, told: Told, content_range: str
) -> None:
    server.file("/m.gguf", DATA)
    server.cut("/m.gguf", 300_000)
    good = server.routes["/m.gguf"]
    wrong = Reply(206, DATA[5:9], {"Content-Range": content_range} if content_range else {})
    server.routes["/m.gguf"] = lambda r: wrong if r.start else good(r)
    assert get(server, tmp_path / "m", told) == (len(DATA), SUM)
    assert (tmp_path / "m").read_bytes() == DATA


def test_redirects_are_followed_and_the_token_stays_at_home(tmp_path: Path, told: Told) -> None:
    with serving() as hub, serving() as store:
        store.file("/blob", DATA)
        hub.routes["/m.gguf"] = lambda request: Reply(302, headers={"Location": "/same"})
        hub.routes["/same"] = lambda request: Reply(307, headers={"Location": f"{store.url}/blob?sig=1"})
        assert get(hub, tmp_path / "m", told, token="secret") == (len(DATA), SUM)
        assert [r.headers.get("authorization") for r in hub.requests] == ["Bearer secret"] * 2
        assert [r.headers.get("authorization") for r in store.requests] == [None]


@pytest.mark.parametrize(
    ("location", "says"),
    [("/m.gguf", "redirects more than 8 times"), ("file:///etc/passwd", "no web address"), ("ftp://x/y", "no web")],
)
def test_bad_redirects(server: FileServer, tmp_path: Path, told: Told, location: str, says: str) -> None:
    server.routes["/m.gguf"] = lambda request: Reply(302, headers={"Location": location})
    with pytest.raises(DownloadError, match=says):
        get(server, tmp_path / "m", told)


def test_too_little_room_is_refused_before_a_byte(
    server: FileServer, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.file("/m.gguf", DATA)
    usage = shutil.disk_usage(tmp_path)._replace(free=64 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"m needs 68 MB free in .*, which has 67 MB"):
        get(server, tmp_path / "m", told)
    assert leftovers(tmp_path) == []


def test_an_interrupt_leaves_a_part_that_resumes(server: FileServer, tmp_path: Path) -> None:
    server.file("/m.gguf", DATA)

    class Interrupting(Told):
        def advance(self, done: int) -> None:
            super().advance(done)
            raise KeyboardInterrupt

    told = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path / "m", told)
    assert told.finished == 1
    kept = (tmp_path / "m.part").stat().st_size
    assert 0 < kept < len(DATA)
    server.requests.clear()
    assert get(server, tmp_path / "m", Told()) == (len(DATA), SUM)
    assert server.requests[0].start == kept


def test_proxy_variables_are_honoured(
    server: FileServer, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.routes["http://models.invalid/m.gguf"] = lambda request: Reply(body=DATA)
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert fetch(RemoteFile("http://models.invalid/m.gguf"), tmp_path / "m", "m", told, QUICK) == (len(DATA), SUM)
