"""`ledger`: append events, prove, verify and open a log.

    ridgeline bench ledger --case stage=append,batch=1000,writers=1

stage    append    `writers` threads append `batch` events at a time; done when they are on the disk
         prove     an inclusion proof in a log of `entries`
         verify    every entry of a log against its signature; the peer is SQLite's integrity check
         open      open a log of `entries` and read its size

Files go to the current folder, or to the folder RIDGELINE_DISK; it should lie on the disk to measure. The record has
the time of an fsync there.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.audit import Ledger
from ridgeline.audit.ledger import encode, root_from_inclusion
from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement
from ridgeline.workloads._ledger_peers import CHEAP_NS, Event, SQLite, Store, fsync_ns, store

BASE: dict[str, Any] = {"stage": "append", "batch": 1000, "writers": 1, "entries": 0}
STAGES = ("append", "prove", "verify", "open")
EVENT_BYTES = 160
MANY = 16
APPENDS = 8  # of each writer in a step, so that starting the threads costs little
STAGED = 9  # calls of a stage alone
MOST = 300_000  # events in a log before a new one is created


class LedgerWorkload:
    name = "ledger"
    weight = 2.0

    @property
    def note(self) -> str:
        """What a reader must know about this disk."""
        note = (
            "Every append is on the disk when its time ends. The peers store events, but prove nothing: SQLite's "
            "integrity check finds damage, not tampering."
        )
        taken = _fsync_here(_disk())
        if taken < CHEAP_NS:
            note += (
                f" An fsync takes {taken / 1000:.0f} µs here, too little for a disk: a virtual disk or a cache "
                "answers, so the rates of small batches are those of this machine's software, not of a disk."
            )
        return note

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("cryptography"):
            return []
        if profile is Profile.QUICK:
            changes: list[dict[str, Any]] = [{"batch": n} for n in (1, 1000)]
            changes += [{"batch": 1, "writers": MANY}]
            changes += [{"stage": stage, "batch": 0, "entries": 100_000} for stage in STAGES[1:]]
        else:
            changes = [{"batch": n, "writers": w} for w in (1, MANY) for n in (1, 10, 100, 1000, 10_000)]
            changes += [{"stage": s, "batch": 0, "entries": n} for s in STAGES[1:] for n in (100_000, 1_000_000)]
        return [Case({**BASE, **change}, "cpu") for change in changes]

    def work(self, case: Case) -> Work:
        if case["stage"] in ("prove", "open"):
            unit = "proofs" if case["stage"] == "prove" else "logs"
            return Work(1, unit, bytes={"memory": 3 * 8192}, mix="read")
        events = case["entries"] if case["stage"] == "verify" else case["batch"] * case["writers"] * _appends(case)
        mix = "read" if case["stage"] == "verify" else "copy"
        return Work(events, "events", bytes={"memory": EVENT_BYTES * events}, mix=mix)

    def contenders(self, case: Case) -> Sequence[str]:
        peers = {"append": ("sqlite", "jsonl"), "verify": ("sqlite",), "open": ("sqlite",), "prove": ()}
        if case["stage"] not in peers:
            raise InputError(f"stage is '{case['stage']}'; there are: {', '.join(STAGES)}.")
        return [OURS, *peers[case["stage"]]]

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        folder = Path(tempfile.mkdtemp(dir=_disk(), prefix=".ledger-"))
        try:
            taken = fsync_ns(folder)
            make = _append if case["stage"] == "append" else _ask
            step, result, reset, close = make(case, contender, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

        def leave() -> None:
            close()
            shutil.rmtree(folder, ignore_errors=True)

        def extras() -> dict[str, Any]:
            alone = contender == OURS and case["stage"] == "append" and case["writers"] == 1
            return {"fsync_ns": taken, **({"stages_ns": _stages(case["batch"], taken)} if alone else {})}

        return Steps(step, result, reset, leave, _settings(contender), extras)

    def check(self, case: Case, result: Callable[[], tuple[bool, str]]) -> Check:
        ok, note = result()
        return Check(ok, 0.0 if ok else 1.0, {}, note)


@cache
def _fsync_here(folder: str) -> float:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".ledger-") as place:
        return fsync_ns(Path(place))


StepFunctions = tuple[Callable[[], Any], Callable[[], Any], Callable[[], None], Callable[[], None]]


def _append(case: Case, contender: str, folder: Path) -> StepFunctions:
    batch, writers, appends = case["batch"], case["writers"], _appends(case)
    state: dict[str, Any] = {"count": 0, "fresh": 0}
    pieces: list[list[list[Event]]] = []

    def begin() -> None:
        state["fresh"] += 1
        log_folder = folder / str(state["fresh"])
        log_folder.mkdir()
        state["store"], state["count"] = store(contender, log_folder, writers), 0

    def end() -> None:
        state["store"].close()
        shutil.rmtree(folder / str(state["fresh"]))

    def reset() -> None:
        """Make new events; create a new log if this one is long."""
        if state["count"] > MOST:
            end()
            begin()
        start = time.time_ns()
        pieces[:] = [[[_event(start + k, w, a) for k in range(batch)] for a in range(appends)] for w in range(writers)]

    def append_all(writer: int) -> None:
        for events in pieces[writer]:
            state["store"].append(events)

    def step() -> None:
        if writers == 1:
            append_all(0)
        else:
            threads = [threading.Thread(target=append_all, args=(writer,)) for writer in range(writers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        state["count"] += batch * writers * appends

    def result() -> Callable[[], tuple[bool, str]]:
        event_store: Store = state["store"]
        expected = sorted(e["subject"] for by_append in pieces for events in by_append for e in events)
        size, subjects = event_store.last(len(expected))
        ok = size == state["count"] and sorted(subjects) == expected
        return lambda: (ok, "every event counted, and the last ones read back from the disk")

    begin()
    return step, result, reset, end


def _stages(batch: int, fsync: float) -> dict[str, list[float]]:
    """Measure the stages of an append that can run alone."""
    taken: list[float] = []
    for turn in range(STAGED):
        events = [_event(turn * batch + k, 0, turn) for k in range(batch)]
        start_ns = time.perf_counter_ns()
        encode(events)
        taken.append(float(time.perf_counter_ns() - start_ns))
    return {"encoding and hashing": taken, "fsync": [fsync]}


def _ask(case: Case, contender: str, folder: Path) -> StepFunctions:
    """Create a log of `entries` once, then prove, verify or open it in each step."""
    entries, stage = case["entries"], case["stage"]
    peer = store(contender, folder, 1)
    for start in range(0, entries, 5000):
        peer.append([_event(start + k, 0, 0) for k in range(min(5000, entries - start))])
    rng = random.Random(0)  # noqa: S311
    state: dict[str, Any] = {}
    path = folder / "log"
    ledger = None
    if contender == OURS:
        peer.close()
        ledger = Ledger.open(path)

    def step() -> None:
        if ledger is None:
            state["found"] = _sqlite(peer, stage, folder)
        elif stage == "prove":
            state["index"] = rng.randrange(entries)
            state["found"] = ledger.prove_inclusion(state["index"], entries)
        elif stage == "verify":
            state["found"] = ledger.verify(full=True).entries
        else:
            state["found"] = Ledger.open(path).size

    def result() -> Callable[[], tuple[bool, str]]:
        if ledger is not None and stage == "prove":
            leaf, proof = ledger.leaf(state["index"]), state["found"]
            ok = root_from_inclusion(state["index"], entries, leaf, proof) == ledger.checkpoint().root
            return lambda: (ok, "the proof leads to the signed root")
        ok = state["found"] == entries
        return lambda: (ok, "every entry accounted for")

    return step, result, lambda: None, (lambda: None) if contender == OURS else peer.close


def _sqlite(peer: Store, stage: str, folder: Path) -> int:
    if stage == "verify" and isinstance(peer, SQLite):
        return peer.last(0)[0] if peer.is_intact() else -1
    db = sqlite3.connect(folder / "events.db")
    (size,) = db.execute("select max(id) from events").fetchone()
    db.close()
    return int(size)


def _event(time_ns: int, writer: int, turn: int) -> Event:
    return {
        "time": time_ns,
        "source": "bench",
        "actor": "root",
        "action": "network.ovs.bridge.create",
        "subject": f"br{writer}.{turn}.{time_ns}",
        "attributes": {"ip": "192.168.1.1/24", "n": time_ns % 1000},
    }


def _appends(case: Case) -> int:
    """Return the number of appends of each writer in a step."""
    return 1 if case["writers"] == 1 else max(1, min(APPENDS, 1000 // max(1, case["batch"])))


def _settings(contender: str) -> dict[str, Any]:
    settings: dict[str, dict[str, Any]] = {
        OURS: {"commit": "journal, one fdatasync", "checkpoint_s": 1.0},
        "sqlite": {"version": sqlite3.sqlite_version, "journal_mode": "wal", "synchronous": "full"},
        "jsonl": {"commit": "write, fsync"},
    }
    return settings[contender]


def _disk() -> str:
    return os.environ.get("RIDGELINE_DISK", ".")


workload = LedgerWorkload()
