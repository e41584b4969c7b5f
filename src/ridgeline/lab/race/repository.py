"""Two versions of a user's repository as contenders of a race.

    ridgeline bench my_workload.py --against HEAD~1

Both versions, the commit and the working tree, run from copies in the cache folder, with the same interpreter,
libraries and ridgeline. Without --build nothing is built: compiled modules that git ignores are copied if the native
sources of both versions are equal. With it each version is built in an environment of its own.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.lab.race.against import delete_orphans, export_commit, find_cache_folder, run_git
from ridgeline.lab.race.checkout import Checkout
from ridgeline.lab.race.process import ContenderSpec
from ridgeline.lab.record import find_own_checkout, find_toplevel
from ridgeline.lab.workload import OURS, is_path

SUITE_MARGIN = 0.02  # versions of a user's code that differ by less are the same: 3 % must be found
MAX_UNTRACKED = 20_000  # files of a working tree that git neither tracks nor ignores
NATIVE_SOURCES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".f", ".f90", ".h", ".hpp", ".pxd", ".pyx", ".rs"}
MODULES = ("*.so", "*.pyd")


@dataclass(frozen=True)
class UserVersions:
    """The two versions of a repository. `commit`: the full hash of the other version."""

    commit: str
    version: ContenderSpec
    working_tree: Checkout
    interpreter: str | None = None  # of the working tree's environment, if it was built


def choose_repository(references: Sequence[str], requested: Path | None) -> Path | None:
    """Return the repository whose commits --against compares; None for ridgeline's own checkout.

    references  of the workloads: modules, or paths of files
    requested   the folder that the user named; default: the repository of the files

    Raises InputError if there is no repository, or several.
    """
    if requested is not None:
        root = find_toplevel(requested)
        if root is None:
            raise InputError(f"--repo '{requested}' is in no git repository; name a folder of one.")
        return None if root == find_own_checkout() else root
    roots: dict[Path | None, str] = {}
    for reference in references:
        if is_path(reference):
            root = find_toplevel(Path(reference).resolve().parent)
            if root is None:
                raise InputError(
                    f"'{reference}' is in no git repository; --repo DIR names the repository whose commits to compare."
                )
            roots.setdefault(None if root == find_own_checkout() else root, reference)
        else:
            roots.setdefault(None, reference)
    if len(roots) > 1:
        first, second = list(roots.values())[:2]
        raise InputError(
            f"'{first}' and '{second}' belong to different repositories; compare them in two commands, or add --repo."
        )
    return next(iter(roots), None)


@contextmanager
def export_versions(
    repository: Path,
    commit: str,
    files: Sequence[str],
    on_activity: Callable[[str], None],
    on_message: Callable[[str], None],
    build: str | None = None,
) -> Iterator[UserVersions]:
    """Copy the working tree and a commit of a repository into the cache folder; delete both at the end.

    files  of the workloads: a commit that does not have one of them gets that of the working tree
    build  shell command that builds a version in its folder; None: nothing is built

    Raises InputError if there is no such commit, it does not build, or it needs a build and `build` is None.
    """
    full = find_commit(repository, commit)
    modules = [] if build else _list_compiled_modules(repository, full)
    with open_version_folder() as base:
        # Names of one length: the two versions differ in as little as possible.
        commit_folder, tree_folder = base / full[:12], base / "working-tree"
        spec = export_version(repository, full, files, commit_folder, build, on_activity, on_message)
        on_activity(f"copying the working tree of {repository.name}")
        for name in _list_files(repository):
            _copy(repository / name, tree_folder / name)
        for name in modules:
            for folder in (commit_folder, tree_folder):
                _copy(repository / name, folder / name)
        interpreter = build_version_of_user(tree_folder, build, "the working tree", on_activity) if build else None
        yield UserVersions(full, spec, Checkout(str(repository), str(tree_folder.resolve())), interpreter)


def find_commit(repository: Path, commit: str) -> str:
    """Return the full hash of a commit; raises InputError if there is none."""
    no_commit = f"there is no commit '{commit}' in {repository}"
    return run_git(repository, "rev-parse", "--verify", f"{commit}^{{commit}}", failing=no_commit)


@contextmanager
def open_version_folder() -> Iterator[Path]:
    """Create a folder for versions in the cache, and delete it at the end."""
    delete_orphans("user-*")
    base = find_cache_folder() / f"user-{os.getpid():07d}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def export_version(
    repository: Path,
    full: str,
    files: Sequence[str],
    folder: Path,
    build: str | None,
    on_activity: Callable[[str], None],
    on_message: Callable[[str], None],
) -> ContenderSpec:
    """Export a commit into `folder`, build it, and return it as a contender.

    A suite of asv is that of the working tree, as with asv itself: an old commit does not have today's benchmarks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    on_activity(f"exporting commit {full[:7]} of {repository.name}")
    export_commit(repository, full, folder)
    version = Checkout(str(repository), str(folder.resolve()))
    for file in files:
        target, source = Path(version.locate(file)), Path(file).resolve()
        if target == Path(file):
            continue
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif not target.exists():
            on_message(f"commit {full[:7]} has no {Path(file).name}: both versions use that of the working tree.")
            _copy(source, target)
    spec = ContenderSpec(f"{OURS}@{full[:7]}", OURS, checkout=version)
    if build:
        spec = replace(spec, interpreter=build_version_of_user(folder, build, f"commit {full[:7]}", on_activity))
    return spec


