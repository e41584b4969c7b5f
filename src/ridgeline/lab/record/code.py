"""Which code a record measures: commit, dirty flag, a hash of the source files, versions of the libraries."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import ridgeline

LIBRARIES = (
    "numpy",
    "torch",
    "triton",
    "faiss-cpu",
    "tokenizers",
    "transformers",
    "sentence-transformers",
    "pyarrow",
)


@cache
def describe_code(repository: Path | None = None) -> dict[str, Any]:
    """Return the `code` table of a record. RIDGELINE_COMMIT names the commit of a copy without git history.

    repository  the repository of a user whose code is measured: `commit`, `dirty` and `tree` are then its own
    """
    commit = os.environ.get("RIDGELINE_COMMIT")
    package = Path(ridgeline.__file__).resolve().parent
    changes = None if commit else _git(package, "status", "--porcelain", "--untracked-files=no")
    code = {
        "ridgeline": ridgeline.__version__,
        "commit": commit or _git(package, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "tree": hash_sources(),
        "python": sys.version.split()[0],
        "libraries": {name: version for name in LIBRARIES if (version := _get_version(name))},
    }
    if repository is None:
        return code
    changes = _git(repository, "status", "--porcelain")
    return {
        **code,
        "repository": repository.name,
        "commit": _git(repository, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "tree": _hash_repository(repository, str(code["tree"])),
        "ridgeline_commit": code["commit"],
    }


def find_toplevel(folder: Path) -> Path | None:
    """Return the working tree of git that holds a folder; None without one."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    return Path(root).resolve() if root else None


def find_own_checkout() -> Path | None:
    """Return the checkout that this package runs from; None for an installed one.

    An environment of Python can lie inside the repository of a user, so only `src/ridgeline` counts.
    """
    package = Path(ridgeline.__file__).resolve().parent
    root = find_toplevel(package)
    return root if root is not None and root / "src" / "ridgeline" == package else None


def find_user_repository(reference: str) -> Path | None:
    """Return the repository of a workload's file; None if it has none, or is a part of ridgeline."""
    if not (reference.endswith(".py") or "/" in reference):
        return None
    root = find_toplevel(Path(reference).resolve().parent)
    return None if root == find_own_checkout() else root


def hash_sources(root: Path | None = None) -> str:
    """Hash the sources of the package and its native module: 16 hex digits, equal for equal code."""
    base = root or Path(ridgeline.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in base.rglob("*") if p.suffix in (".py", ".so", ".html", ".css", ".js", ".yaml")):
        digest.update(path.relative_to(base).as_posix().encode())
        digest.update(path.read_bytes())
    try:
        from ridgeline import native

        digest.update(Path(native.__file__).read_bytes())
    except ImportError:
        digest.update(b"no native module")
    return digest.hexdigest()[:16]


def _hash_repository(repository: Path, ours: str) -> str:
    """Hash the Python files of a repository and the hash `ours` of this package."""
    names = _git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py") or ""
    digest = hashlib.sha256(ours.encode())
    for name in sorted(filter(None, names.split("\0"))):
        digest.update(name.encode())
        with suppress(OSError):  # deleted and not committed yet
            digest.update((repository / name).read_bytes())
    return digest.hexdigest()[:16]


def _git(folder: Path, *words: str) -> str | None:
    """Run git in a folder; None without git or a repository: an installed wheel has none."""
    try:
        process = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _get_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
