"""Publish a folder: readers see the old one or the new one, never a mixture.

    with publish_dir("index", meta={"dim": 384}) as tmp:
        save(tmp / "vectors.bin")

The kernel exchanges the names of the new and the old folder in one step (renameat2). If kernel or filesystem cannot do
that, two renames do it; a crash between them leaves both folders complete beside the target, and `recover` (which
publishing and reading call) finishes the second rename.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.store import disk
from ridgeline.store.disk import StrPath, explain_errors, explain_errors_within, sync_folder, sync_tree
from ridgeline.store.manifest import MANIFEST, write_manifest_unpublished
from ridgeline.store.workspace import Workspace, open_workspace

_TRIES = 100  # a try fails only if another writer publishes at the same moment


@contextmanager
def publish_dir(path: StrPath, meta: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Yield an empty folder; if the block succeeds, it becomes `path` in one step and is on the disk.

    Its manifest is written last; `meta` is read only then, so the block may still add to it. If the block raises,
    `path` does not change. A folder without a manifest that is not empty is never replaced.
    """
    with open_workspace(path) as space:
        _refuse_foreign(space.target, path)
        with explain_errors(path):
            space.payload.mkdir()
        with explain_errors_within(space.folder, path):
            yield space.payload
        if space.ours:
            with explain_errors(path):
                write_manifest_unpublished(space.payload, meta)
                sync_tree(space.payload)
                _refuse_foreign(space.target, path)
                _swap(space)


def discard_dir(path: StrPath) -> None:
    """Remove a folder in one step: readers see it complete or not at all."""
    with open_workspace(path) as space, explain_errors(path):
        os.rename(space.target, space.payload)
        sync_folder(space.target.parent)


def _swap(space: Workspace) -> None:
    for attempt in range(_TRIES):
        try:
            if not os.path.lexists(space.target):
                os.rename(space.payload, space.target)
            elif not disk.exchange(space.payload, space.target):
                _swap_in_two_steps(space, space.folder / "old" / str(attempt))
            break
        except OSError as error:
            raced = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not raced or attempt == _TRIES - 1:
                raise
    # Sync both names before the old version is deleted: a power cut must not restore its name without its files.
    sync_folder(space.target.parent)
    sync_folder(space.payload.parent)


def _swap_in_two_steps(space: Workspace, old_path: Path) -> None:
    old_path.parent.mkdir(exist_ok=True)
    # Between the two renames both versions have only these names, so sync the names first.
    for folder in (space.payload.parent, space.folder, space.folder.parent, space.target.parent):
        sync_folder(folder)
    os.rename(space.target, old_path)
    os.rename(space.payload, space.target)


def _refuse_foreign(target: Path, path: StrPath) -> None:
    with explain_errors(path):
        for _ in range(_TRIES):
            try:
                kind = target.lstat()
                if not stat.S_ISDIR(kind.st_mode):
                    raise StoreError(f"{path} is a file, so no folder can take its place; choose another name.")
                foreign = not (target / MANIFEST).is_file() and any(target.iterdir())
                if not foreign:
                    return
                # Another writer may have published a new folder and be removing the one that was inspected.
                if not os.path.samestat(kind, target.lstat()):
                    continue
            except FileNotFoundError:
                if not os.path.lexists(target):
                    return
                continue
            raise StoreError(
                f"{path} holds files that were not published here (no {MANIFEST}), so it is not replaced; "
                "move it away or choose another name."
            )
