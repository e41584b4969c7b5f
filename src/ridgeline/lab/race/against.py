"""Another version of our code as a contender, which detects a change of three percent.

    ridgeline bench spin --against HEAD~1

This module exports the commit into the cache folder and builds its native module there; the interpreter and all
libraries stay the same. The working tree runs from a copy in the same folder, with a native module built in the same
way (one build for equal sources). Both matter: equal code imported in two ways, or short calls into two builds of it,
differed by 2 to 3 % (benchmarks/records/neoverse-n1-against.txt).
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
from ridgeline.lab.race.process import CONTENDER_MODULES, ContenderSpec, module_path
from ridgeline.lab.workload import OURS
from ridgeline.store import lock, publish_dir


def build_version(commit: str) -> ContenderSpec:
    """Build a commit of this checkout, unless the cache has it, and return the contender `ridgeline@1a2b3c4`.

    Raises InputError if there is no such commit, it has no lab, or its native module does not build.
    """
    root = _find_root()
    no_commit = f"there is no commit '{commit}' in this checkout"
    full = _git(root, "rev-parse", "--verify", f"{commit}^{{commit}}", failing=no_commit)
    files = _git(root, "ls-tree", "-r", "--name-only", full, "src/ridgeline/lab", failing=no_commit).splitlines()
    if not any(f"src/{module_path(module)}" in files for module in CONTENDER_MODULES):
        raise InputError(f"commit {full[:7]} is older than the lab and cannot take part in a race.")
    tag, base = f"{full[:12]}-{sys.implementation.cache_tag}", _cache_folder()
    tree = base / tag
    with lock(base / f"{tag}.lock", timeout=600):
        if not tree.is_dir():
            with publish_dir(tree) as scratch:
                _export(root, full, scratch)
                _install_native(scratch, scratch, f"commit {full[:7]}")
    return ContenderSpec(f"{OURS}@{full[:7]}", OURS, tree=str((tree / "src").resolve()))


@contextmanager
def copy_working_tree() -> Iterator[str]:
    """Copy the running package next to the other version; yield its `src` folder and delete the copy at the end."""
    package, base = Path(ridgeline.__file__).resolve().parent, _cache_folder()
    for orphan in base.glob("here-*"):  # of a process that was killed
        if not Path("/proc", orphan.name.split("-")[1].lstrip("0")).exists():
            shutil.rmtree(orphan, ignore_errors=True)
    # The name is as long as that of the other version, so that the two differ in as little as possible.
    tree = base / f"here-{os.getpid():07d}-{sys.implementation.cache_tag}"
    try:
        shutil.copytree(package, tree / "src" / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        _install_native(_find_root(), tree, "the working tree")
        yield str((tree / "src").resolve())
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "against"
    base.mkdir(parents=True, exist_ok=True)
    return base


def _export(root: Path, commit: str, target: Path) -> None:
    with subprocess.Popen(["git", "-C", str(root), "archive", commit], stdout=subprocess.PIPE) as archive:
        tar = subprocess.run(["tar", "-x", "-C", str(target)], stdin=archive.stdout)
    if archive.returncode or tar.returncode:
        raise InputError(f"commit {commit[:7]} could not be exported from git.")


def _install_native(sources: Path, tree: Path, owner: str) -> None:
    """Copy the native module of `sources` into `tree`; build it once per content, so that equal sources share it.

    An old commit may have no native module.
    """
    if not (sources / "CMakeLists.txt").exists():
        return
    files = [sources / "CMakeLists.txt", *sorted(f for f in (sources / "native").rglob("*") if f.is_file())]
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(sources)} {file.stat().st_size} ".encode() + file.read_bytes())
    cached = _cache_folder() / f"native-{content.hexdigest()[:12]}-{sys.implementation.cache_tag}"
    with lock(cached.with_suffix(".lock"), timeout=600):
        if not cached.is_dir():
            with publish_dir(cached) as scratch:
                for file in files:
                    target = scratch / file.relative_to(sources)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file, target)
                _build(scratch, owner)
    for module in (cached / "src" / "ridgeline").glob("*.so"):
        shutil.copy2(module, tree / "src" / "ridgeline")


def _build(tree: Path, owner: str) -> None:
    """Build the native module; CMakeLists.txt puts it next to the Python sources."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        raise InputError("--against must build the other version and does not find cmake: pip install cmake.")
    build, jobs = tree / "build", len(os.sched_getaffinity(0))  # without a number make starts all compilers at once
    for step in (
        [cmake, "-S", str(tree), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"],
        [cmake, "--build", str(build), "--parallel", str(jobs)],
    ):
        process = subprocess.run(step, capture_output=True, text=True)
        if process.returncode:
            last = (process.stderr or process.stdout).strip().splitlines()[-1:]
            raise InputError(f"the native module of {owner} does not build: {' '.join(last)[:300]}")
    shutil.rmtree(build)


def _find_root() -> Path:
    no_checkout = "--against needs a git checkout of ridgeline; this one is installed without its history"
    return Path(_git(Path(ridgeline.__file__).resolve().parent, "rev-parse", "--show-toplevel", failing=no_checkout))


def _git(folder: Path, *words: str, failing: str) -> str:
    try:
        process = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    except OSError:
        raise InputError(f"{failing} (git is not installed).") from None
    if process.returncode:
        raise InputError(f"{failing}.")
    return process.stdout.strip()
