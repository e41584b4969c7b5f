"""A full disk: one sentence, no partial append, and the log continues once space is free."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.audit.conftest import cli, event, events

from ridgeline.audit import Ledger
from ridgeline.errors import StoreError


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)  # a ledger that was closed or only read holds nothing open


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def append_for_ever(ledger: Ledger) -> None:
    while True:
        ledger.append(events(ledger.size, ledger.size + 50))


def test_an_append_that_does_not_fit_is_refused_and_the_log_stays_whole(small_disk):
    with Ledger.create(small_disk / "log", origin="a", checkpoint_s=3600) as ledger:
        ledger.append(events(0, 100))
        ledger.checkpoint()
        filler = fill(small_disk)
        with pytest.raises(StoreError, match="the disk is full"):
            ledger.append([event(100 + k) | {"attributes": {"pad": "x" * 1000}} for k in range(500)])
        assert ledger.size == 100
        ledger.verify()
        filler.unlink()
        ledger.append(events(100, 120))
        assert ledger.size == 120
    assert Ledger.open(small_disk / "log").verify().entries == 120


def test_a_checkpoint_that_does_not_fit_is_made_later_and_nothing_is_lost(small_disk):
    ledger = Ledger.create(small_disk / "log", origin="a", checkpoint_s=3600)
    ledger.append(events(0, 300))
    filler = fill(small_disk)
    with pytest.raises(StoreError, match="the disk is full"):
        ledger.checkpoint()
    assert Ledger.open(small_disk / "log").checkpoint().size == 0, "readers still see the last whole one"
    filler.unlink()
    assert ledger.checkpoint().size == 300
    ledger.close()
    assert Ledger.open(small_disk / "log").verify().entries == 300


def test_the_command_says_so_with_exit_2(small_disk):
    with Ledger.create(small_disk / "log", origin="a"):
        pass
    fill(small_disk)
    line = '{"source":"x","action":"a","subject":"' + "y" * 4000 + '"}\n'
    done = cli("audit", "append", small_disk / "log", stdin=line * 500)
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert cli("audit", "verify", small_disk / "log").returncode == 0


def test_a_log_on_a_full_disk_can_be_read_and_continues_after_space_is_freed(small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(650_000))
    ledger = Ledger.create(small_disk / "log", origin="a", checkpoint_s=0.01)
    with pytest.raises(StoreError, match="the disk is full"):
        append_for_ever(ledger)
    count = ledger.size
    with suppress(StoreError):
        ledger.close()
    assert count > 300
    signed = Ledger.open(small_disk / "log")
    assert signed.size <= count
    signed.verify()
    filler.unlink()
    with Ledger.open(small_disk / "log") as again:
        assert again.size == count, "all that was acknowledged is there"
        assert again.verify().entries == count
