"""Another version of our code as a contender, which detects a change of three percent.

    ridgeline bench spin --against HEAD~1

This module exports the commit into the cache folder and builds its native module there; the interpreter and all
libraries stay the same. The working tree runs from a copy in the same folder, with a native module built in the same
way. Both matter: equal code imported in two ways, or short calls into two builds of it, differed by 2 to 3 %
(benchmarks/records/neoverse-n1-against.txt). A build takes minutes, so equal native sources share one module; if both
versions have the native sources of this checkout, that module is the one that it has already.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ridgeline
from ridgeline.errors import InputError
from ridgeline.lab.race.process import CONTENDER_MODULES, ContenderSpec, module_path
from ridgeline.lab.record import find_own_checkout
from ridgeline.lab.workload import OURS
from ridgeline.store import lock, publish_dir

Report = Callable[[str], None]  # gets a few words or a sentence for the user


def _ignore(_: str) -> None: ...


def build_version(commit: str, on_activity: Report = _ignore, on_message: Report = _ignore) -> ContenderSpec:
    """Build a commit of this checkout, unless the cache has it, and return the contender `ridgeline@1a2b3c4`.

    on_activity  gets what is built now and how far it is
    on_message   gets a sentence before a build that takes minutes

    Raises InputError if there is no such commit, it has no lab, or its native module does not build.
    """
    root = _find_root()
    no_commit = f"there is no commit '{commit}' in this checkout"
    full = run_git(root, "rev-parse", "--verify", f"{commit}^{{commit}}", failing=no_commit)
    files = run_git(root, "ls-tree", "-r", "--name-only", full, "src/ridgeline/lab", failing=no_commit).splitlines()
    if not any(f"src/{module_path(module)}" in files for module in CONTENDER_MODULES):
        raise InputError(f"commit {full[:7]} is older than the lab and cannot take part in a race.")
    tag, base = f"{full[:12]}-{sys.implementation.cache_tag}", find_cache_folder()
    tree = base / tag
    with lock(base / f"{tag}.lock", timeout=600):
        if not tree.is_dir():
            on_activity(f"exporting commit {full[:7]}")
            with publish_dir(tree) as scratch:
                export_commit(root, full, scratch)
                _install_native(scratch, scratch, f"commit {full[:7]}", on_activity, on_message)
    return ContenderSpec(f"{OURS}@{full[:7]}", OURS, tree=str((tree / "src").resolve()))


@contextmanager
def copy_working_tree(on_activity: Report = _ignore, on_message: Report = _ignore) -> Iterator[str]:
    """Copy the running package next to the other version; yield its `src` folder and delete the copy at the end."""
    package, base = Path(ridgeline.__file__).resolve().parent, find_cache_folder()
    delete_orphans("here-*")
    # The name is as long as that of the other version, so that the two differ in as little as possible.
    tree = base / f"here-{os.getpid():07d}-{sys.implementation.cache_tag}"
    on_activity("copying the working tree")
    try:
        shutil.copytree(package, tree / "src" / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        _install_native(_find_root(), tree, "the working tree", on_activity, on_message)
        yield str((tree / "src").resolve())
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def delete_orphans(pattern: str) -> None:
    """Delete copies of killed processes; their names hold the number of the process: here-0001234-cpython-311."""
    for orphan in find_cache_folder().glob(pattern):
        if not Path("/proc", orphan.name.split("-")[1].lstrip("0")).exists():
            shutil.rmtree(orphan, ignore_errors=True)


def find_cache_folder() -> Path:
    """Return the folder of all versions; it is created."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "against"
    base.mkdir(parents=True, exist_ok=True)
    return base


def export_commit(root: Path, commit: str, target: Path) -> None:
    with subprocess.Popen(["git", "-C", str(root), "archive", commit], stdout=subprocess.PIPE) as archive:
        tar = subprocess.run(["tar", "-x", "-C", str(target)], stdin=archive.stdout)
    if archive.returncode or tar.returncode:
        raise InputError(f"commit {commit[:7]} could not be exported from git.")


