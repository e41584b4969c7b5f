"""Publish a whole folder: readers find the old one or the new one, never a mixture.

    with publish_dir("index", meta={"dim": 384}) as tmp:
        save(tmp / "vectors.bin")

The new folder and the old one exchange their names in one step of the kernel (renameat2). Where kernel or
filesystem cannot, the old one steps aside and the new one takes its place; a crash between those two steps
leaves both whole beside the target, and `recover` (which publishing and reading call) finishes the move.
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
from ridgeline.store.disk import StrPath, explained, explained_within, sync_folder, sync_tree
from ridgeline.store.manifest import MANIFEST, write_manifest_unpublished
from ridgeline.store.workspace import Workspace, workspace

_TRIES = 100  # each lost only to another writer that published in that very moment


@contextmanager
def publish_dir(path: StrPath, meta: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block ends well, it becomes `path` in one step, on the disk.

    Its manifest is written last; `meta` is read only then, so the block may still add to it. If the block
    raises, `path` is as it was. A folder that was not published here (not empty, no manifest) is never
    replaced.
    """
    with workspace(path) as space:
        _refuse_foreign(space.target, path)
        with explained(path):
            space.payload.mkdir()
        with explained_within(space.folder, path):
            yield space.payload
        if space.ours:
            with explained(path):
                write_manifest_unpublished(space.payload, meta)
                sync_tree(space.payload)
                _refuse_foreign(space.target, path)
                _swap(space)


def discard_dir(path: StrPath) -> None:
    """Remove a folder so that it is there whole or gone, never half."""
    with workspace(path) as space, explained(path):
        os.rename(space.target, space.payload)
        sync_folder(space.target.parent)


def _swap(space: Workspace) -> None:
    for attempt in range(_TRIES):
        try:
            if not os.path.lexists(space.target):
                os.rename(space.payload, space.target)
            elif not disk.exchange(space.payload, space.target):
                _two_steps(space, space.folder / "old" / str(attempt))
            break
        except OSError as error:
            raced = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not raced or attempt == _TRIES - 1:
                raise
    # Both ends last before the old version is deleted: a power cut must not bring back its name without it.
    sync_folder(space.target.parent)
    sync_folder(space.payload.parent)


def _two_steps(space: Workspace, aside: Path) -> None:
    aside.parent.mkdir(exist_ok=True)
    # Until the second step both versions have only these names, so the names must be on the disk first.
    for folder in (space.payload.parent, space.folder, space.folder.parent, space.target.parent):
        sync_folder(folder)
    os.rename(space.target, aside)
    os.rename(space.payload, space.target)


def _refuse_foreign(target: Path, path: StrPath) -> None:
    with explained(path):
        for _ in range(_TRIES):
            try:
                kind = target.lstat()
                if not stat.S_ISDIR(kind.st_mode):
                    raise StoreError(f"{path} is a file, so no folder can take its place; choose another name.")
                foreign = not (target / MANIFEST).is_file() and any(target.iterdir())
                if not foreign:
                    return
                # Another writer may have put a new folder there, and be removing the one just looked at.
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
