"""Putting tiles and checkpoints where readers find them, and making them last.

A file appears whole, under its name, in one step; it is not yet on the disk then. `settle` brings everything there at
once, when the journal that could make it anew is to be emptied. Until then a crash costs nothing but that work.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.tiles import WIDTH, parse_tile_path, tile_path
from ridgeline.audit.ledger.tree import Edge
from ridgeline.native import entry_ends
from ridgeline.store import explained, start_writing, sync_file, sync_folder


class Shelf:
    """The served tree of one log, for its writer."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._count = itertools.count()
        self._unsettled: dict[Path, None] = {}
        self._folders: dict[Path, None] = {}
        self._outgrown: list[Path] = []  # folders of partial tiles whose full one has come
        with explained(home.temporary):
            shutil.rmtree(home.temporary, ignore_errors=True)  # a killed writer's
            home.temporary.mkdir()

    def put(self, files: Mapping[str, bytes]) -> None:
        """Make files appear; those that are there already, byte for byte, stay untouched."""
        for name, data in files.items():
            self._put(self._home.log / name, data)
            found = parse_tile_path(name)
            if found is not None and found[2] == WIDTH:
                self._outgrown.append(self._home.log / (tile_path(found[0], found[1]) + ".p"))

    def put_checkpoint(self, text: str) -> None:
        """Unlike tiles it cannot be made anew, so its bytes are on the disk before its name is."""
        self._put(self._home.checkpoint, text.encode(), sync=True)

    def mend(self, edge: Edge) -> None:
        """After a power cut: partial tiles of earlier sizes, which may have lost their bytes, as they were."""
        for name, data in edge.partials().items():
            level, number, width = parse_tile_path(name) or ("", 0, 0)
            with explained(self._home.log / name):
                names = os.listdir((self._home.log / name).parent)
            for earlier in sorted(int(n) for n in names if n.isdecimal()):
                if 0 < earlier < width:
                    end = earlier * HASH if level != "entries" else int(entry_ends(data)[earlier - 1])
                    self._put(self._home.log / tile_path(level, number, earlier), data[:end])

    def settle(self) -> None:
        """Wait until all that was put is on the disk; then remove the partial tiles it has outgrown."""
        with explained(self._home.log):
            paths = [path for path in self._unsettled if path.exists()]
            start_writing(paths)  # all at once: then each sync below finds little left to wait for
            for path in paths:
                sync_file(path)
            for folder in sorted(self._folders, key=lambda f: -len(f.parts)):
                if folder.is_dir():
                    sync_folder(folder)
            self._unsettled.clear()
            self._folders.clear()
            for folder in self._outgrown:
                shutil.rmtree(folder, ignore_errors=True)
            self._outgrown.clear()

    def remove(self, path: Path) -> None:
        """Take a file away, for retention."""
        with explained(path), suppress(FileNotFoundError):
            path.unlink()
            self._folders[path.parent] = None

    def close(self) -> None:
        shutil.rmtree(self._home.temporary, ignore_errors=True)

    def _put(self, path: Path, data: bytes, *, sync: bool = False) -> None:
        with explained(path):
            if _same(path, data):
                self._unsettled[path] = None  # it may have been put by a writer that died before it was on the disk
                self._note_folders(path)
                return
            tmp = self._home.temporary / str(next(self._count))
            fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                done = 0
                while done < len(data):
                    done += os.write(fd, data[done:] if done else data)
                if sync:
                    os.fsync(fd)
            except BaseException:
                os.close(fd)
                with suppress(OSError):
                    tmp.unlink()
                raise
            os.close(fd)
            try:
                os.rename(tmp, path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.rename(tmp, path)
            self._unsettled[path] = None
            self._note_folders(path)

    def _note_folders(self, path: Path) -> None:
        for folder in path.parents:
            if folder in self._folders:
                break
            self._folders[folder] = None
            if folder == self._home.log:
                break


def _same(path: Path, data: bytes) -> bool:
    try:
        if path.stat().st_size != len(data):
            return False
        return path.read_bytes() == data
    except (FileNotFoundError, NotADirectoryError):
        return False
