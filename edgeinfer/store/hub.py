"""The Hugging Face hub: which files a repository has, and where they are fetched. The only importer of huggingface_hub.

HF_ENDPOINT names a mirror; the token (HF_TOKEN, or what the hub's own login left) goes to that endpoint alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DownloadError
from ..settings import Settings
from .download import RemoteFile
from .sources import HfSource, choose_gguf

__all__ = ["HubFile", "hub_files", "hub_token"]

_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class HubFile:
    """One file of a repository, at the commit that was current when it was listed."""

    name: str  # path inside the repository
    remote: RemoteFile
    licence: str


def hub_token(settings: Settings) -> str:
    """Return HF_TOKEN, else the token that `hf auth login` stored, else ""."""
    if settings.hf_token:
        return settings.hf_token.strip()
    try:
        return (settings.hf_home / "token").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def hub_files(source: HfSource, settings: Settings) -> list[HubFile]:
    """Ask the hub for the repository and pick the GGUF file, or the shards, that the source means.

    Raises DownloadError when the hub cannot be reached or refuses, NotFoundError when no file fits.
    """
    import httpx2
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub import errors as hub

    endpoint = settings.hf_endpoint or _ENDPOINT
    token = hub_token(settings)
    where = f"repository {source.repo}" + (f" at {source.revision}" if source.revision else "")
    login = "the token was not accepted or has no access to it" if token else "set HF_TOKEN if it is private or gated"
    api = HfApi(endpoint=endpoint, token=token or False, library_name="edgeinfer")
    try:
        info = api.model_info(
            source.repo, revision=source.revision or None, files_metadata=True, timeout=_TIMEOUT_S, token=token or False
        )
    except hub.GatedRepoError as error:
        raise DownloadError(f"{where} is gated: accept its licence on {endpoint}/{source.repo}; {login}") from error
    except hub.RevisionNotFoundError as error:
        raise DownloadError(f"{where} does not exist: there is no such revision") from error
    except hub.RepositoryNotFoundError as error:
        raise DownloadError(f"{where} does not exist on {endpoint}, or is not visible; {login}") from error
    except hub.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        reason = f"{status}; {login}" if status in (401, 403) else str(status or error)
        raise DownloadError(f"{endpoint} refused to list {where}: {reason}") from error
    except hub.OfflineModeIsEnabled as error:
        raise DownloadError(f"HF_HUB_OFFLINE is set; {where} cannot be looked up") from error
    except (httpx2.HTTPError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise DownloadError(f"cannot reach {endpoint} to list {where}: {reason[:300]}") from error
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    chosen = choose_gguf(list(siblings), source.choice, where)
    files = []
    for name in chosen:
        sibling = siblings[name]
        sha256 = str(sibling.lfs["sha256"]) if sibling.lfs and sibling.lfs.get("sha256") else ""
        url = hf_hub_url(source.repo, name, revision=info.sha or source.revision or None, endpoint=endpoint)
        licence = next((tag[len("license:") :] for tag in info.tags or [] if tag.startswith("license:")), "")
        files.append(HubFile(name, RemoteFile(url, sibling.size, sha256, token), licence))
    return files
