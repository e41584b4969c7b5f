"""Fetch a model from the Hugging Face hub into its local cache, at one fixed revision.

    ridgeline model get all-MiniLM-L6-v2

`huggingface_hub` does it if it is installed; otherwise the few files are fetched over HTTPS into the folder where the
library looks. Weights of published models are verified before use.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ridgeline.embed.models import (
    DEFAULT_OWNER,
    LocalModel,
    find_model,
    get_published,
    get_snapshot_folder,
    verify_weights,
)
from ridgeline.errors import InputError
from ridgeline.store import hash_file, publish

PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")
TIMEOUT = 30  # seconds without a byte

Report = Callable[[str], None]


def fetch_model(name: str, revision: str | None = None, report: Report = lambda _: None) -> LocalModel:
    """Fetch a model into the local cache; a model that is already complete is not fetched again.

    revision  a commit or branch; by default the published revision, else the newest
    report    called with a line of text for each step

    Raises InputError if the hub cannot be reached, has no such model, or the weights are damaged.
    """
    if Path(name).is_dir():
        raise InputError(f"'{name}' is a folder here already; give a name like ORG/MODEL.")
    published = get_published(name)
    repo = published.repo if published else name if "/" in name else f"{DEFAULT_OWNER}/{name}"
    commit = revision or (published.revision if published else None)
    if _offline():
        raise InputError(f"HF_HUB_OFFLINE is set, so '{repo}' is not fetched; unset it, or copy the model's folder.")
    try:
        folder = _fetch_by_library(repo, commit, report)
    except ImportError:
        folder = _fetch_by_https(repo, commit, report)
    if published is not None and (revision is None or revision == published.revision):
        verify_weights(folder, published)
    return LocalModel(name, folder, "cache") if revision else find_model(name, verify=False)


def _fetch_by_library(repo: str, revision: str | None, report: Report) -> Path:
    import huggingface_hub

    report(f"fetching {repo} at {revision or 'its newest revision'}")
    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=list(PATTERNS)))
    except Exception as error:  # the library raises a dozen classes
        raise _explain_failure(repo, error) from error


def _fetch_by_https(repo: str, revision: str | None, report: Report) -> Path:
    from fnmatch import fnmatch

    listing = _read_listing(repo, revision or "main")
    commit = str(listing["sha"])
    folder = get_snapshot_folder(repo, commit)
    for file in listing["siblings"]:
        name = str(file["rfilename"])
        if ".." in name or name.startswith("/") or not any(fnmatch(name, p) for p in PATTERNS):
            continue
        target = folder / name
        if not target.exists():
            report(f"fetching {repo}/{name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            _download(repo, commit, name, target, (file.get("lfs") or {}).get("sha256"))
    if revision is None:
        refs = folder.parent.parent / "refs"
        refs.mkdir(exist_ok=True)
        with publish(refs / "main") as tmp:
            tmp.write_text(commit)
    return folder


def _read_listing(repo: str, revision: str) -> Any:
    address = f"{_get_hub_address()}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}?blobs=true"
    try:
        with _open_url(address) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise _explain_failure(repo, error) from error


def _download(repo: str, commit: str, name: str, target: Path, sha256: str | None) -> None:
    with publish(target) as tmp:
        try:
            with (
                _open_url(f"{_get_hub_address()}/{quote(repo)}/resolve/{commit}/{quote(name)}") as answer,
                tmp.open("wb") as out,
            ):
                shutil.copyfileobj(answer, out, 1 << 20)
        except OSError as error:
            raise _explain_failure(repo, error) from error
        if sha256 is not None and hash_file(tmp) != sha256:
            raise InputError(f"{repo}/{name} arrived damaged (its SHA-256 is not the published one); fetch it again.")


def _open_url(address: str) -> Any:
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return urlopen(Request(address, headers=headers), timeout=TIMEOUT)  # noqa: S310  # https, or what HF_ENDPOINT says


def _get_hub_address() -> str:
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not hub.startswith(("https://", "http://")):
        raise InputError(f"HF_ENDPOINT is '{hub}'; give an address that begins with https://.")
    return hub


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _explain_failure(repo: str, error: Exception) -> InputError:
    if isinstance(error, HTTPError) or "404" in str(error):
        return InputError(
            f"the hub has no such '{repo}' or does not give it: {_format_first_line(error)}; check the name."
        )
    why = error.reason if isinstance(error, URLError) else error
    return InputError(
        f"'{repo}' could not be fetched: {_format_first_line(why)}; check the network, or copy its folder here."
    )


def _format_first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
