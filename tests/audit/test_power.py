"""A power cut loses unsynced bytes in any way, but no acknowledged entry."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from tests.audit.conftest import cli, event, events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.verify import examine
from ridgeline.errors import RidgelineError, StoreError

# Appends and signs several times, never settling, and is gone.
VICTIM = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from tests.audit.conftest import events
from ridgeline.audit import Ledger
ledger = Ledger.open(sys.argv[1], checkpoint_s=3600)
for end in (750, 760, 790, 1100, 1101, 1130):
    ledger.append(events(ledger.size, end))
    ledger.checkpoint()
ledger.append(events(1130, 1140))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with a log whose writer died, and the files that were on the disk before it."""
    folder = tmp_path_factory.mktemp("killed")
    with Ledger.create(folder / "log", origin="example.test/log") as ledger:
        ledger.append(events(0, 700))
    before = {p.relative_to(folder): p.read_bytes() for p in (folder / "log").rglob("*") if p.is_file()}
    command = [sys.executable, "-c", VICTIM, folder / "log", *sys.path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    return folder, before


@pytest.fixture
def cut(killed, tmp_path):
    """A log whose writer died after signing 1130 of 1140 entries, and the files that were on the disk before it."""
    folder, before = killed
    copy = tmp_path / "cut"
    subprocess.run(["cp", "-a", folder, copy], check=True)  # shutil copies no sockets
    return copy / "log", {copy / path: data for path, data in before.items()}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["empty", "gone", "half", "zeros", "random"])
@pytest.mark.parametrize("checkpoint", ["old", "new"])
def test_unsynced_tiles_are_rebuilt_from_the_journal(cut, loss, checkpoint):
    log, before = cut
    rng = random.Random(loss)
    lost = 0
    for path in [p for p in (log / "tile").rglob("*") if p.is_file() and p not in before]:
        data = path.read_bytes()
        kind = rng.choice(["empty", "gone", "half", "zeros", "kept"]) if loss == "random" else loss
        lost += kind != "kept"
        if kind == "gone":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "zeros": bytes(len(data))}.get(kind, data))
    assert lost > 5
    if checkpoint == "old":
        (log / "checkpoint").write_bytes(before[log / "checkpoint"])
    assert cli("audit", "verify", log).returncode == 0, "the command finishes what the dead one began"
    opened = Ledger.open(log)
    assert opened.size == 1140
    assert list(opened.entries(690, 1140)) == events(690, 1140)
    assert examine(log, opened.verifier).ok


def test_an_incomplete_last_record_is_dropped_and_earlier_ones_stay(cut):
    log, _ = cut
    live = max((LedgerPaths(log).journal(k) for k in range(2)), key=lambda p: p.stat().st_size)
    data = live.read_bytes()
    at = data.rindex(b'"br1139"')
    live.write_bytes(data[:at] + b"\0" * 8 + data[at + 8 :])
    with Ledger.open(log) as ledger:
        assert ledger.size == 1130, "the record with entry 1139 held ten entries, none of them whole"
        ledger.append([event(1)])
        ledger.verify()


def test_damage_before_whole_records_is_not_taken_for_a_torn_end(cut):
    log, _ = cut
    live = max((LedgerPaths(log).journal(k) for k in range(2)), key=lambda p: p.stat().st_size)
    data = live.read_bytes()
    at = data.index(b'"br755"')
    live.write_bytes(data[:at] + b"x" + data[at + 1 :])
    with pytest.raises(StoreError, match="entries 750 to 759 were acknowledged and cannot be read"):
        Ledger.open(log)


@pytest.mark.parametrize("at", [0, 9, 30, 50])
def test_a_damaged_header_is_an_error_and_no_empty_journal(cut, at):
    log, _ = cut
    live = max((LedgerPaths(log).journal(k) for k in range(2)), key=lambda p: p.stat().st_size)
    data = bytearray(live.read_bytes())
    data[at] ^= 1
    live.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        Ledger.open(log).append([event(0)])


def test_a_log_that_lost_its_journal_after_signing_more_says_so(cut):
    log, _ = cut
    for k in range(2):
        LedgerPaths(log).journal(k).unlink()
    for path in (log / "tile").rglob("*"):
        if path.is_file() and path.parent.name == "004.p":
            path.unlink()
    with pytest.raises(RidgelineError, match=r"missing|cut off"):
        Ledger.open(log).append([event(0)])


def test_a_reader_that_may_not_write_sees_what_is_signed(cut):
    log, _ = cut
    if os.geteuid() == 0:
        LedgerPaths(log).key.unlink()  # root may write anywhere; without the key it cannot sign
    else:
        os.chmod(LedgerPaths(log).private, 0o500)
    assert Ledger.open(log).size == 1130
