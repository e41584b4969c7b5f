"""Where events can go: our ledger, SQLite as a log would use it, a file of lines. One interface, tuned each in its way.

`append(events)` returns when they are on the disk, from any thread. SQLite has one connection that writes: in WAL mode
with synchronous=FULL, as its documentation has it for durability; with several callers a thread of its own gathers what
waits and commits it together. The file of lines does the same with one fsync.
"""

from __future__ import annotations

import json
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ridgeline.audit import Ledger

Event = dict[str, Any]
CHEAP_NS = 300_000  # an fsync below this is no disk's own: a cache with a battery, or one that promises too much


class Store(Protocol):
    """What all of them can do."""

    def append(self, events: list[Event]) -> None: ...
    def last(self, count: int) -> tuple[int, list[str]]:
        """How many events there are, and the subjects of the last ones, read anew from the disk."""

    def close(self) -> None: ...


class Ours:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "log"
        self.ledger = Ledger.create(self._path, origin="bench.example/log")

    def append(self, events: list[Event]) -> None:
        self.ledger.append(events)

    def last(self, count: int) -> tuple[int, list[str]]:
        self.ledger.checkpoint()
        reader = Ledger.open(self._path)
        reader.verify(full=False)
        size = reader.size
        return size, [event["subject"] for event in reader.entries(max(0, size - count), size)]

    def close(self) -> None:
        self.ledger.close()


class _Gathered:
    """Appends of several threads, committed together by one."""

    def __init__(self, commit: Callable[[list[str]], None]) -> None:
        self._commit = commit
        self._queue: queue.SimpleQueue[tuple[list[str], threading.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def append(self, lines: list[str]) -> None:
        done = threading.Event()
        self._queue.put((lines, done))
        done.wait()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    self._queue.put(None)
                    break
                batch.append(more)
            self._commit([line for lines, _ in batch for line in lines])
            for _, done in batch:
                done.set()


class SQLite:
    def __init__(self, folder: Path, writers: int) -> None:
        self._path = folder / "events.db"
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=full")
        self._db.execute("create table events(id integer primary key, event text)")
        self._gathered = _Gathered(self._commit) if writers > 1 else None

    def append(self, events: list[Event]) -> None:
        lines = _lines(events)
        if self._gathered is not None:
            self._gathered.append(lines)
        else:
            self._commit(lines)

    def last(self, count: int) -> tuple[int, list[str]]:
        with sqlite3.connect(self._path) as db:
            (size,) = db.execute("select count(*) from events").fetchone()
            rows = db.execute("select event from events order by id desc limit ?", (count,)).fetchall()
        db.close()
        return size, [json.loads(row)["subject"] for (row,) in reversed(rows)]

    def whole(self) -> bool:
        return bool(self._db.execute("pragma integrity_check").fetchone() == ("ok",))

    def close(self) -> None:
        if self._gathered is not None:
            self._gathered.close()
        self._db.close()

    def _commit(self, lines: list[str]) -> None:
        self._db.execute("begin")
        self._db.executemany("insert into events(event) values(?)", [(line,) for line in lines])
        self._db.execute("commit")


class Lines:
    def __init__(self, folder: Path, writers: int) -> None:
        self._path = folder / "events.jsonl"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._gathered = _Gathered(self._commit) if writers > 1 else None

    def append(self, events: list[Event]) -> None:
        lines = _lines(events)
        if self._gathered is not None:
            self._gathered.append(lines)
        else:
            self._commit(lines)

    def last(self, count: int) -> tuple[int, list[str]]:
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return len(lines), [json.loads(line)["subject"] for line in lines[max(0, len(lines) - count) :]]

    def close(self) -> None:
        if self._gathered is not None:
            self._gathered.close()
        os.close(self._fd)

    def _commit(self, lines: list[str]) -> None:
        os.write(self._fd, ("\n".join(lines) + "\n").encode())
        os.fsync(self._fd)


def store(contender: str, folder: Path, writers: int) -> Store:
    if contender == "sqlite":
        return SQLite(folder, writers)
    return Lines(folder, writers) if contender == "jsonl" else Ours(folder)


def fsync_ns(folder: Path, rounds: int = 30) -> float:
    """What one fsync of a block that is there already takes here, in the median."""
    path = folder / "fsync"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(4096), 0)
        os.fsync(fd)
        found = []
        for k in range(rounds):
            os.pwrite(fd, bytes([k]) * 4096, 0)
            began = time.perf_counter_ns()
            os.fsync(fd)
            found.append(time.perf_counter_ns() - began)
    finally:
        os.close(fd)
        path.unlink()
    return float(median(found))


def _lines(events: list[Event]) -> list[str]:
    return [json.dumps(event, sort_keys=True, separators=(",", ":")) for event in events]
