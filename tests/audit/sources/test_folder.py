"""A folder of logs: every line of every file once, through new files, rotation, renames and restarts."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil

import pytest
from tests.audit.threads import run_in_thread
from tests.audit.watch.watching import run_command

from ridgeline.audit.sources.folder import LineFolder, is_pattern
from ridgeline.audit.sources.lines import make_log_reader
from ridgeline.errors import InputError


class Reading:
    """Reads a folder while the block lasts, and collects what it yields."""

    def __init__(self, path, position=None, **more):
        self.notes: list[str] = []
        more = {"scan_s": 0.01, "gone_s": 0.05, "announce": self.notes.append} | more
        self.source = LineFolder(path, "lines", lambda file: make_log_reader(str(file)), **more)
        self.position, self.lines, self.gaps = position, [], []

    async def pull(self):
        async for batch in self.source.batches(self.position):
            self.lines += [event["attributes"]["message"] for event in batch.events]
            self.gaps += batch.gaps
            self.position = json.loads(json.dumps(batch.position or self.position))

    async def __aenter__(self):
        self.task = asyncio.create_task(self.pull())
        return self

    async def __aexit__(self, *_):
        self.source.stop()
        await asyncio.wait_for(self.task, 30)

    async def wait_for(self, *lines):
        for _ in range(3000):
            if set(lines) <= set(self.lines):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{lines} are not among {self.lines}")


def read_once(path, position=None, **more):
    reading = Reading(path, position, follow=False, **more)
    run_in_thread(reading.pull())
    return reading


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.log", "b.log", "sub/c.log"):
        (folder / name).write_text(f"{name} 0\n{name} 1\n")
    return folder


ALL = [f"{name} {i}" for name in ("a.log", "b.log", "sub/c.log") for i in range(2)]


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_every_file_below_is_read_and_a_restart_reads_only_what_is_new(logs):
    first = read_once(logs)
    assert sorted(first.lines) == ALL
    append(logs / "b.log", "b.log 2\n")
    (logs / "d").write_text("d 0\n")
    second = read_once(logs, first.position)
    assert sorted(second.lines) == ["b.log 2", "d 0"]
    assert read_once(logs, second.position).lines == []


def test_a_pattern_chooses_files(logs):
    (logs / "notes.txt").write_text("no\n")
    assert is_pattern(logs / "*.log")
    assert not is_pattern(logs)
    assert sorted(read_once(logs / "*.log").lines) == ALL[:4]
    assert sorted(read_once(logs / "**" / "*.log").lines) == ALL
    with pytest.raises(InputError, match="there is no folder"):
        Reading(logs / "none" / "*.log")


@pytest.mark.parametrize("name", ["a.log.1", "a.log.old", "sub/moved.log"])
def test_a_rotated_file_is_read_to_its_end_and_never_again(logs, name):
    async def run():
        async with Reading(logs) as reading:
            await reading.wait_for(*ALL)
            for round_ in range(2):
                append(logs / "a.log", f"late {round_}\n")
                os.rename(logs / "a.log", logs / name)
                (logs / "a.log").write_text(f"after {round_}\n")
                await reading.wait_for(f"late {round_}", f"after {round_}")
            (logs / "new.log").write_text("fresh\n")
            await reading.wait_for("fresh")
            await asyncio.sleep(0.1)  # some scans more
        return reading

    reading = run_in_thread(run())
    expected = sorted([*ALL, "late 0", "after 0", "late 1", "after 1", "fresh"])
    assert sorted(reading.lines) == expected
    assert reading.gaps == reading.notes == []
    assert read_once(logs, reading.position).lines == []


def test_a_copied_and_cut_file_is_read_once_and_the_cut_is_a_gap(logs):
    async def run():
        async with Reading(logs) as reading:
            await reading.wait_for(*ALL)
            shutil.copy(logs / "a.log", logs / "a.log.1")
            os.truncate(logs / "a.log", 0)
            append(logs / "a.log", "after\n")
            await reading.wait_for("after")
        return reading

    reading = run_in_thread(run())
    assert sorted(reading.lines) == sorted([*ALL, "after"])
    assert len(reading.gaps) == 1
    assert "was cut" in reading.gaps[0]
    assert read_once(logs, reading.position).lines == []


def test_what_was_rotated_or_renamed_while_no_watcher_ran_is_continued(logs):
    first = read_once(logs)
    for name, later in (("a.log", "a.log.1"), ("b.log", "other.log")):
        append(logs / name, f"late {name}\n")
        os.rename(logs / name, logs / later)
    (logs / "a.log").write_text("after\n")
    second = read_once(logs, first.position)
    assert sorted(second.lines) == ["after", "late a.log", "late b.log"]
    assert second.gaps == []
    append(logs / "other.log", "more\n")
    assert read_once(logs, second.position).lines == ["more"]


def test_numbered_files_without_a_current_one_are_read_once(tmp_path):
    for number in (0, 1):
        (tmp_path / f"java.log.{number}").write_text(f"of {number}\n")

    async def run():
        async with Reading(tmp_path) as reading:
            await reading.wait_for("of 0", "of 1")
            os.rename(tmp_path / "java.log.1", tmp_path / "java.log.2")
            os.rename(tmp_path / "java.log.0", tmp_path / "java.log.1")
            (tmp_path / "java.log.0").write_text("new\n")
            await reading.wait_for("new")
            await asyncio.sleep(0.3)
        return reading

    assert sorted(run_in_thread(run()).lines) == ["new", "of 0", "of 1"]


def test_a_deleted_file_is_closed_and_a_new_one_of_that_name_is_read(logs):
    async def run():
        async with Reading(logs) as reading:
            await reading.wait_for(*ALL)
            (logs / "b.log").unlink()
            for _ in range(3000):
                if "b.log" not in reading.source._files:
                    break
                await asyncio.sleep(0.01)
            assert "b.log" not in reading.source._files
            (logs / "b.log").write_text("again\n")
            await reading.wait_for("again")
        return reading

    assert sorted(run_in_thread(run()).lines) == sorted([*ALL, "again"])


def test_a_compressed_file_is_read_once_also_after_a_restart_and_under_another_name(logs):
    (logs / "old.log.gz").write_bytes(gzip.compress(b"g1\ng2\n"))

    async def run():
        async with Reading(logs) as reading:
            await reading.wait_for("g1", "g2", *ALL)
            (logs / "old.log.gz").rename(logs / "older.gz")
            (logs / "late.gz").write_bytes(gzip.compress(b"g3\n"))
            await reading.wait_for("g3")
        return reading

    reading = run_in_thread(run())
    assert sorted(reading.lines) == sorted([*ALL, "g1", "g2", "g3"])
    assert read_once(logs, reading.position).lines == []


def test_binary_rotated_and_own_files_are_left_out(logs):
    (logs / "wtmp").write_bytes(b"\x07\0\0\0user")
    (logs / "b.log.2.gz").write_bytes(gzip.compress(b"old\n"))
    (logs / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (logs / "a.log.1").write_text("old\n")
    (logs / "link.log").symlink_to("a.log")
    (logs / "own").mkdir()
    (logs / "own" / "entries").write_text("own\n")
    reading = read_once(logs, exclude=[logs / "own"])
    assert sorted(reading.lines) == ALL
    assert len(reading.notes) == 1
    assert all(words in reading.notes[0] for words in ("a.log.1 (taken for a rotated file of a.log)", "and 1 more"))


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_a_gap_until_it_may(logs):
    (logs / "b.log").chmod(0)

    async def run():
        async with Reading(logs) as reading:
            await reading.wait_for(*ALL[:2], *ALL[4:])
            await asyncio.sleep(0.05)
            (logs / "b.log").chmod(0o600)
            await reading.wait_for(*ALL)
        return reading

    reading = run_in_thread(run())
    assert sorted(reading.lines) == ALL
    assert len(reading.gaps) == 1
    assert "b.log' cannot be read" in reading.gaps[0]


def test_the_command_reads_a_folder_and_leaves_its_own_log_out(logs, capsys):
    log = logs / "log"
    assert run_command(capsys, "audit", "init", log)[0] == 0
    for path in (logs, logs / "*.log"):
        code, _, words = run_command(capsys, "audit", "watch", log, "--lines", path, "--no-follow", "--no-score", "-q")
        assert code == 0, words
    _, out, _ = run_command(capsys, "audit", "export", log, "--json")
    lines = [e["attributes"]["message"] for e in json.loads(out) if e["source"] == "lines"]
    assert sorted(lines) == sorted([*ALL, *ALL[:4]])


def test_a_new_file_that_is_taken_for_a_rotated_one_is_named(logs):
    (logs / "worker").write_text("one\n")

    async def run():
        async with Reading(logs) as reading:
            await reading.wait_for("one")
            (logs / "worker-1").write_text("two\n")
            (logs / "z.log").write_text("later\n")
            await reading.wait_for("later")
        return reading

    notes = run_in_thread(run()).notes
    assert len(notes) == 1
    assert "worker-1 (taken for a rotated file of worker)" in notes[0]


def test_a_file_that_appears_with_the_stop_does_not_keep_the_source_open(logs):
    async def run():
        async with Reading(logs, scan_s=60) as reading:
            await reading.wait_for(*ALL)
            (logs / "late.log").write_text("late\n")

    run_in_thread(run())
