"""The target of a job: its parts, its rejects, and the manifest that lists what is done.

    TARGET/part-000000-3f….parquet    one part for each chunk; the name contains the hash of its bytes
    TARGET/rejects/part-000000-….jsonl
    TARGET/_ridgeline/job.json        what the job is; a target belongs to one job
    TARGET/_ridgeline/commits/…       one file for each commit of the running job
    TARGET/_ridgeline/manifest.json   all parts, once the job is complete

A part is written whole, then a commit lists it. A part without a commit does not count: the chunk is computed again,
and as the same rows give the same bytes, it gets the same name. One driver works on a target at a time: a lock on this
machine, a lease with a heartbeat in an object store.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ridgeline.bulk.sources import HIDDEN
from ridgeline.bulk.storage import LocalStorage, Storage, make_absolute, open_storage
from ridgeline.errors import InputError, Locked, StoreError
from ridgeline.store import get_owner, lock

JOB, MANIFEST, COMMITS = f"{HIDDEN}/job.json", f"{HIDDEN}/manifest.json", f"{HIDDEN}/commits"
LOCK, LEASE, WITHDRAWN = f"{HIDDEN}/lock", f"{HIDDEN}/driver.json", f"{HIDDEN}/withdrawn"
SHARDS_FOLDER = "shards"  # of the shards of an index
RUNS = "runs.json"  # what each run of the driver did
HEARTBEAT_S = 10.0
LEASE_S = 60.0  # without a heartbeat, after which the driver of another machine counts as dead
SETTLE_S = 1.0  # for the lease of a driver that started at the same moment


@dataclass(frozen=True)
class Part:
    """One finished chunk. `name` is None if no row of it is good."""

    chunk: int
    name: str | None
    rows: int
    bytes: int
    sha256: str
    rejects: int = 0
    reject_file: str | None = None
    computed: int = 0
    key: str = ""  # of the chunk: source, range, code, model


@dataclass(frozen=True)
class JobState:
    """What a target says about its job."""

    job: dict[str, Any]
    parts: dict[int, Part]
    complete: bool
    summary: dict[str, Any] = field(default_factory=dict)  # of a complete job


def make_job_id(kind: str, target: str) -> str:
    """Return the id of the job of a target.

    >>> make_job_id("embed", "s3://bucket/out")
    'embed-e67ce3fd'
    """
    return f"{kind}-{hashlib.sha256(make_absolute(target).encode()).hexdigest()[:8]}"


def read_state(storage: Storage) -> JobState | None:
    """Return the job of a target and its finished parts; None if the target has no job."""
    job = _read_json(storage, JOB)
    if job is None:
        return None
    manifest = _read_json(storage, MANIFEST)
    if manifest is not None and manifest["generation"] == job["generation"]:
        return JobState(job, {part["chunk"]: Part(**part) for part in manifest["parts"]}, True, manifest["summary"])
    prefix = f"{COMMITS}/{job['generation']:04}-"
    names = [file.name for file in storage.list() if file.name.startswith(prefix) and file.name.endswith(".json")]
    with ThreadPoolExecutor(16) as threads:
        commits = list(threads.map(lambda name: _read_json(storage, name), names))
    parts = [Part(**part) for commit in commits for part in (commit or {}).get("parts", ())]
    return JobState(job, {part.chunk: part for part in parts}, complete=False)


def read_manifest_parts(storage: Storage) -> dict[int, Part]:
    """Return the parts of the last complete generation."""
    manifest = _read_json(storage, MANIFEST)
    return {part["chunk"]: Part(**part) for part in manifest["parts"]} if manifest else {}


def read_summary(storage: Storage) -> dict[str, Any]:
    """Return what the manifest says about the whole target."""
    return dict((_read_json(storage, MANIFEST) or {}).get("summary", {}))


def find_driver(target: str) -> str | None:
    """Return the process that works on a target now; None if it is free."""
    storage = open_storage(target)
    if storage.local is not None:
        if storage.local.is_file():
            raise InputError(f"the target '{target}' is a file; give a folder.")
        owner = get_owner(storage.local / LOCK)
        return None if owner is None else str(owner)
    lease = _read_json(storage, LEASE)
    return _name_holder(lease) if lease and _is_alive(lease) else None


def refuse_second_driver(target: str) -> None:
    """Raise Locked if another driver works on a target."""
    if driver := find_driver(target):
        raise Locked(f"another job works on '{target}': {driver}; wait for it to end, or stop it.")


class Target(AbstractContextManager["Target"]):
    """The target of one job, held by this driver inside the `with` block."""

    def __init__(self, url: str) -> None:
        self.url = make_absolute(url)
        self.storage = open_storage(self.url)
        self._commits = 0
        self._generation = 0
        self._created = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._refuse_foreign()
        local = self.storage.local
        if local is not None:
            self._created = not local.exists()
            try:
                (local / HIDDEN).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"the target '{self.url}' cannot be created: {error.strerror}; choose another."
                ) from error
            try:
                self._stack.enter_context(lock(local / LOCK))
            except Locked as error:
                raise Locked(f"another job works on '{self.url}': {error}") from error
        else:
            self._stack.enter_context(_hold_lease(self.storage))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        local = self.storage.local
        if kind is None or not self._created or local is None:
            return
        if not (local / MANIFEST).exists() and not any((local / COMMITS).glob("*")):
            shutil.rmtree(local, ignore_errors=True)  # nothing is done, so nothing is left behind

    @property
    def generation(self) -> int:
        """1 for the first run of a job to its end, one more for each update."""
        return self._generation

    def state(self) -> JobState | None:
        """Return the job of the target and its finished parts."""
        state = read_state(self.storage)
        if state is not None:
            self._generation = int(state.job["generation"])
            self._commits = len(state.parts)
        return state

    def begin(self, job: Mapping[str, Any]) -> None:
        """Write what the job is; commits of another generation no longer count."""
        self._generation, self._commits = int(job["generation"]), 0
        self._delete(COMMITS)
        self._write_json(JOB, dict(job))

    def commit(self, parts: Sequence[Part]) -> None:
        """List finished parts in the manifest, in one step."""
        names = "-".join(str(part.chunk) for part in parts[:1])
        self._write_json(f"{COMMITS}/{self._generation:04}-{int(names):08}.json", {"parts": [asdict(p) for p in parts]})

    def finish(self, parts: Mapping[int, Part], summary: Mapping[str, Any], *, keep_parts: bool = True) -> None:
        """Write the complete manifest in one step, then remove files that it does not list."""
        listed = [asdict(parts[number]) for number in sorted(parts)]
        self._write_json(MANIFEST, {"generation": self._generation, "parts": listed, "summary": dict(summary)})
        self.remove_unlisted(parts, keep_parts=keep_parts)

    def remove_unlisted(self, parts: Mapping[int, Part], *, keep_parts: bool = True) -> None:
        """Remove files that the complete manifest does not list: old parts, commits, what killed writers left.

        A driver that was killed after the manifest was written has not done it. Its old parts must not stay: readers
        take every part that is there.
        """
        names = {part.name for part in parts.values() if keep_parts}
        names |= {part.reject_file for part in parts.values()}
        # A Delta table calls its own files part-…, so there only the job's folder is cleaned.
        prefixes = (f"{HIDDEN}/parts/", "rejects/part-", *(["part-"] if keep_parts else []))
        for file in self.storage.list():
            orphan = file.name.startswith((*prefixes, f"{WITHDRAWN}/")) and file.name not in names
            if file.name.startswith(f"{SHARDS_FOLDER}/"):
                orphan = "/".join(file.name.split("/")[:2]) not in names
            if orphan or file.name.startswith(f"{COMMITS}/"):
                self.storage.delete(file.name)
        local = self.storage.local
        if local is not None:
            writers = ((local, ".part-*.tmp"), (local / "rejects", ".part-*.tmp"), (local / HIDDEN, "**/.*.tmp"))
            for leftover in [path for folder, pattern in writers for path in folder.glob(pattern)]:  # of killed writers
                shutil.rmtree(leftover, ignore_errors=True)
            for folder in (COMMITS, WITHDRAWN, f"{HIDDEN}/parts"):
                with suppress(OSError):
                    (local / folder).rmdir()
            shutil.rmtree(local / HIDDEN / "building", ignore_errors=True)  # of shards
            for shard in (local / SHARDS_FOLDER).glob("*"):
                if f"{SHARDS_FOLDER}/{shard.name}" not in names:
                    shutil.rmtree(shard, ignore_errors=True)

    def withdraw(self, parts: Mapping[int, Part]) -> None:
        """Move parts out of sight: the job stopped with an error, and what is there must not look finished.

        Parts that no commit lists go as well; those of the finished generation stay.
        """
        if all(part.name is None or "/" in part.name for part in parts.values()):
            return  # parts of a table or an index, which users do not read
        finished = {part.name for part in read_manifest_parts(self.storage).values()}
        for file in self.storage.list():
            if file.name.startswith("part-") and file.name not in finished:
                with suppress(StoreError):
                    self.storage.move(file.name, f"{WITHDRAWN}/{file.name}")

    def restore(self) -> None:
        """Bring withdrawn parts back: the job goes on."""
        for file in self.storage.list():
            if file.name.startswith(f"{WITHDRAWN}/"):
                self.storage.move(file.name, file.name.rpartition("/")[2])

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file of the job."""
        self._write_json(f"{HIDDEN}/{name}", content)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a file of the job."""
        return _read_json(self.storage, f"{HIDDEN}/{name}")

    def _refuse_foreign(self) -> None:
        """Refuse a target with files that no job wrote."""
        local = self.storage.local
        if local is not None and (not local.is_dir() or (local / JOB).is_file()):
            return
        if local is not None:
            foreign = [name for name in os.listdir(local) if name != HIDDEN]
        elif _read_json(self.storage, JOB) is not None:
            return
        else:
            foreign = [file.name for file in self.storage.list() if not file.name.startswith(f"{HIDDEN}/")]
        if foreign:
            raise InputError(f"the target '{self.url}' holds files of no job ({foreign[0]}); choose an empty one.")

    def _delete(self, folder: str) -> None:
        for file in self.storage.list():
            if file.name.startswith(f"{folder}/"):
                self.storage.delete(file.name)

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.storage.write(name, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode("ascii"))


def _read_json(storage: Storage, name: str) -> dict[str, Any] | None:
    data = storage.read(name)
    if data is None:
        return None
    try:
        content = json.loads(data)
    except ValueError as error:
        raise StoreError(f"{storage.label(name)} is damaged; remove the target and start the job anew.") from error
    return content if isinstance(content, dict) else None


@contextmanager
def _hold_lease(storage: Storage) -> Iterator[None]:
    """Hold the lease of a target in an object store; an object store has no lock that ends with its owner."""
    lease = _read_json(storage, LEASE)
    if lease is not None and _is_alive(lease):
        raise Locked(f"another job works on '{storage.url}': {_name_holder(lease)}; wait for it to end, or stop it.")
    token = os.urandom(8).hex()
    mine = {
        "token": token,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": _read_boot_id(),
        "command": " ".join(sys.argv)[:200],
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }

    def write() -> None:
        storage.write(LEASE, json.dumps({**mine, "beat": time.time()}).encode())

    write()
    time.sleep(SETTLE_S)
    current = _read_json(storage, LEASE)
    if current is None or current["token"] != token:  # of two drivers that start together the later writer wins
        raise Locked(f"another job works on '{storage.url}': {_name_holder(current or {})}; wait for it to end.")
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            with suppress(StoreError, InputError):
                write()

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(StoreError, InputError):
            storage.delete(LEASE)


def _is_alive(lease: Mapping[str, Any]) -> bool:
    """Whether the driver of a lease lives: on this machine its process shows it, elsewhere its heartbeat."""
    if lease.get("host") == socket.gethostname() and lease.get("boot") == _read_boot_id():
        return lease.get("pid") != os.getpid() and Path(f"/proc/{lease.get('pid')}").exists()
    return time.time() - float(lease.get("beat", 0)) < LEASE_S


def _name_holder(lease: Mapping[str, Any]) -> str:
    return f"process {lease.get('pid')} on {lease.get('host')} since {lease.get('since')} ({lease.get('command')})"


def _read_boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def is_local(storage: Storage) -> bool:
    """Whether a storage is a folder of this machine."""
    return isinstance(storage, LocalStorage)