def build_version_of_user(folder: Path, command: str, owner: str, on_activity: Callable[[str], None]) -> str:
    """Run the build command of a user in a version's folder, with an environment of its own; return its Python.

    The environment lies on top of that of the lab: it sees the same libraries, and what `pip install` or `uv pip
    install` adds stays in it. Raises InputError if the command fails.
    """
    on_activity(f"building {owner}: {command}")
    environment = folder / ".ridgeline-venv"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    interpreter = environment / "bin" / "python"
    packages = next((environment / "lib").glob("python*/site-packages"))
    below = [path for path in site.getsitepackages() if Path(path).is_dir()]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in below)
    (packages / "ridgeline-below.pth").write_text(lines)
    for name in ("pip", "pip3"):
        script = environment / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(interpreter))} -m pip "$@"\n')
        script.chmod(0o755)
    paths = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "VIRTUAL_ENV": str(environment), "PATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if process.returncode:
        output = [line.strip() for line in process.stdout.splitlines() if line.strip()]
        reason = f": {output[-1][:300]}" if output else ""
        raise InputError(f"--build '{command}' failed for {owner} with exit code {process.returncode}{reason}.")
    return str(interpreter)


def add_packages(interpreter: str | None) -> None:
    """Let this process import what a build installed, too: it loads the suite to list the cases."""
    if interpreter is not None:
        site.addsitedir(str(next((Path(interpreter).parents[1] / "lib").glob("python*/site-packages"))))
        importlib.invalidate_caches()


def _list_files(repository: Path) -> list[str]:
    """The files that make up the working tree: tracked ones that exist, and others that git does not ignore."""
    failing = f"git does not list the files of {repository}"
    tracked = run_git(repository, "ls-files", "-z", failing=failing).split("\0")
    others = run_git(repository, "ls-files", "-z", "--others", "--exclude-standard", failing=failing).split("\0")
    if len(others) > MAX_UNTRACKED:
        raise InputError(
            f"{repository} has {len(others):,} files that git neither tracks nor ignores; "
            "name them in .gitignore, or commit what the race needs."
        )
    return [name for name in dict.fromkeys([*tracked, *others]) if name and _is_copied(repository / name)]


def _is_copied(path: Path) -> bool:
    return path.is_symlink() or path.is_file()  # a submodule is a folder: its files belong to another repository


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


def _list_compiled_modules(repository: Path, commit: str) -> list[str]:
    """The compiled modules of the working tree that git ignores; raises InputError if `commit` needs others."""
    failing = f"git does not list the files of {repository}"
    ignored = run_git(
        repository, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *MODULES, failing=failing
    )
    environment = Path(sys.prefix).resolve()
    modules = [name for name in ignored.split("\0") if name and environment not in (repository / name).parents]
    if not modules:
        return []
    changed = run_git(repository, "diff", "--name-only", "-z", commit, failing=failing).split("\0")
    native = [name for name in changed if Path(name).suffix.lower() in NATIVE_SOURCES]
    if native:
        raise InputError(
            f"commit {commit[:7]} has another {native[0]} than the working tree, and nothing says how to compile it; "
            "add --build with the command, for example --build 'pip install .'."
        )
    return modules
