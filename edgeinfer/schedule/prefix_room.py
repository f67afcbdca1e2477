"""The folder of cached prefixes of all models: made for its owner alone, kept below a cap, cleaned of what was left behind."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

from .prefix_file import SUFFIX, TEMPORARY, is_abandoned

__all__ = ["DEFAULT_MOST_BYTES", "make_folder", "make_room", "most_bytes"]

DEFAULT_MOST_BYTES = 512 << 20
_SHARE_OF_FREE = 0.05  # of the disk's free space, where that is less
_MARGIN_BYTES = 64 << 20  # free space that is never used up
_STALE_S = 60.0


def make_folder(folder: Path) -> None:
    """Make a folder with mode 0700. Raises OSError, also when it is another user's: it holds what was said."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)


def most_bytes(asked: int, available: int) -> int:
    """The cap for all files together: what was asked for, else 512 MB or 5 % of what is free or ours on this disk."""
    return asked or min(DEFAULT_MOST_BYTES, int(_SHARE_OF_FREE * available))


def make_room(root: Path, n_bytes: int, asked: int) -> tuple[bool, list[Path]]:
    """Remove the least recently used files below root, of any model, until n_bytes more fit under the cap and on the disk.

    Returns whether the cap allows it, and what was removed. Raises OSError when root cannot be listed or the disk is full.
    """
    now, files, removed = time.time(), [], []
    for folder in [item for item in root.iterdir() if item.is_dir() and not item.is_symlink()]:
        for item in list(os.scandir(folder)):
            try:
                facts = item.stat(follow_symlinks=False)
            except OSError:
                continue  # another process was faster
            if item.name.endswith(SUFFIX) and item.is_file(follow_symlinks=False):
                files.append((facts.st_mtime_ns, facts.st_size, Path(item.path)))
            elif item.name.endswith(TEMPORARY) and now - facts.st_mtime > _STALE_S and is_abandoned(item.path):
                _unlink(Path(item.path))
    used, free = sum(size for _, size, _ in files), shutil.disk_usage(root).free
    cap = most_bytes(asked, free + used)
    if n_bytes > cap:
        return False, []
    for _, size, path in sorted(files):
        if used + n_bytes <= cap and free - n_bytes >= _MARGIN_BYTES:
            break
        _unlink(path)
        removed.append(path)
        used, free = used - size, free + size
    if free - n_bytes < _MARGIN_BYTES:
        raise OSError(errno.ENOSPC, f"less than {_MARGIN_BYTES >> 20} MB would be left free on the disk")
    return True, removed


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