def _install_native(sources: Path, tree: Path, owner: str, on_activity: Report, on_message: Report) -> None:
    """Copy the native module of `sources` into `tree`; build it once per content, so that equal sources share it.

    An old commit may have no native module.
    """
    if not (sources / "CMakeLists.txt").exists():
        return
    files = _list_native_sources(sources)
    content = _hash_files(sources, files)
    cached = find_cache_folder() / f"native-{content}-{sys.implementation.cache_tag}"
    with lock(cached.with_suffix(".lock"), timeout=600):
        if not cached.is_dir():
            with publish_dir(cached) as scratch:
                module = _find_current_module(content)
                if module is not None:
                    (scratch / "src" / "ridgeline").mkdir(parents=True)
                    shutil.copy2(module, scratch / "src" / "ridgeline")
                else:
                    for file in files:
                        target = scratch / file.relative_to(sources)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(file, target)
                    on_message(
                        f"building the native module of {owner}: minutes, not part of --budget, once for these sources."
                    )
                    _build(scratch, owner, on_activity)
    for module in (cached / "src" / "ridgeline").glob("*.so"):
        shutil.copy2(module, tree / "src" / "ridgeline")


def _list_native_sources(root: Path) -> list[Path]:
    return [root / "CMakeLists.txt", *sorted(f for f in (root / "native").rglob("*") if f.is_file())]


def _hash_files(root: Path, files: list[Path]) -> str:
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(root)} {file.stat().st_size} ".encode() + file.read_bytes())
    return content.hexdigest()[:12]


def _find_current_module(content: str) -> Path | None:
    """The native module of this checkout, if its sources have this hash and it is newer than all of them."""
    root, package = _find_root(), Path(ridgeline.__file__).resolve().parent
    files = _list_native_sources(root)
    module = next(package.glob(f"native.{sys.implementation.cache_tag}*.so"), None)
    if module is None or not all(file.exists() for file in files) or _hash_files(root, files) != content:
        return None
    return module if module.stat().st_mtime >= max(file.stat().st_mtime for file in files) else None


def _build(tree: Path, owner: str, on_activity: Report) -> None:
    """Build the native module; CMakeLists.txt puts it next to the Python sources."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        raise InputError("--against must build the other version and does not find cmake: pip install cmake.")
    build, jobs = tree / "build", len(os.sched_getaffinity(0))  # without a number make starts all compilers at once
    what = f"building the native module of {owner}"
    on_activity(what)
    for step in (
        [cmake, "-S", str(tree), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"],
        [cmake, "--build", str(build), "--parallel", str(jobs)],
    ):
        with subprocess.Popen(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            output: list[str] = []
            for line in process.stdout or ():
                output.append(line.strip())
                # make writes "[ 42%] Building …", ninja "[17/40] Building …"
                if match := re.match(r"\[ *(\d+%|\d+/\d+)\]", line):
                    on_activity(f"{what}: {match[1].replace('/', ' of ')}")
        if process.returncode:
            errors = [line for line in output if "error" in line.lower()] or [line for line in output if line][-1:]
            raise InputError(f"the native module of {owner} does not build: {' '.join(errors[:1])[:300]}")
    shutil.rmtree(build)


def _find_root() -> Path:
    root = find_own_checkout()
    if root is None:
        raise InputError("--against needs a git checkout of ridgeline; this one is installed without its history.")
    return root


def run_git(folder: Path, *words: str, failing: str) -> str:
    """Return what git prints; raises InputError, which starts with `failing`, if it fails or is not installed."""
    try:
        process = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    except OSError:
        raise InputError(f"{failing} (git is not installed).") from None
    if process.returncode:
        raise InputError(f"{failing}.")
    return process.stdout.strip()
