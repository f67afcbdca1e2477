"""Cached prefixes on disk: runs of KV pages that outlive the process, in CACHE/prefix/FINGERPRINT/. Knows no KV cache.

    NAME = hash of the ids up to the first page - first page - pages - hash of all ids .kv

A prefix is read as a chain of runs: a 1,024-token system prompt is one file. A name only says where to look; the ids in
the file decide. What a model computes depends on its file, on the KV layout and on the engine that computes it, so each
of them is in the fingerprint, and a run of another fingerprint is never read. Files are made with mode 0600 in folders
with mode 0700: they hold what was said. The least recently used go when a cap is reached, whichever model they belong to.

The cache is a convenience: a full disk or a folder that cannot be written turns writing off, with one line in the log,
and a damaged file is removed; nothing here raises for what a disk does. Several processes may share the folder.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .prefix_file import SUFFIX, DamagedError, Run, head_bytes, open_run, write_run
from .prefix_room import make_folder, make_room, most_bytes
from .prefix_tree import Ids, common_prefix

__all__ = ["PrefixStore", "StoreStats"]

_LASTING = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)  # a file that may not be read, a link, a pipe
_NAME = re.compile(r"([0-9a-f]{32})-(\d{1,7})-(\d{1,7})-[0-9a-f]{32}\.kv")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreStats:
    """What the disk part holds and did since it was opened."""

    files: int  # of this model
    n_bytes: int  # of this model
    max_bytes: int  # of all models together
    pages_read: int
    pages_written: int
    removed: int  # files that were damaged, foreign or had to make room
    off: str  # why nothing is written any more; "" when it is


@dataclass(frozen=True)
class _Entry:
    path: Path
    head: str  # hash of the ids up to the end of its first page
    first: int
    count: int
    n_bytes: int


class PrefixStore:
    """Runs of pages on disk. Safe to use from several threads and processes."""

    def __init__(
        self, folder: Path, fingerprint: str | Callable[[], str], max_bytes: int = 0, *, page_size: int = 64
    ) -> None:
        """`fingerprint` is 64 hex digits, or makes them when first needed; max_bytes 0 is 512 MB or 5 % of what is free."""
        self.root = folder
        self.page_size = page_size
        self._make = fingerprint
        self._fingerprint = b""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] | None = None  # None: not looked at yet
        self._seen = -1  # the folder's time of change when it was last listed
        self._off = ""
        self._broken = False  # not even reading works
        self._read = self._written = self._removed = 0

    # ---- reading ----------------------------------------------------------------------------------------------------

    def load_index(self) -> int:
        """List the runs of this model, by their names alone; return how many there are. `get` does it when needed."""
        with self._lock:
            return len(self._index())

    def get(self, ids: Ids, first: int = 0) -> Iterator[bytes]:
        """The contents of the pages of ids that are on disk, from page `first` on, one after the other.

        Every byte is verified before it is given out. Damaged files are removed, and reading ends there.
        """
        at, skip = first, set[str]()
        while (best := self._longest(ids, at, skip)) is not None:
            entry, end = best
            try:
                with open_run(entry.path, self._fingerprint, self.page_size) as run:
                    if self._shared(run, ids) < end:
                        raise DamagedError("changed while it was read")
                    for page in range(at, end):
                        data = run.read(page)
                        at = page + 1
                        with self._lock:
                            self._read += 1
                        yield data
            except (OSError, DamagedError) as error:
                self._discard(entry, error, skip)
            else:
                self._touch(entry.path)

    def covered(self, ids: Ids) -> int:
        """How many pages of ids, from the first on, are on disk."""
        at, skip = 0, set[str]()
        while (best := self._longest(ids, at, skip)) is not None:
            at = best[1]
        return at

    def _longest(self, ids: Ids, at: int, skip: set[str]) -> tuple[_Entry, int] | None:
        """The run that holds page `at` of ids and goes on furthest, and to where; None without one. `skip` are names that
        turned out to be of no use."""
        with self._lock:
            entries = self._candidates(ids, at)
        best = None
        for entry in entries:
            if entry.path.name in skip:
                continue
            try:
                with open_run(entry.path, self._fingerprint, self.page_size) as run:
                    if run.first != entry.first or run.count != entry.count:
                        raise DamagedError("the file has the name of another")
                    end = self._shared(run, ids)
            except (OSError, DamagedError) as error:
                self._discard(entry, error, skip)
                continue
            if end > at and (best is None or end > best[1]):
                best = entry, end
        return best

    def _shared(self, run: Run, ids: Ids) -> int:
        """How many whole pages a run's ids share with ids, token by token."""
        return common_prefix(run.ids, ids) // self.page_size

    def _candidates(self, ids: Ids, at: int) -> list[_Entry]:
        """The entries that may hold page `at` of ids, by their names."""
        if len(ids) < (at + 1) * self.page_size:
            return []
        heads: dict[int, str] = {}
        found = []
        for entry in self._index().values():
            if entry.first <= at < entry.first + entry.count:
                if entry.first not in heads:
                    heads[entry.first] = self._hash(ids[: (entry.first + 1) * self.page_size])
                if heads[entry.first] == entry.head:
                    found.append(entry)
        return found

    def _hash(self, ids: Ids) -> str:
        return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()[:32]

    def _touch(self, path: Path) -> None:
        """Note the use of a file for eviction, here and in other processes."""
        try:
            os.utime(path)
        except OSError:
            pass

    def _discard(self, entry: _Entry, error: Exception, skip: set[str]) -> None:
        """Do without a file that cannot be used, and remove it unless the error may pass by itself."""
        skip.add(entry.path.name)
        passing = isinstance(error, OSError) and error.errno not in _LASTING
        with self._lock:
            if self._entries is not None:
                self._entries.pop(entry.path.name, None)
        if not passing:
            _log.debug("removing %s: %s", entry.path, error)
            self._unlink(entry.path)

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink()
        except OSError:
            return
        with self._lock:
            self._removed += 1

    def _index(self) -> dict[str, _Entry]:
        """The runs of this model by name; listed again when the folder has changed. Called with the lock held."""
        if not self._ready():
            return {}
        try:
            changed = self._folder.stat().st_mtime_ns
            if self._entries is None or changed != self._seen:
                self._entries = {}
                for item in os.scandir(self._folder):
                    name = _NAME.fullmatch(item.name)
                    if name:
                        n_bytes = item.stat(follow_symlinks=False).st_size
                        first, count = int(name[2]), int(name[3])
                        self._entries[item.name] = _Entry(Path(item.path), name[1], first, count, n_bytes)
                # A change within the clock's grain of this listing would not show: then list once more next time.
                self._seen = changed if time.time_ns() - changed > 50_000_000 else -1
        except OSError:
            self._entries = self._entries or {}
        return self._entries

    def _ready(self) -> bool:
        """Make the fingerprint when it is needed for the first time; False when there is none."""
        if not self._fingerprint and not self._broken:
            try:
                text = self._make() if callable(self._make) else self._make
                self._fingerprint = bytes.fromhex(text)
                if len(self._fingerprint) != 32:
                    raise ValueError(f"a fingerprint of {len(self._fingerprint)} bytes")
                self._folder = self.root / text[:32]
            except Exception as error:  # a model file that was closed or went away
                self._broken, self._fingerprint = True, b""
                self.turn_off(str(error))
        return not self._broken

    # ---- writing ----------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether writing is still tried."""
        return not self._off

    def put(self, ids: Ids, pages: Iterable[bytes], first: int = 0) -> bool:
        """Write the pages first .. n-1 of ids, n = len(ids) // page_size, as one run; False when that did not work.

        Does not look whether they are there already: `covered` says that. What `pages` raises comes through.
        """
        ids = ids[: len(ids) // self.page_size * self.page_size]
        count = len(ids) // self.page_size - first
        with self._lock:
            if self._off or count < 1 or not self._ready():
                return False
        waiting = iter(pages)
        data = next(waiting)
        n_bytes = head_bytes(len(ids), count) + count * len(data)
        name = f"{self._hash(ids[: (first + 1) * self.page_size])}-{first}-{count}-{self._hash(ids)}{SUFFIX}"
        path = self._folder / name
        try:
            make_folder(self.root)
            make_folder(self._folder)
            fits, removed = make_room(self.root, n_bytes, self._max_bytes)
            self._forget(removed)
            if not fits:
                _log.debug("a prefix of %d bytes is more than the prefix cache may hold", n_bytes)
                return False
            write_run(path, self._fingerprint, ids, first, _chain(data, waiting), self.page_size)
        except FileNotFoundError:
            return False  # somebody emptied the cache under our hands
        except OSError as error:
            self.turn_off(error.strerror or str(error))
            return False
        with self._lock:
            self._written += count
            if self._entries is not None:
                head = self._hash(ids[: (first + 1) * self.page_size])
                self._entries[name] = _Entry(path, head, first, count, n_bytes)
        return True

    def _forget(self, removed: list[Path]) -> None:
        with self._lock:
            self._removed += len(removed)
            for path in removed:
                if self._entries is not None and path.parent == self._folder:
                    self._entries.pop(path.name, None)

    def turn_off(self, reason: str) -> None:
        """Write nothing any more, and say why in the log, once."""
        with self._lock:
            if not self._off:
                self._off = reason
                _log.info("the prefix cache in %s is not written any more: %s", self.root, reason)

    def stats(self) -> StoreStats:
        """What the disk part holds and did."""
        with self._lock:
            entries = self._index()
            try:
                cap = most_bytes(self._max_bytes, shutil.disk_usage(self.root).free)
            except OSError:
                cap = self._max_bytes
            return StoreStats(
                files=len(entries),
                n_bytes=sum(entry.n_bytes for entry in entries.values()),
                max_bytes=cap,
                pages_read=self._read,
                pages_written=self._written,
                removed=self._removed,
                off=self._off,
            )


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
