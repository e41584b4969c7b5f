"""Real journals in a folder, written by systemd-journal-remote from the export format; systemd need not run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

BOOTS = [f"{k:032x}" for k in (0xD1, 0xE1, 0xF1)]
MACHINE = f"{0xA1:032x}"
START_US = 1_700_000_000_000_000  # µs
_PLACES = ("/lib/systemd", "/usr/lib/systemd")


def writer() -> str:
    """The program, or the test is skipped."""
    if shutil.which("journalctl") is None:
        pytest.skip("there is no journalctl (scripts/packages tests brings it)")
    program = shutil.which("systemd-journal-remote", path=os.pathsep.join([os.environ["PATH"], *_PLACES]))
    if program is None:
        pytest.skip("there is no systemd-journal-remote (scripts/packages tests brings it)")
    return program


def entry(number: int, boot: int = 0, **fields: object) -> list[tuple[str, bytes]]:
    """Entry `number`, a microsecond after the one before it; a list gives a field several times."""
    words: dict[str, object] = {
        "__REALTIME_TIMESTAMP": START_US + number,
        "__MONOTONIC_TIMESTAMP": 1_000 + number,
        "_BOOT_ID": BOOTS[boot],
        "_MACHINE_ID": MACHINE,
        "MESSAGE": f"m{number}",
        "SYSLOG_IDENTIFIER": "sshd",
        "_UID": 0,
        **fields,
    }
    pairs = [(name, v) for name, value in words.items() for v in (value if isinstance(value, list) else [value])]
    return [(name, v if isinstance(v, bytes) else str(v).encode()) for name, v in pairs]


def export_entry(entries: Sequence[Sequence[tuple[str, bytes]]]) -> bytes:
    """systemd's export format: a name and a value; behind a length where the value is no plain line."""
    out = bytearray()
    for one in entries:
        for name, value in one:
            if b"\n" in value or not value.isascii():
                out += name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
            else:
                out += name.encode() + b"=" + value + b"\n"
        out += b"\n"
    return bytes(out)


def write(file: Path, entries: Sequence[Sequence[tuple[str, bytes]]]) -> None:
    """Append to a journal, or begin one."""
    words = [writer(), f"--output={file}", "--split-mode=none", "-"]
    done = subprocess.run(words, input=export_entry(entries), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"writing {len(entries)} entries".encode() in done.stderr, done.stderr


def messages(batches: Sequence) -> list[str]:
    return [event["attributes"]["message"] for batch in batches for event in batch.events]


def gaps(batches: Sequence) -> list[str]:
    return [sentence for batch in batches for sentence in batch.gaps]


def last(batches: Sequence) -> Mapping[str, str]:
    return [batch.position for batch in batches if batch.position is not None][-1]
