"""`kill -9` of a watcher at any moment: the log verifies, every line of the file is in it once and is scored once.

Here it is a few. `make test-chaos` kills 200 watchers of each kind; the slow lane kills 1,000 that only record, or as
many as RIDGELINE_CHAOS says.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.audit.watch.watching import event, in_order, jsonl, make, outside_events, watch, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.verify import examine

CHAOS = os.environ.get("RIDGELINE_CHAOS")


class Victims:
    """A log, the file that its watchers follow, and the process that forks them (victim.py)."""

    def __init__(self, folder: Path) -> None:
        self.log, self.file, self.written = make(folder / "log"), folder / "in.jsonl", 0
        self.file.touch()
        script = Path(__file__).with_name("victim.py")
        self._breeder = subprocess.Popen(
            [sys.executable, script, self.log, self.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, kind: str) -> int:
        self._breeder.stdin.write(f"{kind}\n")
        self._breeder.stdin.flush()
        return int(self._breeder.stdout.readline())

    def write(self, count: int) -> None:
        write_events(self.file, self.written, self.written + count)
        self.written += count

    def last_commit(self) -> int:
        """When the log was last appended to (ns)."""
        journals = (LedgerPaths(self.log).journal(k) for k in range(2))
        return max((path.stat().st_mtime_ns for path in journals if path.exists()), default=0)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert int(self._breeder.stdout.readline()) == -signal.SIGKILL, "the victim ended by itself"

    def close(self) -> None:
        self._breeder.stdin.close()
        self._breeder.wait(30)
        self._breeder.stdout.close()


@contextmanager
def victims(folder: Path) -> Iterator[Victims]:
    with TemporaryDirectory(dir=folder) as place:
        alive = Victims(Path(place))
        try:
            yield alive
        finally:
            alive.close()


def test_watchers_killed_at_any_moment_neither_lose_nor_double(tmp_path):
    shared = Path("/dev/shm")
    with victims(shared if os.access(shared, os.W_OK) else tmp_path) as alive:
        log, rng = alive.log, random.Random(1)
        verifier = Ledger.open(log).verifier
        size = grew = 0
        for _ in range(50 if CHAOS else 5):
            pid = alive.start("score")
            last_note, deadline = alive.last_commit(), time.monotonic() + 30
            at_work = rng.random() < 0.3  # … or it must have done something first
            until = time.monotonic() + rng.uniform(0, 0.4)
            while time.monotonic() < until:
                alive.write(20)
                time.sleep(0.01)
                if not at_work and time.monotonic() < deadline:
                    at_work = alive.last_commit() != last_note
                    until = time.monotonic() + rng.uniform(0, 0.4)
            alive.kill(pid)
            report = examine(log, verifier)
            assert report.ok, report.findings
            final_size = Ledger.open(log).size
            grew += final_size > size
            size = final_size
        assert grew > 0, "every victim died before it did anything"
        watch(log, jsonl(alive.file), batch=512)  # to the end, in peace
        assert [e["time"] for e in outside_events(log)] == [event(i)["time"] for i in range(alive.written)]
        assert len(in_order(log)) == alive.written
        assert examine(log, verifier).ok


@pytest.mark.slow  # a thousand processes
def test_a_thousand_kills_during_appends_neither_lose_nor_double_a_line(tmp_path):
    with victims(tmp_path) as alive:  # on a disk: the time of a sync is the moment to be killed in
        rng, grew = random.Random(2), 0
        for _ in range(int(CHAOS or 1_000)):
            before, pid = alive.last_commit(), alive.start("record")
            deadline = time.monotonic() + 30
            while alive.last_commit() == before and time.monotonic() < deadline:
                alive.write(5)
                time.sleep(0.001)
            until = time.monotonic() + rng.uniform(0, 0.06)
            while time.monotonic() < until:
                alive.write(rng.choice((1, 5, 40)))
                time.sleep(rng.choice((0, 0.002)))
            alive.kill(pid)
            grew += alive.last_commit() != before
        assert grew > 0.9 * int(CHAOS or 1_000)
        watch(alive.log, jsonl(alive.file), score=False)
        times = [e["time"] for e in outside_events(alive.log)]
        doubled, lost = len(times) - len(set(times)), alive.written - len(set(times))
        assert (doubled, lost) == (0, 0), f"of {alive.written:,} lines"
        assert times == [event(i)["time"] for i in range(alive.written)]
        assert examine(alive.log, Ledger.open(alive.log).verifier).ok
