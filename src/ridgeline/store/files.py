"""Publish one file: readers see the old version or the new one, whole, and never something between.

with publish("model.npz") as tmp:
    np.savez(tmp, weights=weights)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.store.disk import StrPath, explained, explained_within, sync_file, sync_folder
from ridgeline.store.workspace import Workspace, workspace


@contextmanager
def publish(path: StrPath, *, mode: int | None = None) -> Iterator[Path]:
    """Yield a path to write to; when the block ends well, it becomes `path` in one step, on the disk.

    If the block raises, `path` is as it was. The file gets `mode` if given (and is unreadable for others from
    its first byte), else the mode of the file it replaces, else what the umask leaves. A symbolic link is
    followed, as writing does.
    """
    with workspace(path, private=mode is not None) as space:
        refuse_folder(space.target, path)
        with explained_within(space.folder, path):
            yield space.payload
        if space.ours:
            seal(space, path, mode)
            refuse_folder(space.target, path)
            with explained(path):
                os.replace(space.payload, space.target)
                sync_folder(space.target.parent)


def seal(space: Workspace, path: StrPath, mode: int | None = None) -> None:
    """Give the payload its mode and bring it to the disk; it must be one plain file."""
    try:
        kind = os.lstat(space.payload).st_mode
    except FileNotFoundError:
        raise StoreError(f"nothing was written for {path}; write to the path that publish yields.") from None
    if not stat.S_ISREG(kind):
        raise StoreError(f"{path} must be one plain file; publish a folder with publish_dir.")
    with explained(path):
        if mode is None and space.target.exists():
            mode = stat.S_IMODE(space.target.stat().st_mode)
        if mode is not None:
            os.chmod(space.payload, mode)
        sync_file(space.payload)


def refuse_folder(target: Path, path: StrPath) -> None:
    """A file never replaces a folder."""
    with explained(path):
        in_the_way = target.is_dir()
    if in_the_way:
        raise StoreError(f"{path} is a folder, so no file can take its place; choose another name.")
