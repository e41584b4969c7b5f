"""`kill -9` during append, checkpoint and prune: nothing acknowledged is lost, and the log always verifies.

make test-chaos kills 200 writers of each kind; here it is a few, and one at each call that changes the disk.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.audit.victim import event

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.ledger.verify import examine

ROUNDS = int(os.environ.get("RIDGELINE_CHAOS", "6"))


class Breeder:
    """The process that forks victims; see victim.py."""

    def __init__(self, path: Path) -> None:
        script = Path(__file__).with_name("victim.py")
        self._process = subprocess.Popen(
            [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill(self, mode: str, seed: int, seconds: float, after_first: bool) -> list[tuple[int, int]]:
        """Start a victim and kill it at some moment; (first, count) of what it acknowledged."""
        self._tell(f"run {mode} {seed}")
        pid, acks = int(self._hear("pid")[0]), []
        if after_first:
            acks.append(tuple(map(int, self._hear("ack"))))
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        return acks + self._until_dead()[0]

    def stop(self, number: int) -> tuple[list[tuple[int, int]], bool]:
        """What a victim acknowledged before it died at its N-th call, and whether it did die there."""
        self._tell(f"stop {number}")
        self._hear("pid")
        acks, status = self._until_dead()
        assert status in (0, -signal.SIGKILL), "the victim failed by itself"
        return acks, status != 0

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _tell(self, words: str) -> None:
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def _hear(self, word: str) -> list[str]:
        line = self._process.stdout.readline().split()
        assert line, "the breeder died"
        assert line[0] == word, line
        return line[1:]

    def _until_dead(self) -> tuple[list[tuple[int, int]], int]:
        acks = []
        while True:
            word, *rest = self._process.stdout.readline().split()
            if word == "dead":
                return acks, int(rest[0])
            acks.append((int(rest[0]), int(rest[1])))


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """In memory where that is possible: a kill tears no differently there, and fsync is free."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as place:
        yield Path(place)


def nothing_lost(log: Path, acks: list[tuple[int, int]]) -> int:
    """The log as the killed writer left it verifies, and so does it once opened; all that was acknowledged is there."""
    report = examine(log, Ledger.open(log).verifier)  # opening repairs …
    assert report.ok, report.findings
    opened = Ledger.open(log)
    pruned = max((row["to"] for row in read_history(LedgerPaths(log))), default=0)
    for first, number in acks:
        assert opened.size >= first + number, "acknowledged, and lost"
        for index in {first, first + number - 1}:
            if index >= pruned:
                entry = opened.entry(index)
                assert entry["subject"] == f"s{index}" or entry["source"] == "ridgeline.ledger"
    return opened.size


def make(log: Path) -> None:
    with Ledger.create(log, origin="chaos") as ledger:
        ledger.append([event(i) for i in range(10)])


@pytest.mark.parametrize("mode", ["append", "checkpoint", "prune"])
def test_writers_killed_at_any_moment_lose_nothing_acknowledged(folder, mode):
    log, rng = folder / "log", random.Random(mode)
    make(log)
    verifier = Ledger.open(log).verifier
    breeder = Breeder(log)
    size, written = 10, 0
    for number in range(ROUNDS):
        acks = breeder.kill(mode, number, rng.uniform(0, 0.06), rng.random() < 0.7)
        before = examine(log, verifier)  # … but what lies there is whole before, too
        assert before.ok, before.findings
        final_size = nothing_lost(log, acks)
        assert final_size >= size
        written += final_size - size
        size = final_size
        if size > 100_000:  # a fresh one, so that verifying stays quick
            breeder.close()
            log = folder / f"log{number}"
            make(log)
            verifier, size = Ledger.open(log).verifier, 10
            breeder = Breeder(log)
    breeder.close()
    assert written > 0


@pytest.mark.slow
def test_a_writer_killed_before_each_call_that_changes_the_disk_loses_nothing(folder):
    log = folder / "log"
    make(log)
    verifier = Ledger.open(log).verifier
    breeder = Breeder(log)
    died, number, step = True, 1, 1 if "RIDGELINE_CHAOS" in os.environ else 7
    while died:
        acks, died = breeder.stop(number)
        before = examine(log, verifier)
        assert before.ok, (number, before.findings)
        nothing_lost(log, acks)
        number += step
    breeder.close()
    assert number > 60, "too few calls were seen: the victim's list is out of date"
