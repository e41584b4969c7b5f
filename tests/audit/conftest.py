"""Shared by the tests of the ledger."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from ridgeline.audit import Ledger
from ridgeline.cli import main

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
    """Run a command in this process: a new one takes half a second of CPU time to start."""
    command = [str(word) for word in words]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as files:
        streams = [files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
        streams[0].write(stdin)
        streams[0].seek(0)
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as exit_info:
            main(command)
        for stream in streams[1:]:
            stream.seek(0)
        return subprocess.CompletedProcess(command, exit_info.value.code or 0, *(s.read() for s in streams[1:]))


def cli_process(*words: object, stdin: str = "") -> subprocess.CompletedProcess:
    """Run a command in a process of its own."""
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
