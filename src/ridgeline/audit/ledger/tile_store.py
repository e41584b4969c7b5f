"""Write tiles and checkpoints into the served folder, and sync them.

A file appears under its name in one step, complete, but is not yet on the disk. `sync` brings all files to the disk
before the journal that could rebuild them is cleared. A crash before that costs only the rebuilding.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.tiles import WIDTH, Edge, parse_tile_path, tile_path
from ridgeline.native import entry_ends
from ridgeline.store import explain_errors, start_writing, sync_file, sync_folder


class TileStore:
    """The served folder of one log, for its writer."""

    def __init__(self, paths: LedgerPaths) -> None:
        self._paths = paths
        self._count = itertools.count()
        self._unsynced: dict[Path, None] = {}
        self._folders: dict[Path, None] = {}
        self._obsolete_partials: list[Path] = []  # folders of partial tiles whose full tile exists
        with explain_errors(paths.temporary):
            shutil.rmtree(paths.temporary, ignore_errors=True)  # left by a killed writer
            paths.temporary.mkdir()

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files; leave a file untouched if it has these bytes already."""
        for name, data in files.items():
            self._put(self._paths.log / name, data)
            parsed = parse_tile_path(name)
            if parsed is not None and parsed[2] == WIDTH:
                self._obsolete_partials.append(self._paths.log / (tile_path(parsed[0], parsed[1]) + ".p"))

    def put_checkpoint(self, text: str) -> None:
        """Write the checkpoint. Unlike tiles it cannot be rebuilt, so its bytes are synced before its name appears."""
        self._put(self._paths.checkpoint, text.encode(), sync=True)

    def repair_partials(self, edge: Edge) -> None:
        """Rewrite the partial tiles of earlier sizes, which may have lost their bytes in a power cut."""
        for name, data in edge.partials().items():
            level, number, width = parse_tile_path(name) or ("", 0, 0)
            with explain_errors(self._paths.log / name):
                names = os.listdir((self._paths.log / name).parent)
            for earlier in sorted(int(n) for n in names if n.isdecimal()):
                if 0 < earlier < width:
                    end = earlier * HASH if level != "entries" else int(entry_ends(data)[earlier - 1])
                    self._put(self._paths.log / tile_path(level, number, earlier), data[:end])

    def sync(self) -> None:
        """Bring all written files to the disk; then remove partial tiles whose full tile exists."""
        with explain_errors(self._paths.log):
            new_files = [path for path in self._unsynced if path.exists()]
            start_writing(new_files)  # start all writes first: then each sync waits little
            for path in new_files:
                sync_file(path)
            for folder in sorted(self._folders, key=lambda f: -len(f.parts)):
                if folder.is_dir():
                    sync_folder(folder)
            self.mark_synced()

    def mark_synced(self) -> None:
        """Note that all written files are on the disk; remove partial tiles whose full tile exists."""
        self._unsynced.clear()
        self._folders.clear()
        for folder in self._obsolete_partials:
            shutil.rmtree(folder, ignore_errors=True)
        self._obsolete_partials.clear()

    def remove(self, path: Path) -> None:
        """Remove a file, for retention."""
        with explain_errors(path), suppress(FileNotFoundError):
            path.unlink()
            self._folders[path.parent] = None

    def close(self) -> None:
        shutil.rmtree(self._paths.temporary, ignore_errors=True)

    def _put(self, path: Path, data: bytes, *, sync: bool = False) -> None:
        with explain_errors(path):
            if _same(path, data):
                self._unsynced[path] = None  # a killed writer may have written it without a sync
                self._note_folders(path)
                return
            tmp = self._paths.temporary / str(next(self._count))
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
            self._unsynced[path] = None
            self._note_folders(path)

    def _note_folders(self, path: Path) -> None:
        for folder in path.parents:
            if folder in self._folders:
                break
            self._folders[folder] = None
            if folder == self._paths.log:
                break


def _same(path: Path, data: bytes) -> bool:
    try:
        if path.stat().st_size != len(data):
            return False
        return path.read_bytes() == data
    except (FileNotFoundError, NotADirectoryError):
        return False
