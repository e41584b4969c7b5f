"""The contenders of the ledger workload: our ledger, SQLite, and a file of lines, behind one interface, each tuned.

`append(events)` may be called from any thread and returns when the events are on the disk. SQLite has one connection
that writes, in WAL mode with synchronous=FULL, as its documentation advises for durability; with several callers one
thread collects the waiting appends and commits them together. The file of lines does the same with one fsync.
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
CHEAP_NS = 300_000  # no disk has a faster fsync: a cache answers, with a battery or without


class Store(Protocol):
    """The interface of the contenders."""

    def append(self, events: list[Event]) -> None: ...
    def last(self, count: int) -> tuple[int, list[str]]:
        """Return the number of events, and the subjects of the last ones, read again from the disk."""

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
    """Collects the appends of several threads; one thread commits them together."""

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

    def is_intact(self) -> bool:
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
    """Return the median time of an fsync of an existing block in this folder, in nanoseconds."""
    path = folder / "fsync"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(4096), 0)
        os.fsync(fd)
        times_ns = []
        for k in range(rounds):
            os.pwrite(fd, bytes([k]) * 4096, 0)
            start_ns = time.perf_counter_ns()
            os.fsync(fd)
            times_ns.append(time.perf_counter_ns() - start_ns)
    finally:
        os.close(fd)
        path.unlink()
    return float(median(times_ns))


def _lines(events: list[Event]) -> list[str]:
    return [json.dumps(event, sort_keys=True, separators=(",", ":")) for event in events]
