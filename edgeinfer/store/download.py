"""One file over HTTP: resumed where it stopped, checked against its SHA-256, renamed only when whole.

While it grows the file is called NAME.part, beside a NAME.part.json that remembers which version of the remote file it
is a piece of. Knows URLs and bytes; knows nothing of models. Proxies are those that the HTTP client finds by itself.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urljoin, urlsplit

from ..errors import DownloadError
from .progress import Progress

if TYPE_CHECKING:
    import httpx2

__all__ = ["Patience", "RemoteFile", "check_space", "fetch", "hash_file", "writing"]

_PIECE = 1 << 18
_MARGIN = 64 << 20  # bytes that a download leaves free on the disk
_MAX_REDIRECTS = 8


@dataclass(frozen=True)
class RemoteFile:
    """What to fetch and what is known of it beforehand."""

    url: str
    size: int | None = None
    sha256: str = ""
    token: str = ""  # sent to the host of `url` alone, never to where it redirects


@dataclass(frozen=True)
class Patience:
    """How long to wait and how often to try again."""

    connect_s: float = 15.0
    read_s: float = 30.0
    tries: int = 5  # attempts in a row without a single new byte
    pause_s: float = 1.0  # before the second attempt; doubles each time


class _Again(Exception):
    """The attempt failed in a way that another may cure; `wait_s` is what the server asked for."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal digits, telling `progress` the bytes done if given."""
    return _hash_into(path, progress).hexdigest()


def _hash_into(path: Path, progress: Progress | None = None) -> hashlib._Hash:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            if progress:
                progress.advance(done)
    return digest


def check_space(folder: Path, wanted: int, what: str) -> None:
    """Raise DownloadError unless `folder` has room for `wanted` more bytes and a margin."""
    free = shutil.disk_usage(folder).free
    if free < wanted + _MARGIN:
        raise DownloadError(
            f"{what} needs {_mb(wanted + _MARGIN)} free in {folder}, which has {_mb(free)}; "
            "free some space (`edgeinfer rm NAME`) or set EDGEINFER_HOME to another disk"
        )


def _mb(n: int) -> str:
    return f"{n / 1e6:.0f} MB"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what can go wrong while writing `path` into a DownloadError with its reason."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"the disk is full while writing {path}; what is there is kept for a resume") from error
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot write {path}: {reason}; EDGEINFER_HOME chooses another folder") from error


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port


