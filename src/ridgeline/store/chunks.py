"""Long jobs in numbered chunks: a restart computes only the missing chunks.

    with ChunkSet("vectors.chunks", key={"model": "MiniLM", "rows": 10_000}, total=40) as chunks:
        for number in chunks.missing():
            chunks.put(number, encode(number))
        chunks.finish("vectors.bin")

The name of a chunk file contains its SHA-256, so chunk and checksum appear in the same step, and a chunk that is
damaged later counts as missing. The folder belongs to one job, identified by its `key`, and to one process at a time;
workers that this process forks may put chunks too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ridgeline.errors import InputError, StoreError
from ridgeline.store.disk import StrPath, explain_errors, explain_errors_within, sync_folder, sync_tree
from ridgeline.store.files import finalise, publish
from ridgeline.store.folders import discard_dir, publish_dir
from ridgeline.store.locks import lock
from ridgeline.store.manifest import hash_file, plain
from ridgeline.store.workspace import open_workspace, resolve

_JOB = "job.json"
_LOCK = "lock"
_NAME = re.compile(r"(\d{8,})-([0-9a-f]{64})(\..*)?")

Join = Callable[[Sequence[Path], Path], None]


def concatenate(parts: Sequence[Path], out: Path) -> None:
    """Join chunks by concatenating their bytes."""
    with out.open("wb") as output:
        for part in parts:
            with part.open("rb") as part_file:
                shutil.copyfileobj(part_file, output, 1024 * 1024)


class ChunkSet:
    """The chunks of one job in the folder `path`; use it as a context manager."""

    def __init__(
        self,
        path: StrPath,
        *,
        key: str | Mapping[str, Any],
        total: int | None = None,
        suffix: str = "",
        start_over: bool = False,
        cure: str = "remove the folder",
    ) -> None:
        """Describe the job; the folder is created when the context opens.

        `key`: the settings that determine the chunks; with a mapping, the error for another job names the differences.
        `total`: the number of chunks, if known.
        `suffix`: the ending of the chunk files, for writers that depend on it (".npy").
        `start_over`: remove existing chunks, of this or another job, unless a process works on them.
        `cure`: the words that tell a user how to start over.
        """
        if total is not None and total < 0:
            raise InputError(f"a job cannot have {total} chunks; give 0 or more.")
        if suffix and (suffix[0] != "." or "/" in suffix):
            raise InputError(f"the suffix '{suffix}' must begin with a dot and hold no slash, like '.npy'.")
        self.path = Path(os.path.abspath(path))  # absolute: the job may change its working directory
        self.total = total
        self._suffix, self._start_over, self._cure = suffix, start_over, cure
        self._settings = plain({"key": key} if isinstance(key, str) else key, "the key")
        self._files: dict[int, set[str]] = {}  # file names per number; several only after damage
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._stack: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise StoreError(f"{self.path} is open already; open a chunk set once.")
        folder = resolve(self.path)
        with explain_errors(self.path), ExitStack() as stack:
            if not (folder / _JOB).exists():
                self._create_folder(folder)
            stack.enter_context(lock(folder / _LOCK))
            self._claim_folder(folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            if kind is not None and not self._list_names():  # the job failed before its first chunk
                discard_dir(self.path)
            self._stack.close()
            self._stack = None

    def done(self) -> list[int]:
        """Return the numbers of the intact chunks, in order."""
        return sorted(self._find_intact_files())

    def missing(self) -> list[int]:
        """Return the numbers of the missing and damaged chunks, in order."""
        if self.total is None:
            raise InputError(f"{self.path} was opened without a total, so none can be missing; give total=.")
        good = self._find_intact_files()
        return [number for number in range(self.total) if number not in good]

    def put(self, number: int, data: bytes | memoryview) -> None:
        """Publish one chunk from memory."""
        with self.writing(number) as tmp:
            tmp.write_bytes(data)

    @contextmanager
    def writing(self, number: int) -> Iterator[Path]:
        """Yield a path to write chunk `number` to; it is published if the block succeeds."""
        self._require_open()
        if number < 0 or (self.total is not None and number >= self.total):
            limit = "" if self.total is None else f" and below {self.total}"
            raise InputError(f"{self.path} has no chunk {number}; numbers are 0 or more{limit}.")
        path = self.path / f"{number:08}{self._suffix}"
        with open_workspace(path) as space:
            with explain_errors_within(space.folder, path):
                yield space.payload
            if not space.ours:
                return
            finalise(space, path)
            with explain_errors(path):
                folder = space.target.parent
                name = f"{number:08}-{hash_file(space.payload)}{self._suffix}"
                os.replace(space.payload, folder / name)
                sync_folder(folder)
                for earlier in self._files.get(number, set()) - {name}:  # damaged, or replaced now
                    (folder / earlier).unlink(missing_ok=True)
                self._files[number] = {name}

    def read(self, number: int) -> bytes:
        """Return the bytes of one chunk after checking its hash."""
        return self.file(number).read_bytes()

    def file(self, number: int) -> Path:
        """Return the file of one chunk after checking its hash."""
        self._require_open()
        if number not in self._files:
            self._scan()
        path = self._find_intact_file(number)
        if path is None:
            raise StoreError(f"chunk {number} of {self.path} is missing or damaged; make it again.")
        return path

    def finish(
        self,
        target: StrPath,
        join: Join = concatenate,
        *,
        directory: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Check every chunk again, call `join(files, tmp)`, publish the result as `target`, remove the chunks.

        With `directory`, `tmp` is an empty folder, published with a manifest that holds `meta`. After a crash the
        chunks are still there, and finishing again gives the same target.
        """
        if meta is not None and not directory:
            raise InputError("meta belongs in a manifest, and only a folder has one; give directory=True.")
        if resolve(self.path) in resolve(target).parents:
            raise InputError(f"{target} lies among the chunks, which finishing removes; choose another place.")
        self._checked.clear()  # a check from hours ago does not count
        good = self._find_intact_files()
        count = self.total if self.total is not None else max(good, default=-1) + 1
        gaps = [number for number in range(count) if number not in good]
        if gaps:
            named = ", ".join(map(str, gaps[:5])) + (" …" if len(gaps) > 5 else "")
            raise StoreError(
                f"{self.path} lacks {len(gaps)} of {count} chunks ({named}); run the job again to make them."
            )
        files = [good[number] for number in range(count)]
        with publish_dir(target, meta) if directory else publish(target) as tmp:
            join(files, tmp)
        discard_dir(self.path)
        self.__exit__(None, None, None)

    def _find_intact_files(self) -> dict[int, Path]:
        self._require_open()
        self._scan()
        intact = ((number, self._find_intact_file(number)) for number in self._files)
        return {number: path for number, path in intact if path is not None}

    def _scan(self) -> None:
        self._files = {}
        for name in self._list_names():
            match = _NAME.fullmatch(name)
            if match is not None and (match[3] or "") == self._suffix:
                self._files.setdefault(int(match[1]), set()).add(name)

    def _list_names(self) -> list[str]:
        """Return the names of all chunk files, intact or damaged."""
        with explain_errors(self.path):
            return [name for name in os.listdir(self.path) if _NAME.fullmatch(name)]

    def _find_intact_file(self, number: int) -> Path | None:
        for name in sorted(self._files.get(number, ())):
            path = self.path / name
            try:
                state = path.stat()
                # Hash a file once per context, and again if it changed.
                fingerprint = (state.st_ino, state.st_size, state.st_mtime_ns)
                if self._checked.get(name) != fingerprint:
                    if f"-{hash_file(path)}" not in name:
                        continue
                    self._checked[name] = fingerprint
            except OSError:
                continue  # an unreadable chunk counts as damaged
            return path
        return None

    def _create_folder(self, folder: Path) -> None:
        """Create the folder with its job file in one step, so that a folder without one never belongs to a job."""
        with open_workspace(self.path) as space:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise StoreError(f"{self.path} is there but holds no chunks of a job; choose another name.")
            space.payload.mkdir()
            (space.payload / _JOB).write_text(self._format_job(), encoding="ascii")
            sync_tree(space.payload)
            try:
                os.rename(space.payload, folder)
            except OSError:
                if not (folder / _JOB).exists():  # else another process created it first
                    raise
            sync_folder(folder.parent)

    def _claim_folder(self, folder: Path) -> None:
        """Take over the folder: it is this job's, or `start_over` is set, or it holds no chunks."""
        names = self._list_names()
        changed = [] if self._start_over else self._list_differences(folder / _JOB)
        if changed and names:
            raise StoreError(
                f"{self.path} belongs to another job ({'; '.join(changed)}); finish that one with its own "
                f"settings, or {self._cure}."
            )
        if self._start_over or changed:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            with publish(folder / _JOB) as tmp:
                tmp.write_text(self._format_job(), encoding="ascii")

    def _list_differences(self, file: Path) -> list[str]:
        """List how the job of the folder differs from this one."""
        try:
            job = json.loads(file.read_bytes())
            return [
                *_compare_settings(dict(job["settings"]), self._settings),
                *_compare_settings({"chunks": job["chunks"]}, {"chunks": self.total}),
                *_compare_settings({"suffix": job["suffix"]}, {"suffix": self._suffix}),
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{file} is damaged; remove {self.path} and start the job anew.") from error

    def _format_job(self) -> str:
        job = {"settings": self._settings, "chunks": self.total, "suffix": self._suffix}
        return json.dumps(job, indent=1, sort_keys=True) + "\n"

    def _require_open(self) -> None:
        if self._stack is None:
            raise StoreError(f"the chunk set {self.path} is not open; use it inside 'with ChunkSet(...)'.")


def _compare_settings(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {_format_setting(existing, name)} there, {_format_setting(requested, name)} here"
        for name in sorted({*existing, *requested})
        if name not in existing or name not in requested or existing[name] != requested[name]
    ]


def _format_setting(settings: Mapping[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "not set"
