"""Two versions of a user's repository as contenders of a race.

    ridgeline bench my_workload.py --against HEAD~1

Both versions, the commit and the working tree, run from copies in the cache folder, with the same interpreter,
libraries and ridgeline. Nothing is built: compiled modules that git ignores are copied if the native sources of both
versions are equal.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.lab.race.against import delete_orphans, export_commit, find_cache_folder, run_git
from ridgeline.lab.race.checkout import Checkout
from ridgeline.lab.race.process import ContenderSpec
from ridgeline.lab.record import find_own_checkout, find_toplevel
from ridgeline.lab.workload import OURS

MAX_UNTRACKED = 20_000  # files of a working tree that git neither tracks nor ignores
NATIVE_SOURCES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".f", ".f90", ".h", ".hpp", ".pxd", ".pyx", ".rs"}
MODULES = ("*.so", "*.pyd")


@dataclass(frozen=True)
class UserVersions:
    """The two versions of a repository. `commit`: the full hash of the other version."""

    commit: str
    version: ContenderSpec
    working_tree: Checkout


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
        if reference.endswith(".py"):
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
) -> Iterator[UserVersions]:
    """Copy the working tree and a commit of a repository into the cache folder; delete both at the end.

    files  of the workloads: a commit that does not have one of them gets that of the working tree

    Raises InputError if there is no such commit, or a compiled module would have to be built for it.
    """
    no_commit = f"there is no commit '{commit}' in {repository}"
    full = run_git(repository, "rev-parse", "--verify", f"{commit}^{{commit}}", failing=no_commit)
    modules = _list_compiled_modules(repository, full)
    delete_orphans("user-*")
    base = find_cache_folder() / f"user-{os.getpid():07d}"
    # Names of one length: the two versions differ in as little as possible.
    commit_folder, tree_folder = base / full[:12], base / "working-tree"
    try:
        commit_folder.mkdir(parents=True)
        on_activity(f"exporting commit {full[:7]} of {repository.name}")
        export_commit(repository, full, commit_folder)
        on_activity(f"copying the working tree of {repository.name}")
        for name in _list_files(repository):
            _copy(repository / name, tree_folder / name)
        for name in modules:
            for folder in (commit_folder, tree_folder):
                _copy(repository / name, folder / name)
        version = Checkout(str(repository), str(commit_folder.resolve()))
        for file in files:
            target = Path(version.locate(file))
            if target != Path(file) and not target.exists():
                on_message(f"commit {full[:7]} has no {Path(file).name}: both versions use that of the working tree.")
                _copy(Path(file).resolve(), target)
        spec = ContenderSpec(f"{OURS}@{full[:7]}", OURS, checkout=version)
        yield UserVersions(full, spec, Checkout(str(repository), str(tree_folder.resolve())))
    finally:
        shutil.rmtree(base, ignore_errors=True)


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
            f"commit {commit[:7]} has another {native[0]} than the working tree, and --against does not compile; "
            "compare commits with equal native sources."
        )
    return modules