def _show(url: str) -> str:
    """A URL fit for a message: no query (it may hold a signature), no user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _note_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_note(part: Path) -> dict[str, str]:
    try:
        note = json.loads(_note_path(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in note.items() if isinstance(value, str)} if isinstance(note, dict) else {}


def _write_note(part: Path, note: dict[str, str]) -> None:
    beside = part.with_name(part.name + ".json.new")
    beside.write_text(json.dumps(note), encoding="utf-8")
    beside.replace(_note_path(part))


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_path(part).unlink(missing_ok=True)


@contextmanager
def _open(client: httpx2.Client, remote: RemoteFile, headers: dict[str, str]) -> Iterator[httpx2.Response]:
    """Send the request and follow redirects by hand, so that the token goes to its own host and nowhere else."""
    url = remote.url
    for _ in range(_MAX_REDIRECTS):
        sent = dict(headers)
        if remote.token and _origin(url) == _origin(remote.url):
            sent["Authorization"] = f"Bearer {remote.token}"
        response = client.send(client.build_request("GET", url, headers=sent), stream=True)
        try:
            location = response.headers.get("Location")
            if response.status_code not in (301, 302, 303, 307, 308) or not location:
                yield response
                return
        finally:
            response.close()
        target = urljoin(url, location)
        if urlsplit(target).scheme not in ("http", "https"):
            raise DownloadError(f"{_show(url)} redirects to {target[:80]}, which is no web address")
        if urlsplit(url).scheme == "https" and urlsplit(target).scheme == "http":
            raise DownloadError(f"{_show(url)} redirects to {_show(target)}, which is not encrypted; refused")
        url = target
    raise DownloadError(f"{_show(remote.url)} redirects more than {_MAX_REDIRECTS} times")


def _refuse(status: int, url: str, response: httpx2.Response, token: str) -> None:
    """Raise what an error status means; return for a status that carries a body."""
    if status in (200, 206, 416):
        return
    shown = _show(url)
    if status == 401:
        hint = "the token in HF_TOKEN was not accepted" if token else "set HF_TOKEN if the file needs a login"
        raise DownloadError(f"{shown} wants a login (401); {hint}")
    if status == 403:
        hint = "has this account accepted the model's licence?" if token else "set HF_TOKEN if the model is gated"
        raise DownloadError(f"{shown} is forbidden (403); {hint}")
    if status in (404, 410):
        raise DownloadError(f"{shown} does not exist ({status}); check the name")
    if status in (408, 425, 429) or status >= 500:
        asked = response.headers.get("Retry-After", "")
        wait_s = min(float(asked), 60.0) if re.fullmatch(r"\d{1,6}", asked) else 0.0
        raise _Again(f"the server answered {status}", wait_s)
    raise DownloadError(f"{shown} answered with the unexpected status {status}")


def _validator(response: httpx2.Response) -> str:
    """What If-Range may say later: a strong ETag or the date of last change."""
    etag = str(response.headers.get("ETag", ""))
    if etag and not etag.startswith("W/"):
        return etag
    return str(response.headers.get("Last-Modified", ""))


class _Transfer:
    """One file on its way: the part on disk, its running checksum, and what is known of the whole."""

    def __init__(self, remote: RemoteFile, part: Path, label: str, progress: Progress) -> None:
        self.remote, self.part, self.label, self.progress = remote, part, label, progress
        note = _read_note(part)
        same = note.get("url") == remote.url and note.get("sha256", "") == remote.sha256
        self.validator = note.get("validator", "") if same else ""
        # A piece can be taken up again if the server can vouch for it (If-Range) or the checksum will.
        if part.exists() and not (same and (self.validator or remote.sha256)):
            _drop(part)
        self.done = part.stat().st_size if part.exists() else 0
        self.resumed = self.done > 0
        self.size = remote.size
        if self.size is not None and self.done > self.size:
            self.restart()
        if self.done:
            progress.status(f"resuming {label} at {_mb(self.done)}")
        self.digest = _hash_into(part) if self.done else hashlib.sha256()
        progress.start(label, self.size, self.done)

    def restart(self) -> None:
        """Forget what is there."""
        _drop(self.part)
        self.done, self.validator, self.resumed = 0, "", False
        self.digest = hashlib.sha256()

    def attempt(self, client: httpx2.Client) -> None:
        """Run one request to its end. Raises _Again or DownloadError; what arrived before stays on disk."""
        if self.size is not None and self.done == self.size:
            return
        headers = {"Accept-Encoding": "identity"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
            if self.validator:
                headers["If-Range"] = self.validator
        with _open(client, self.remote, headers) as response:
            status = response.status_code
            _refuse(status, str(response.url), response, self.remote.token)
            if status == 416:
                self._range_refused(response)
                return
            total = self._accept(response)
            self._know_size(total)
            check_space(self.part.parent, (self.size or self.done) - self.done, self.label)
            validator = _validator(response)
            with writing(self.part):
                note = {"url": self.remote.url, "sha256": self.remote.sha256, "validator": validator}
                _write_note(self.part, note)
            self.validator = validator
            with writing(self.part):
                file = self.part.open("ab")
            with file:
                self._receive(response, file)
        if self.size is not None and self.done < self.size:
            raise _Again(f"the connection ended at {self.done} of {self.size} bytes")

    def _receive(self, response: httpx2.Response, file: BinaryIO) -> None:
        try:
            for piece in response.iter_raw():  # as it comes: a gathered piece would be lost with the connection
                if self.size is not None and self.done + len(piece) > self.size:
                    raise DownloadError(f"{self.label}: the server sends more than the {self.size} bytes it announced")
                with writing(self.part):
                    file.write(piece)
                self.digest.update(piece)
                self.done += len(piece)
                self.progress.advance(self.done)
        finally:
            with writing(self.part):
                file.flush()
                os.fsync(file.fileno())

    def _range_refused(self, response: httpx2.Response) -> None:
        match = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
        if match and int(match[1]) == self.done:
            self._know_size(self.done)
            return
        if not self.done:
            raise DownloadError(f"{_show(self.remote.url)} refuses to be read from its beginning (416)")
        self.restart()
        raise _Again("the server does not know the place to resume at; starting over")

    def _accept(self, response: httpx2.Response) -> int | None:
        """Take up a 206 that fits, start over for a 200; return the whole size if the server tells it."""
        if response.status_code == 206:
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if not match or int(match[1]) != self.done:
                self.restart()
                raise _Again("the server resumed at a wrong place; starting over")
            return None if match[2] == "*" else int(match[2])
        if self.done:
            self.progress.status(f"{self.label}: the server sends it from the beginning again")
            self.restart()
            self.progress.advance(0)
        length = str(response.headers.get("Content-Length", ""))
        return int(length) if length.isdigit() else None

    def _know_size(self, total: int | None) -> None:
        if total is None:
            return
        if self.remote.size is not None and total != self.remote.size:
            raise DownloadError(f"{self.label}: the server has {total} bytes, wanted {self.remote.size}")
        if self.size is None:
            self.progress.start(self.label, total, self.done)
        self.size = total


def _attempts(transfer: _Transfer, client: httpx2.Client, patience: Patience) -> None:
    """Attempt until the file is whole, resuming after each failure that may pass."""
    import httpx2

    failed = 0
    while True:
        before = transfer.done
        wait = 0.0
        try:
            transfer.attempt(client)
            return
        except _Again as error:
            why, wait = str(error), error.wait_s
        except httpx2.TimeoutException:
            why = "the server went silent"
        except httpx2.TransportError as error:
            why = str(error) or type(error).__name__
        except (httpx2.InvalidURL, httpx2.StreamError) as error:
            raise DownloadError(f"cannot fetch {_show(transfer.remote.url)}: {error}") from error
        failed = 1 if transfer.done > before else failed + 1
        if failed >= patience.tries:
            raise DownloadError(
                f"{_show(transfer.remote.url)}: {why}; gave up after {failed} tries, "
                f"{_mb(transfer.done)} are kept: run the same command to resume"
            )
        transfer.progress.status(f"{transfer.label}: {why}; trying again")
        time.sleep(max(wait, patience.pause_s * 2 ** (failed - 1)))


def fetch(
    remote: RemoteFile, target: Path, label: str, progress: Progress, patience: Patience | None = None
) -> tuple[int, str]:
    """Fetch a remote file to `target`; return its size and SHA-256. `target`'s folder must exist.

    Resumes a part that an earlier call left, retries what may pass, and leaves a part behind when it fails or is
    interrupted. Raises DownloadError: no such file, no permission, no space, wrong checksum, network.
    """
    import httpx2

    patience = patience or Patience()
    timeout = httpx2.Timeout(patience.read_s, connect=patience.connect_s)
    part = target.with_name(target.name + ".part")
    try:
        client = httpx2.Client(timeout=timeout, headers={"User-Agent": "edgeinfer"}, follow_redirects=False)
    except (ValueError, ImportError, OSError, httpx2.InvalidURL) as error:  # a malformed or unsupported proxy variable
        raise DownloadError(f"cannot set up the network client: {error}") from error
    with client:
        with writing(part):
            transfer = _Transfer(remote, part, label, progress)
        try:
            _attempts(transfer, client, patience)
            found = transfer.digest.hexdigest()
            if remote.sha256 and found != remote.sha256 and transfer.resumed:
                progress.status(f"{label}: the resumed part does not fit; starting over")
                transfer.restart()
                _attempts(transfer, client, patience)
                found = transfer.digest.hexdigest()
        finally:
            progress.finish()
    if remote.sha256 and found != remote.sha256:
        _drop(part)
        raise DownloadError(
            f"{label} has a wrong checksum: wanted SHA-256 {remote.sha256}, got {found}; it was deleted, pull it again"
        )
    with writing(target):
        os.replace(part, target)
    _note_path(part).unlink(missing_ok=True)
    return transfer.done, found
