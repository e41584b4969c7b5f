"""The journal source on real journals: cursors, restarts, boots, rotation, fields of every kind.

scripts/packages tests && python -m pytest tests/audit/sources/test_journal.py
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.audit.sources.journals import entry, gaps, last, messages, write, writer
from tests.audit.threads import run_in_thread
from tests.audit.watch.watching import make, outside_events, watch

from ridgeline.audit import Ledger
from ridgeline.audit.sources.journal import Journal
from ridgeline.audit.watch import internal_events
from ridgeline.errors import InputError


@pytest.fixture
def folder(tmp_path):
    writer()
    journal_folder = tmp_path / "journal"
    journal_folder.mkdir()
    return journal_folder


def some(first: int, end: int, boot: int = 0):
    return [entry(k, boot) for k in range(first, end)]


def list_names(first: int, end: int) -> list[str]:
    return [f"m{k}" for k in range(first, end)]


async def draw_batches(source: Journal, position=None, count: int | None = None, meanwhile=lambda: None):
    """Batches until the source ends, or until `wanted` events came; `meanwhile` runs once it reads."""
    batches = []

    async def pull():
        async for batch in source.batches(position):
            batches.append(batch)
            if count is not None and sum(len(b.events) for b in batches) >= count:
                source.stop()

    task = asyncio.create_task(pull())
    if count is not None:
        for _ in range(600):
            if task.done() or is_following(source):
                break
            await asyncio.sleep(0.05)
        await asyncio.to_thread(meanwhile)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 60)
    if not task.done():  # what did not come in a minute does not come
        source.stop()
    await task
    return batches


def is_following(source: Journal) -> bool:
    """Whether its journalctl waits for further entries."""
    if source._process is None or source._process.returncode is not None:
        return False
    process = Path(f"/proc/{source._process.pid}")
    try:
        return b"\0-f\0" in (process / "cmdline").read_bytes() and "poll" in (process / "wchan").read_text()
    except OSError:
        return False


def read(folder, position=None, **more):
    return run_in_thread(draw_batches(Journal(directory=folder, follow=False, **more), position))


def follow_journal(folder, count, position=None, meanwhile=lambda: None):
    return run_in_thread(draw_batches(Journal(directory=folder), position, count, meanwhile))


def test_what_is_there_is_read_and_a_restart_goes_on_behind_it(folder):
    write(folder / "a.journal", some(0, 30))
    batches = read(folder)
    assert messages(batches) == list_names(0, 30)
    first = batches[0].events[0]
    assert (first["time"], first["actor"], first["action"]) == (1_700_000_000_000_000_000, "uid 0", "journal.sshd")
    assert messages(read(folder, last(batches))) == []
    write(folder / "a.journal", some(30, 50))
    again = read(folder, last(batches))
    assert messages(again) == list_names(30, 50)
    assert gaps(again) == []


def test_a_follower_reads_existing_and_new_entries(folder):
    write(folder / "a.journal", some(0, 10))
    position = last(read(folder))
    write(folder / "a.journal", some(10, 60))
    batches = follow_journal(folder, 55, position, lambda: write(folder / "a.journal", some(60, 65)))
    assert messages(batches) == list_names(10, 65)
    assert gaps(batches) == []


def test_a_follower_without_a_cursor_begins_now(folder):
    write(folder / "a.journal", some(0, 10))
    batches = follow_journal(folder, 3, None, lambda: write(folder / "a.journal", some(10, 13)))
    assert messages(batches) == list_names(10, 13)


def test_what_an_earlier_boot_wrote_after_the_cursor_is_not_lost(folder):
    write(folder / "a.journal", some(0, 10))
    position = last(read(folder))
    write(folder / "a.journal", some(10, 20))  # the watcher was gone, and the machine went down
    write(folder / "b.journal", some(20, 30, boot=1))
    batches = follow_journal(folder, 25, position, lambda: write(folder / "c.journal", some(30, 35, boot=2)))
    assert messages(batches) == list_names(10, 35)
    assert gaps(batches) == []


def test_a_cursor_of_an_earlier_boot_is_no_gap_for_a_follower_of_this_one(folder):
    write(folder / "a.journal", some(0, 10))
    write(folder / "b.journal", some(20, 21, boot=1))
    source = Journal(["SYSLOG_IDENTIFIER=cron"], directory=folder)
    source._command.remove("--merge")  # as it is for the machine's own journal: a follower sees one boot
    write(folder / "a.journal", [entry(11, SYSLOG_IDENTIFIER="cron")])
    cron = Journal(["SYSLOG_IDENTIFIER=cron"], directory=folder, follow=False)
    position = last(run_in_thread(draw_batches(cron)))
    later = [entry(30, boot=1, SYSLOG_IDENTIFIER="cron")]
    batches = run_in_thread(draw_batches(source, position, 1, lambda: write(folder / "b.journal", later)))
    assert (messages(batches), gaps(batches)) == (["m30"], [])


def test_a_journal_that_is_rotated_is_read_on(folder):
    write(folder / "system.journal", some(0, 10))
    position = last(read(folder))
    write(folder / "system.journal", some(10, 20))
    (folder / "system.journal").rename(folder / "system@archived.journal")
    write(folder / "system.journal", some(20, 30))

    def rotate():
        (folder / "system.journal").rename(folder / "system@later.journal")
        write(folder / "system.journal", some(30, 40))

    batches = follow_journal(folder, 30, position, rotate)
    assert messages(batches) == list_names(10, 40)
    assert gaps(batches) == []


def test_a_journal_rotated_past_the_cursor_gives_a_gap_and_skips_nothing(folder):
    write(folder / "old.journal", some(0, 20))
    position = last(read(folder))
    write(folder / "new.journal", some(20, 40))
    (folder / "old.journal").unlink()
    for batches in (read(folder, position), follow_journal(folder, 20, position)):
        assert messages(batches) == list_names(20, 40)
        assert len(gaps(batches)) == 1
        assert "no longer has the last entry" in gaps(batches)[0]


def test_a_journal_that_has_nothing_of_the_cursor_and_nothing_after_it_says_so(folder):
    write(folder / "old.journal", some(0, 5))
    write(folder / "new.journal", some(20, 40))
    position = last(read(folder))
    (folder / "new.journal").unlink()
    batches = read(folder, position)
    assert messages(batches) == []
    assert len(gaps(batches)) == 1
    assert last(batches) == position


def test_long_fields_binary_fields_and_fields_that_stand_twice_come_whole(folder):
    text = "x" * 300_000
    write(
        folder / "a.journal",
        [
            entry(0, MESSAGE=text),
            entry(1, MESSAGE=b"caf\xe9\xff"),
            entry(2, MESSAGE="naïve ☂ line\nand another"),
            entry(3, _SYSTEMD_UNIT=["a.service", "b.service"]),
            entry(4, MESSAGE=b"\x1b[31mred"),
        ],
    )
    batches = read(folder)
    events = [event for batch in batches for event in batch.events]
    assert messages(batches)[0] == text
    assert messages(batches)[1:3] == ["caf\\xe9\\xff", "naïve ☂ line\nand another"]
    assert sorted(events[3]["subject"].split()) == ["a.service", "b.service"]
    assert messages(batches)[4] == "\x1b[31mred"


def test_matches_choose_and_a_cursor_of_one_choice_is_its_own(folder):
    write(folder / "a.journal", [entry(k, _SYSTEMD_UNIT="ssh.service" if k % 3 else "cron.service") for k in range(12)])
    chosen = read(folder, matches=["_SYSTEMD_UNIT=cron.service"])
    assert messages(chosen) == ["m0", "m3", "m6", "m9"]
    write(folder / "a.journal", [entry(k, _SYSTEMD_UNIT="cron.service") for k in (12, 13)])
    again = read(folder, last(chosen), matches=["_SYSTEMD_UNIT=cron.service"])
    assert (messages(again), gaps(again)) == (["m12", "m13"], [])
    assert Journal(directory=folder).name != Journal(["_UID=0"], directory=folder).name


def test_a_restarted_watcher_has_every_entry_once_and_records_the_gap(folder, tmp_path):
    log = make(tmp_path / "log")
    write(folder / "a.journal", some(0, 40))
    watch(log, Journal(directory=folder, follow=False))
    write(folder / "a.journal", some(40, 70))
    watch(log, Journal(directory=folder, follow=False))
    watch(log, Journal(directory=folder, follow=False))
    assert [e["attributes"]["message"] for e in outside_events(log)] == list_names(0, 70)
    (folder / "a.journal").unlink()
    write(folder / "b.journal", some(80, 90))
    watch(log, Journal(directory=folder, follow=False))
    assert [e["attributes"]["message"] for e in outside_events(log)] == list_names(0, 70) + list_names(80, 90)
    with Ledger.open(log) as ledger:
        gaps = [
            event["attributes"]["what"]
            for _, event in internal_events.read_internal_events(ledger, internal_events.GAP)
        ]
    assert len(gaps) == 1
    assert "no longer has the last entry" in gaps[0]


def test_a_bad_cursor_and_a_missing_folder_are_errors(folder, tmp_path):
    write(folder / "a.journal", some(0, 3))
    with pytest.raises(InputError, match="Failed to seek to cursor"):
        read(folder, {"cursor": "gone"})
    with pytest.raises(InputError, match="there is no folder"):
        Journal(directory=tmp_path / "none")
