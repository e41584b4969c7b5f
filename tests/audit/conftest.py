"""Shared by the tests of the ledger."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.audit import Ledger

BASE = 1_700_000_000_000_000_000


def event(i: int) -> dict:
    return {
        "time": BASE + i,
        "source": "test",
        "actor": "root",
        "action": "network.ovs.bridge.create",
        "subject": f"br{i}",
        "attributes": {"ip": "192.168.1.1/24", "n": i},
    }


def events(start: int, end: int) -> list[dict]:
    return [event(i) for i in range(start, end)]


def cli(*words: object, stdin: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "ridgeline", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def cli_json(*words: object, stdin: str = "") -> dict:
    done = cli(*words, "--json", stdin=stdin)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def note_checkpoint(log: Path) -> None:
    """Make the machine forget what it noted: its note becomes the current checkpoint."""
    shutil.copy(log / "checkpoint", log.with_name(log.name + ".private") / "published")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 700 events, closed."""
    with Ledger.create(tmp_path / "log", origin="example.test/log") as ledger:
        ledger.append(events(0, 700))
    return tmp_path / "log"
