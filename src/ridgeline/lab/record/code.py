"""Which code was measured: commit, dirty flag, a hash of the very files, versions of what matters."""

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
def version() -> dict[str, Any]:
    """The code block of a record."""
    told = os.environ.get("RIDGELINE_COMMIT")  # a copy on another machine does not know its commit by itself
    changes = None if told else _git("status", "--porcelain", "--untracked-files=no")
    return {
        "ridgeline": ridgeline.__version__,
        "commit": told or _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "tree": tree_hash(),
        "python": sys.version.split()[0],
        "libraries": {name: found for name in LIBRARIES if (found := _installed(name))},
    }


def tree_hash(root: Path | None = None) -> str:
    """Sixteen hex digits over the package's sources and its native module: equal code, equal hash."""
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
    """Git's answer about the checkout this package runs from; None for an installed wheel."""
    here = Path(ridgeline.__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
