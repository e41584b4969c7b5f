"""Another version of our own code as a contender: the honest way to see a change of three percent.

    ridgeline bench spin --against HEAD~1

The commit is checked out beside the cache, its native module is built there, and its process runs from that
checkout; the interpreter and all libraries are the same. What runs here runs from a copy beside it, with a native
module built in the same way, and the very same one where its sources are: the same code imported in two ways, and
short calls into two builds of it, differed by 2 to 3 % (benchmarks/records/neoverse-n1-against.txt).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ridgeline
from ridgeline.errors import InputError
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.workload import OURS
from ridgeline.store import lock, publish_dir


def rival(commit: str) -> Entrant:
    """The entrant `ridgeline@1a2b3c4`, built if it is not there yet."""
    root = _root()
    no_commit = f"there is no commit '{commit}' in this checkout"
    full = _git(root, "rev-parse", "--verify", f"{commit}^{{commit}}", failing=no_commit)
    no_lab = f"commit {full[:7]} is older than the lab and cannot take part in a race"
    _git(root, "cat-file", "-e", f"{full}:src/ridgeline/lab/race/contender.py", failing=no_lab)
    tag, base = f"{full[:12]}-{sys.implementation.cache_tag}", _base()
    tree = base / tag
    with lock(base / f"{tag}.lock", timeout=600):
        if not tree.is_dir():
            with publish_dir(tree) as scratch:
                _export(root, full, scratch)
                _put_native(scratch, scratch, f"commit {full[:7]}")
    return Entrant(f"{OURS}@{full[:7]}", OURS, tree=str((tree / "src").resolve()))


@contextmanager
def copied() -> Iterator[str]:
    """A copy of what runs here, as long as it is needed: the `src` folder beside that of a rival."""
    package, base = Path(ridgeline.__file__).resolve().parent, _base()
    for left in base.glob("here-*"):  # by a run that was killed
        if not Path("/proc", left.name.split("-")[1].lstrip("0")).exists():
            shutil.rmtree(left, ignore_errors=True)
    # A name as long as that of a rival: the two are to differ in as little as possible.
    tree = base / f"here-{os.getpid():07d}-{sys.implementation.cache_tag}"
    try:
        shutil.copytree(package, tree / "src" / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        _put_native(_root(), tree, "what is here")
        yield str((tree / "src").resolve())
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _base() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "against"
    base.mkdir(parents=True, exist_ok=True)
    return base


def _export(root: Path, commit: str, target: Path) -> None:
    with subprocess.Popen(["git", "-C", str(root), "archive", commit], stdout=subprocess.PIPE) as archive:
        unpacked = subprocess.run(["tar", "-x", "-C", str(target)], stdin=archive.stdout)
    if archive.returncode or unpacked.returncode:
        raise InputError(f"commit {commit[:7]} could not be exported from git.")


def _put_native(sources: Path, tree: Path, whose: str) -> None:
    """The native module of these sources into a tree; built once for every content, so that equal ones have one.

    An old commit may have none.
    """
    if not (sources / "CMakeLists.txt").exists():
        return
    files = [sources / "CMakeLists.txt", *sorted(f for f in (sources / "native").rglob("*") if f.is_file())]
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(sources)} {file.stat().st_size} ".encode() + file.read_bytes())
    kept = _base() / f"native-{content.hexdigest()[:12]}-{sys.implementation.cache_tag}"
    with lock(kept.with_suffix(".lock"), timeout=600):
        if not kept.is_dir():
            with publish_dir(kept) as scratch:
                for file in files:
                    there = scratch / file.relative_to(sources)
                    there.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file, there)
                _build(scratch, whose)
    for module in (kept / "src" / "ridgeline").glob("*.so"):
        shutil.copy2(module, tree / "src" / "ridgeline")


def _build(tree: Path, whose: str) -> None:
    """The native module, put beside the sources (see CMakeLists.txt)."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        raise InputError("--against must build the other version and finds no cmake: pip install cmake.")
    build, jobs = tree / "build", len(os.sched_getaffinity(0))  # without a number make starts all compilers at once
    for step in (
        [cmake, "-S", str(tree), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"],
        [cmake, "--build", str(build), "--parallel", str(jobs)],
    ):
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise InputError(f"the native module of {whose} does not build: {' '.join(last)[:300]}")
    shutil.rmtree(build)


def _root() -> Path:
    no_checkout = "--against needs a git checkout of ridgeline; this one is installed without its history"
    return Path(_git(Path(ridgeline.__file__).resolve().parent, "rev-parse", "--show-toplevel", failing=no_checkout))


def _git(where: Path, *words: str, failing: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(where), *words], capture_output=True, text=True)
    except OSError:
        raise InputError(f"{failing} (git is not installed).") from None
    if done.returncode:
        raise InputError(f"{failing}.")
    return done.stdout.strip()
