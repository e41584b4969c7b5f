"""Long jobs in numbered chunks: what is done stays done, and a restart does only the rest.

    with ChunkSet("vectors.chunks", key={"model": "MiniLM", "rows": 10_000}, total=40) as chunks:
        for number in chunks.missing():
            chunks.put(number, encode(number))
        chunks.finish("vectors.bin")

Each chunk is published under a name that carries its SHA-256, so chunk and checksum arrive in the same step
and a chunk that was damaged later is simply missing again. The folder belongs to one job, known by its `key`,
and to one process at a time; workers forked by that process may put chunks too.
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
from ridgeline.store.disk import StrPath, explained, explained_within, sync_folder, sync_tree
from ridgeline.store.files import publish, seal
from ridgeline.store.folders import discard_dir, publish_dir
from ridgeline.store.locks import lock
from ridgeline.store.manifest import plain, sha256_of
from ridgeline.store.workspace import resolve, workspace

_JOB = "job.json"
_LOCK = "lock"
_NAME = re.compile(r"(\d{8,})-([0-9a-f]{64})(\..*)?")

Join = Callable[[Sequence[Path], Path], None]


def concatenate(parts: Sequence[Path], out: Path) -> None:
    """Join chunks by writing their bytes one after the other."""
    with out.open("wb") as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, 1024 * 1024)


class ChunkSet:
    """The chunks of one job in the folder `path`; open while it is a context."""

    def __init__(
        self,
        path: StrPath,
        *,
        key: str | Mapping[str, Any],
        total: int | None = None,
        suffix: str = "",
        anew: bool = False,
        cure: str = "remove the folder",
    ) -> None:
        """Name the job; nothing is touched before the context opens.

        `key`: the settings that make a chunk what it is; from a mapping, a refusal can say which differ.
        `total`: how many chunks there will be, if that is known.
        `suffix`: the ending of the chunk files, for writers that look at it (".npy").
        `anew`: forget the chunks that are there, this job's or another's, unless a process works on them.
        `cure`: what a user does who wants that.
        """
        if total is not None and total < 0:
            raise InputError(f"a job cannot have {total} chunks; give 0 or more.")
        if suffix and (suffix[0] != "." or "/" in suffix):
            raise InputError(f"the suffix '{suffix}' must begin with a dot and hold no slash, like '.npy'.")
        self.path = Path(os.path.abspath(path))  # the job may change its directory
        self.total = total
        self._suffix, self._anew, self._cure = suffix, anew, cure
        self._settings = plain({"key": key} if isinstance(key, str) else key, "the key")
        self._files: dict[int, set[str]] = {}  # names seen per number; more than one only after damage
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._stack: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise StoreError(f"{self.path} is open already; open a chunk set once.")
        folder = resolve(self.path)
        with explained(self.path), ExitStack() as stack:
            if not (folder / _JOB).exists():
                self._begin(folder)
            stack.enter_context(lock(folder / _LOCK))
            self._claim(folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            if kind is not None and not self._names():  # it failed before anything was worth keeping
                discard_dir(self.path)
            self._stack.close()
            self._stack = None

    def done(self) -> list[int]:
        """The numbers of the chunks that are there and undamaged, in order."""
        return sorted(self._good())

    def missing(self) -> list[int]:
        """The numbers of the chunks still to be made, in order; damaged ones among them."""
        if self.total is None:
            raise InputError(f"{self.path} was opened without a total, so none can be missing; give total=.")
        good = self._good()
        return [number for number in range(self.total) if number not in good]

    def put(self, number: int, data: bytes | memoryview) -> None:
        """Publish one chunk from memory."""
        with self.writing(number) as tmp:
            tmp.write_bytes(data)

    @contextmanager
    def writing(self, number: int) -> Iterator[Path]:
        """Yield a path to write chunk `number` to; it is published when the block ends well."""
        self._require_open()
        if number < 0 or (self.total is not None and number >= self.total):
            limit = "" if self.total is None else f" and below {self.total}"
            raise InputError(f"{self.path} has no chunk {number}; numbers are 0 or more{limit}.")
        shown = self.path / f"{number:08}{self._suffix}"
        with workspace(shown) as space:
            with explained_within(space.folder, shown):
                yield space.payload
            if not space.ours:
                return
            seal(space, shown)
            with explained(shown):
                folder = space.target.parent
                name = f"{number:08}-{sha256_of(space.payload)}{self._suffix}"
                os.replace(space.payload, folder / name)
                sync_folder(folder)
                for earlier in self._files.get(number, set()) - {name}:  # damaged, or now made again
                    (folder / earlier).unlink(missing_ok=True)
                self._files[number] = {name}

    def read(self, number: int) -> bytes:
        """The bytes of one chunk, checked."""
        return self.file(number).read_bytes()

    def file(self, number: int) -> Path:
        """The file of one chunk, checked."""
        self._require_open()
        if number not in self._files:
            self._scan()
        found = self._whole(number)
        if found is None:
            raise StoreError(f"chunk {number} of {self.path} is missing or damaged; make it again.")
        return found

    def finish(
        self,
        target: StrPath,
        join: Join = concatenate,
        *,
        directory: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Check every chunk anew, `join(files, tmp)` them, publish the result as `target`, remove the chunks.

        With `directory`, `tmp` is an empty folder, published with a manifest that carries `meta`. A crash
        before the end leaves the chunks in place, and finishing again gives the same target.
        """
        if meta is not None and not directory:
            raise InputError("meta belongs in a manifest, and only a folder has one; give directory=True.")
        if resolve(self.path) in resolve(target).parents:
            raise InputError(f"{target} lies among the chunks, which finishing removes; choose another place.")
        self._checked.clear()  # trust nothing that was looked at hours ago
        good = self._good()
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

    def _good(self) -> dict[int, Path]:
        self._require_open()
        self._scan()
        found = ((number, self._whole(number)) for number in self._files)
        return {number: path for number, path in found if path is not None}

    def _scan(self) -> None:
        self._files = {}
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match is not None and (match[3] or "") == self._suffix:
                self._files.setdefault(int(match[1]), set()).add(name)

    def _names(self) -> list[str]:
        """Files that hold a chunk, whole or damaged."""
        with explained(self.path):
            return [name for name in os.listdir(self.path) if _NAME.fullmatch(name)]

    def _whole(self, number: int) -> Path | None:
        for name in sorted(self._files.get(number, ())):
            path = self.path / name
            try:
                state = path.stat()
                # Hashed once per opening, and again if the file was touched since.
                seen = (state.st_ino, state.st_size, state.st_mtime_ns)
                if self._checked.get(name) != seen:
                    if f"-{sha256_of(path)}" not in name:
                        continue
                    self._checked[name] = seen
            except OSError:
                continue  # unreadable is damaged: it can be made again
            return path
        return None

    def _begin(self, folder: Path) -> None:
        """Make the folder with its job file in one step, so that one without is never ours."""
        with workspace(self.path) as space:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise StoreError(f"{self.path} is there but holds no chunks of a job; choose another name.")
            space.payload.mkdir()
            (space.payload / _JOB).write_text(self._told(), encoding="ascii")
            sync_tree(space.payload)
            try:
                os.rename(space.payload, folder)
            except OSError:
                if not (folder / _JOB).exists():  # else another process was first, and its job file decides
                    raise
            sync_folder(folder.parent)

    def _claim(self, folder: Path) -> None:
        """The folder is this job's, or becomes so: where that is wanted, or where nothing would be lost by it."""
        there = self._names()
        changed = [] if self._anew else self._differing(folder / _JOB)
        if changed and there:
            raise StoreError(
                f"{self.path} belongs to another job ({'; '.join(changed)}); finish that one with its own "
                f"settings, or {self._cure}."
            )
        if self._anew or changed:
            for name in there:
                (folder / name).unlink(missing_ok=True)
            with publish(folder / _JOB) as tmp:
                tmp.write_text(self._told(), encoding="ascii")

    def _differing(self, file: Path) -> list[str]:
        """How the job there is another one."""
        try:
            there = json.loads(file.read_bytes())
            return [
                *_differences(dict(there["settings"]), self._settings),
                *_differences({"chunks": there["chunks"]}, {"chunks": self.total}),
                *_differences({"suffix": there["suffix"]}, {"suffix": self._suffix}),
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{file} is damaged; remove {self.path} and start the job anew.") from error

    def _told(self) -> str:
        job = {"settings": self._settings, "chunks": self.total, "suffix": self._suffix}
        return json.dumps(job, indent=1, sort_keys=True) + "\n"

    def _require_open(self) -> None:
        if self._stack is None:
            raise StoreError(f"the chunk set {self.path} is not open; use it inside 'with ChunkSet(...)'.")


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {_shown(there, name)} there, {_shown(here, name)} here"
        for name in sorted({*there, *here})
        if name not in there or name not in here or there[name] != here[name]
    ]


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "not set"
