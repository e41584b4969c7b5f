"""Fetch a model from the Hugging Face hub into its local cache, at one fixed revision.

    ridgeline model get all-MiniLM-L6-v2

With `huggingface_hub` installed that library does it; without, the few files are fetched over HTTPS and put where
the library would look. Weights of known models are verified before they are used.
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

from ridgeline.embed.models import HOME, Found, find_model, known, snapshot_folder, verify_weights
from ridgeline.errors import InputError
from ridgeline.store import publish, sha256_of

PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")
TIMEOUT = 30  # seconds without a byte

Say = Callable[[str], None]


def fetch_model(name: str, revision: str | None = None, say: Say = lambda _: None) -> Found:
    """Bring a model into the local cache; nothing is done if it is there."""
    if Path(name).is_dir():
        raise InputError(f"'{name}' is a folder here already; give a name like ORG/MODEL.")
    published = known(name)
    repo = published.repo if published else name if "/" in name else f"{HOME}/{name}"
    pinned = revision or (published.revision if published else None)
    if _offline():
        raise InputError(f"HF_HUB_OFFLINE is set, so '{repo}' is not fetched; unset it, or copy the model's folder.")
    try:
        folder = _by_library(repo, pinned, say)
    except ImportError:
        folder = _by_https(repo, pinned, say)
    if published is not None and (revision is None or revision == published.revision):
        verify_weights(folder, published)
    return Found(name, folder, "cache") if revision else find_model(name, verify=False)


def _by_library(repo: str, revision: str | None, say: Say) -> Path:
    import huggingface_hub

    say(f"fetching {repo} at {revision or 'its newest revision'}")
    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=list(PATTERNS)))
    except Exception as error:  # a dozen classes of its own and of its HTTP library
        raise _unreachable(repo, error) from error


def _by_https(repo: str, revision: str | None, say: Say) -> Path:
    from fnmatch import fnmatch

    listing = _listing(repo, revision or "main")
    commit = str(listing["sha"])
    folder = snapshot_folder(repo, commit)
    for file in listing["siblings"]:
        name = str(file["rfilename"])
        if ".." in name or name.startswith("/") or not any(fnmatch(name, p) for p in PATTERNS):
            continue
        target = folder / name
        if not target.exists():
            say(f"fetching {repo}/{name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            _download(repo, commit, name, target, (file.get("lfs") or {}).get("sha256"))
    if revision is None:
        refs = folder.parent.parent / "refs"
        refs.mkdir(exist_ok=True)
        with publish(refs / "main") as tmp:
            tmp.write_text(commit)
    return folder


def _listing(repo: str, revision: str) -> Any:
    address = f"{_hub()}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}?blobs=true"
    try:
        with _open(address) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise _unreachable(repo, error) from error


def _download(repo: str, commit: str, name: str, target: Path, sha256: str | None) -> None:
    with publish(target) as tmp:
        try:
            with _open(f"{_hub()}/{quote(repo)}/resolve/{commit}/{quote(name)}") as answer, tmp.open("wb") as out:
                shutil.copyfileobj(answer, out, 1 << 20)
        except OSError as error:
            raise _unreachable(repo, error) from error
        if sha256 is not None and sha256_of(tmp) != sha256:
            raise InputError(f"{repo}/{name} arrived damaged (its SHA-256 is not the published one); fetch it again.")


def _open(address: str) -> Any:
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return urlopen(Request(address, headers=headers), timeout=TIMEOUT)  # noqa: S310  # https, or what HF_ENDPOINT says


def _hub() -> str:
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not hub.startswith(("https://", "http://")):
        raise InputError(f"HF_ENDPOINT is '{hub}'; give an address that begins with https://.")
    return hub


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _unreachable(repo: str, error: Exception) -> InputError:
    if isinstance(error, HTTPError) or "404" in str(error):
        return InputError(f"the hub has no such '{repo}' or does not give it: {_first_line(error)}; check the name.")
    why = error.reason if isinstance(error, URLError) else error
    return InputError(f"'{repo}' could not be fetched: {_first_line(why)}; check the network, or copy its folder here.")


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
