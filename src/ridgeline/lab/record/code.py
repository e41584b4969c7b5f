"""Which code a record measures: commit, dirty flag, a hash of the source files, versions of the libraries."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
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
def describe_code() -> dict[str, Any]:
    """Return the `code` table of a record. RIDGELINE_COMMIT names the commit of a copy without git history."""
    commit = os.environ.get("RIDGELINE_COMMIT")
    changes = None if commit else _git("status", "--porcelain", "--untracked-files=no")
    return {
        "ridgeline": ridgeline.__version__,
        "commit": commit or _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "tree": hash_sources(),
        "python": sys.version.split()[0],
        "libraries": {name: version for name in LIBRARIES if (version := _get_version(name))},
    }


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


def _git(*words: str) -> str | None:
    """Run git in the checkout of this package; None for an installed wheel."""
    package = Path(ridgeline.__file__).resolve().parent
    try:
        process = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _get_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
