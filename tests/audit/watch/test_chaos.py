"""`kill -9` of a watcher at any moment: the log verifies, every line of the file is in it once and is scored once.

make test-chaos kills 50 watchers; here it is a few.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.audit.watch.watching import event, in_order, jsonl, make, outside_events, watch, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.verify import examine

ROUNDS = 50 if "RIDGELINE_CHAOS" in os.environ else 5


def last_step(log: Path) -> int:
    """When a watcher last noted where its source is (ns)."""
    return max((p.stat().st_mtime_ns for p in (LedgerPaths(log).private / "positions").glob("*.json")), default=0)


def test_watchers_killed_at_any_moment_neither_lose_nor_double(tmp_path):
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as place:
        log, file, rng = make(Path(place) / "log"), Path(place) / "in.jsonl", random.Random(1)
        file.touch()
        verifier = Ledger.open(log).verifier
        script = Path(__file__).with_name("victim.py")
        breeder = subprocess.Popen(
            [sys.executable, script, log, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        total = size = grew = 0
        for _ in range(ROUNDS):
            breeder.stdin.write("go\n")
            breeder.stdin.flush()
            pid = int(breeder.stdout.readline())
            last_note, deadline = last_step(log), time.monotonic() + 30
            at_work = rng.random() < 0.3  # … or it must have done something first
            until = time.monotonic() + rng.uniform(0, 0.4)
            while time.monotonic() < until:
                write_events(file, total, total + 20)
                total += 20
                time.sleep(0.01)
                if not at_work and time.monotonic() < deadline:
                    at_work = last_step(log) != last_note
                    until = time.monotonic() + rng.uniform(0, 0.4)
            os.kill(pid, signal.SIGKILL)
            assert int(breeder.stdout.readline()) == -signal.SIGKILL, "the victim ended by itself"
            report = examine(log, verifier)
            assert report.ok, report.findings
            final_size = Ledger.open(log).size
            grew += final_size > size
            size = final_size
        breeder.stdin.close()
        breeder.wait(30)
        breeder.stdout.close()
        assert grew > 0, "every victim died before it did anything"
        watch(log, jsonl(file), batch=512)  # to the end, in peace
        assert [e["time"] for e in outside_events(log)] == [event(i)["time"] for i in range(total)]
        assert len(in_order(log)) == total
        assert examine(log, verifier).ok
