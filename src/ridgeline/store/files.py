"""Publish one file: readers see the complete old version or the complete new one.

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
from ridgeline.store.disk import StrPath, explain_errors, explain_errors_within, sync_file, sync_folder
from ridgeline.store.workspace import Workspace, open_workspace


@contextmanager
def publish(path: StrPath, *, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path; if the block succeeds, that file becomes `path` in one step and is on the disk.

    If the block raises, `path` does not change. The file gets `mode` if given (and is unreadable for others from its
    first byte), else the mode of the file it replaces, else the default of the umask. A symbolic link is followed.
    """
    with open_workspace(path, private=mode is not None) as space:
        refuse_folder(space.target, path)
        with explain_errors_within(space.folder, path):
            yield space.payload
        if space.ours:
            finalise(space, path, mode)
            refuse_folder(space.target, path)
            with explain_errors(path):
                os.replace(space.payload, space.target)
                sync_folder(space.target.parent)


def finalise(space: Workspace, path: StrPath, mode: int | None = None) -> None:
    """Set the mode of the payload and sync it; it must be one plain file."""
    try:
        kind = os.lstat(space.payload).st_mode
    except FileNotFoundError:
        raise StoreError(f"nothing was written for {path}; write to the path that publish yields.") from None
    if not stat.S_ISREG(kind):
        raise StoreError(f"{path} must be one plain file; publish a folder with publish_dir.")
    with explain_errors(path):
        if mode is None and space.target.exists():
            mode = stat.S_IMODE(space.target.stat().st_mode)
        if mode is not None:
            os.chmod(space.payload, mode)
        sync_file(space.payload)


def refuse_folder(target: Path, path: StrPath) -> None:
    """Raise `StoreError` if the target is a folder: a file never replaces a folder."""
    with explain_errors(path):
        is_folder = target.is_dir()
    if is_folder:
        raise StoreError(f"{path} is a folder, so no file can take its place; choose another name.")
