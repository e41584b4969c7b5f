"""Files of lines: every complete line once, in order, through growth, rotation, truncation and restarts."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import json
import lzma
import os
import shutil
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.threads import run_in_thread

from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources import files
from ridgeline.audit.sources import lines as text
from ridgeline.audit.sources.files import CompressedFile, LineFile
from ridgeline.audit.sources.lines import LONGEST, make_log_reader, parse_json_line
from ridgeline.errors import InputError


def make_source(path, **more):
    return LineFile(path, "lines", make_log_reader(str(path)), **more)


def messages(batch) -> list[str]:
    return [e["attributes"].get("_prefix", "") + e["attributes"]["message"] for e in batch.events]


async def collect(source, position=None):
    lines, last, gaps = [], position, []
    async for batch in source.batches(position):
        lines += messages(batch)
        gaps += batch.gaps
        last = batch.position or last
    return lines, last, gaps


def read(path, position=None, **more):
    return run_in_thread(collect(make_source(path, follow=False, **more), position))


def test_every_line_is_an_event_and_can_be_put_together_again(tmp_path):
    path = tmp_path / "a.log"
    line = "Jun 14 15:16:01 combo sshd(pam_unix)[19939]: authentication failure; user=x"
    path.write_bytes(line.encode() + b"\r\n\nplain words\nno newline at the end \xff")
    events, _, _ = read(path)
    assert events == [line, "plain words", "no newline at the end \\xff"]


@pytest.mark.parametrize(
    ("stamp", "zone"), [("%b %e %H:%M:%S", None), ("%Y-%m-%dT%H:%M:%S+00:00", UTC), ("%Y-%m-%dT%H:%M:%SZ", UTC)]
)
@given(ago=st.integers(0, 300 * 86_400))
@settings(max_examples=30, deadline=None)
def test_a_line_that_says_when_it_was_is_of_that_time(stamp, zone, ago):
    then = int(time.time()) - ago
    words = datetime.fromtimestamp(then, zone).strftime(stamp)
    event = make_log_reader("x")(f"{words} host sshd[12]: Accepted".encode(), "")
    assert abs(event["time"] - then * 10**9) in (0, 3600 * 10**9)  # an hour that comes twice when clocks are put back
    assert event["subject"] == "sshd"


@pytest.mark.parametrize(
    "stamp",
    [
        "Feb 30 10:00:00",
        "Xyz 11 10:00:00",
        "Jun 11 25:00:00",
        "2026-13-45T99:00:00",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59",
        "2262-04-12T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00",
        "0001-01-01T00:00:00+14:00",
    ],
)
def test_a_line_that_says_no_time_there_is_was_now(stamp):
    before = time.time_ns()
    assert before <= make_log_reader("x")(f"{stamp} host sshd: hi".encode(), "")["time"] <= time.time_ns()


@pytest.mark.parametrize(
    ("stamp", "hour"),
    [
        ("Nov 17 08:00:00", 13),
        ("2025-11-17T08:00:00", 13),
        ("2025-11-17T08:00:00.25", 13),
        ("2025-11-17T08:00:00Z", 8),
        ("2025-11-17T08:00:00+00:00", 8),
        ("2025-11-17T08:00:00-0200", 10),
    ],
)
def test_a_stamp_without_a_zone_is_of_this_machines(zone, stamp, hour):
    zone("America/New_York")
    moment = make_log_reader("x")(f"{stamp} host app: hi".encode(), "")["time"]
    assert datetime.fromtimestamp(moment // 10**9, UTC).hour == hour
    assert moment % 10**9 == (250_000_000 if ".25" in stamp else 0)


@pytest.fixture
def zone(monkeypatch):
    def use(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()
        text._minute.cache_clear()

    yield use
    monkeypatch.undo()
    time.tzset()
    text._minute.cache_clear()


@pytest.mark.parametrize("program", ["a" * 5_000, "ä" * 3_000, "p" * 200_000])
def test_a_program_with_a_name_too_long_for_the_log_hides_no_line(program):
    line = f"2026-01-01T00:00:00Z host {program}: root logged in"
    event = make_log_reader("x")(line.encode(), "")
    assert event["subject"].endswith("…")
    assert event["attributes"]["_prefix"] + event["attributes"]["message"] == line
    encode([event])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=40), max_size=30),
    st.integers(1, 64),
    st.integers(0, 400),
)
def test_a_reader_stopped_anywhere_goes_on_where_it_was(tmp_path_factory, texts, chunk, cut):
    path = tmp_path_factory.mktemp("f") / "a.log"
    path.write_bytes("".join(t + "\n" for t in texts).encode())
    expected = [t for t in texts if t.encode().strip()]

    async def two_parts():
        first, position = [], None
        async for batch in make_source(path, follow=False, chunk=chunk).batches(None):
            first += messages(batch)
            position = batch.position
            if len(first) >= cut:
                break
        rest, _, gaps = await collect(make_source(path, follow=False, chunk=chunk), position)
        return first + rest, gaps

    assert run_in_thread(two_parts()) == (expected, [])


def follow(path, act):
    """What a follower sees while `act` changes the file; each step waits for what is expected so far."""

    async def run():
        source, seen, gaps = make_source(path), [], []

        async def pull():
            async for batch in source.batches(None):
                seen.extend(messages(batch))
                gaps.extend(batch.gaps)

        async def until(count):
            for _ in range(600):
                if len(seen) >= count:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(f"{seen} after 30 s")

        task = asyncio.create_task(pull())
        await act(until)
        source.stop()
        await asyncio.wait_for(task, 30)
        return seen, gaps

    return run_in_thread(run())


def test_a_follower_waits_for_the_file_and_for_whole_lines(tmp_path):
    path = tmp_path / "late.log"

    async def act(until):
        await asyncio.sleep(0.1)
        path.write_text("one\ntw")
        await until(1)
        with path.open("a") as file:
            file.write("o\nunfinished")
        await until(2)

    assert follow(path, act) == (["one", "two"], [])


def test_a_follower_goes_through_rotation_and_sees_a_cut(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("one\n")

    async def act(until):
        await until(1)
        path.rename(tmp_path / "a.log.1")
        with (tmp_path / "a.log.1").open("a") as file:
            file.write("two\nlast words")
        path.write_text("three\n")
        await until(4)
        path.write_text("x\n")  # cut in place, as copytruncate does
        await until(5)

    seen, gaps = follow(path, act)
    assert seen == ["one", "two", "last words", "three", "x"]
    assert len(gaps) == 1
    assert "was cut to 2 bytes" in gaps[0]


@pytest.mark.parametrize("banner", ["", "a banner of many bytes, the same at every start\n" * 8])
def test_a_cut_is_seen_when_the_file_has_outgrown_it(tmp_path, banner):
    path = tmp_path / "c.log"
    path.write_text(banner + "first line\nsecond line\n")
    again = banner + "third: root login, long enough to be more than there was\nfourth\n"

    async def act(until):
        await until(2)
        os.truncate(path, 0)
        with path.open("a") as file:  # both before the next look
            file.write(again)
        await until(4 + 2 * banner.count("\n"))

    seen, gaps = follow(path, act)
    assert "".join(line + "\n" for line in seen) == banner + "first line\nsecond line\n" + again
    assert len(gaps) == 1
    assert "was cut and written anew" in gaps[0]


def test_a_cut_to_just_the_size_it_had_is_seen_too(tmp_path):
    path = tmp_path / "c.log"
    path.write_text("one\n")

    async def act(until):
        await until(1)
        with path.open("r+") as file:
            file.truncate()
            file.write("two\n")
        await until(2)

    seen, gaps = follow(path, act)
    assert (seen, len(gaps)) == (["one", "two"], 1)


def test_a_truncation_without_a_watcher_is_detected(tmp_path):
    path = tmp_path / "c.log"
    banner = "a banner of many bytes, the same at every start\n" * 8
    path.write_text(banner + "one\n")
    _, position, _ = read(path)
    path.write_text(banner + "two, and a good deal more\n")
    events, _, gaps = read(path, position)
    assert (events[-1], len(events), len(gaps)) == ("two, and a good deal more", 9, 1)
    earlier = {name: value for name, value in position.items() if name != "tail"}  # as it was kept before
    path.write_text(banner + "one\n")
    assert read(path, earlier)[::2] == ([], [])


def test_a_writer_that_goes_on_at_its_own_offset_after_a_cut_is_followed_there(tmp_path):
    path = tmp_path / "c.log"
    with path.open("w") as writer:
        writer.write("one\n" * 1_000)
        writer.flush()

        async def act(until):
            await until(1_000)
            os.truncate(path, 0)
            writer.write("two\n")
            writer.flush()
            await until(1_001)

        seen, gaps = follow(path, act)
    assert (seen[1_000:], len(gaps)) == (["two"], 1)


@pytest.mark.parametrize("appends", [True, False])
def test_lines_that_copytruncate_moved_before_they_were_read_are_read_from_the_copy(tmp_path, appends):
    path = tmp_path / "c.log"
    path.write_text("one\n")
    (tmp_path / "c.log.2").write_text("one\nread long ago\n")

    async def act(until):
        await until(1)
        await asyncio.sleep(0.5)
        with path.open("ab" if appends else "r+b", buffering=0) as writer:
            writer.seek(0, os.SEEK_END)
            writer.write(b"two\nin the mid")
            shutil.copyfile(path, tmp_path / "c.log.1")
            os.truncate(path, 0)
            writer.write(b"dle\nfour\n")
        await until(5)

    seen, gaps = follow(path, act)
    assert seen == ["one", "two", "in the mid", "dle", "four"]
    assert len(gaps) == 1
    assert "was cut after it was copied to" in gaps[0]


def test_lines_are_counted_anew_after_a_cut(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("oops\noops\n")

    async def run():
        source, refused = LineFile(path, "jsonl", parse_json_line), []
        async for batch in source.batches(None):
            refused += [where for where, _ in batch.refused]
            if len(refused) == 2:
                path.write_text("x\n")
            else:
                source.stop()
        return refused

    places = [f"line {number} of {path}" for number in (1, 2, 1)]
    assert run_in_thread(asyncio.wait_for(run(), 30)) == places


@pytest.mark.parametrize("name", ["a.log", "app[1].log", "what?*.log"])
def test_a_file_rotated_meanwhile_is_read_to_its_end(tmp_path, name):
    path = tmp_path / name
    path.write_text("one\n")
    _, position, _ = read(path)
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / f"{name}.1")
    path.write_text("three\n")
    assert read(path, position)[0] == ["two", "three"]
    assert follow_from(path, position) == ["two", "three"]
    (tmp_path / f"{name}.1").unlink()
    events, _, gaps = read(path, position)
    assert events == ["three"]
    assert "is another file" in gaps[0]


def follow_from(path, position):
    async def run():
        source, seen = make_source(path), []
        async for batch in source.batches(position):
            seen += messages(batch)
            if len(seen) == 2:
                source.stop()
        return seen

    return run_in_thread(asyncio.wait_for(run(), 30))


def rotate(folder, content, times=1):
    """What logrotate does: a.log.1 becomes a.log.2 and so on, a.log becomes a.log.1, and a new a.log begins."""
    for _ in range(times):
        for number in range(9, 0, -1):
            if (folder / f"a.log.{number}").exists():
                (folder / f"a.log.{number}").rename(folder / f"a.log.{number + 1}")
        (folder / "a.log").rename(folder / "a.log.1")
        before = (folder / "a.log.1").stat().st_mtime_ns
        while True:  # the time stamps of files are coarse
            (folder / "a.log").write_text(content)
            if (folder / "a.log").stat().st_mtime_ns > before:
                break


async def read_all(path, position=None):
    batches = [b async for b in make_source(path, follow=False).batches(position)]
    messages = [e["attributes"]["message"] for b in batches for e in b.events]
    return messages, batches[-1].position if batches else position, [gap for b in batches for gap in b.gaps]


@pytest.mark.parametrize("rotations", [1, 2, 5])
def test_every_file_that_was_rotated_while_no_watcher_ran_is_read_in_order(tmp_path, rotations):
    path = tmp_path / "a.log"
    path.write_text("zero\n")
    _, position, _ = run_in_thread(read_all(path))
    with path.open("a") as file:
        file.write("rest\n")
    for number in range(rotations):
        rotate(tmp_path, f"file {number}\n")
    (tmp_path / "a.log.bak").write_text("a copy\n")
    (tmp_path / "a.log.20").write_text((tmp_path / f"a.log.{rotations}").read_text())  # a copy of the file read last
    messages, position, gaps = run_in_thread(read_all(path, position))
    assert messages == ["rest", *[f"file {n}" for n in range(rotations)]]
    assert gaps == []
    assert run_in_thread(read_all(path, position))[0] == []


def test_a_file_rotated_before_its_first_lines_are_saved_is_read(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n")

    async def read_one_batch():
        return await anext(make_source(path).batches(None))

    first = run_in_thread(read_one_batch())
    assert first.events == []
    path.rename(tmp_path / "a.log.1")
    path.write_text("three\n")
    assert follow_from(path, first.position) == ["one", "two", "three"]


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def compress(file, kind="gz", damage=False):
    """What logrotate's `compress` does: a.log.1 becomes a.log.1.gz of the same age."""
    data, status = PACK[kind](file.read_bytes()), file.stat()
    packed = file.with_name(f"{file.name}.{kind}")
    packed.write_bytes(data[: len(data) // 2] if damage else data)
    os.utime(packed, ns=(status.st_mtime_ns, status.st_mtime_ns))
    file.unlink()


@pytest.mark.parametrize("kind", PACK)
def test_rotated_files_that_were_compressed_meanwhile_are_unpacked(tmp_path, kind):
    path = tmp_path / "a.log"
    path.write_text("zero\n")
    _, position, _ = run_in_thread(read_all(path))
    with path.open("a") as file:
        file.write("rest\n")
    rotate(tmp_path, "one\n")
    rotate(tmp_path, "two\n")
    compress(tmp_path / "a.log.1", kind)
    compress(tmp_path / "a.log.2", kind)
    messages, position, gaps = run_in_thread(read_all(path, position))
    assert (messages, gaps) == (["rest", "one", "two"], [])
    assert run_in_thread(read_all(path, position))[0] == []


def test_a_rotated_file_whose_compressed_form_is_damaged_is_a_gap(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("zero\n")
    _, position, _ = run_in_thread(read_all(path))
    rotate(tmp_path, "one\n")
    rotate(tmp_path, "two\n")
    compress(tmp_path / "a.log.1", damage=True)
    messages, _, gaps = run_in_thread(read_all(path, position))
    assert messages == ["two"]
    assert len(gaps) == 1
    assert f"{tmp_path}/a.log.1.gz cannot be unpacked" in gaps[0]


def read_packed(path, position=None, stop_after=None, chunk=1 << 18):
    source = CompressedFile(path, "lines", make_log_reader("x"), chunk=chunk)

    async def pull():
        taken = []
        async for batch in source.batches(position):
            taken.append(batch)
            if len(taken) == stop_after:
                break
        return taken

    batches = run_in_thread(pull())
    lines = [e["attributes"]["message"] for b in batches for e in b.events]
    return lines, batches[-1].position if batches else position, [gap for b in batches for gap in b.gaps]


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("ending", ["", "\n"])
def test_a_compressed_file_is_read_once_also_after_a_stop_at_any_place(tmp_path, kind, ending):
    path, lines = tmp_path / f"old.log.{kind}", [f"line {k} {'x' * (k % 50)}" for k in range(200)]
    path.write_bytes(PACK[kind](("\n".join(lines) + ending).encode()))
    for stop_after in range(1, 30):
        first, position, _ = read_packed(path, None, stop_after, chunk=300)
        rest, position, gaps = read_packed(path, json.loads(json.dumps(position)), chunk=700)
        assert (first + rest, gaps) == (lines, [])
        assert read_packed(path, position)[0] == []


def test_a_compressed_file_that_was_replaced_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "old.log.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    _, position, _ = read_packed(path)
    path.write_bytes(gzip.compress(b"three\n"))
    assert read_packed(path, position)[0] == ["three"]


def test_a_damaged_compressed_file_gives_the_lines_before_the_damage(tmp_path):
    path = tmp_path / "old.log.gz"
    data = gzip.compress("".join(f"line {k}\n" for k in range(20_000)).encode(), 1)
    path.write_bytes(data[: len(data) // 2])
    lines, position, gaps = read_packed(path, chunk=1000)
    assert lines[:1000] == [f"line {k}" for k in range(1000)]
    assert len(gaps) == 1
    assert "is damaged after" in gaps[0]
    assert read_packed(path, position)[0] == []  # said once


def test_a_line_of_a_compressed_file_longer_than_any_event_is_cut(tmp_path):
    path = tmp_path / "old.log.gz"
    path.write_bytes(gzip.compress(b"y" * (3 << 20) + b"\nlast\n"))
    lines, _, _ = read_packed(path)
    assert lines[-1] == "last"
    assert max(map(len, lines)) <= LONGEST


def test_a_long_line_that_grows_is_searched_once_and_never_held_whole(tmp_path, monkeypatch):
    path, reads = tmp_path / "a.log", []
    real = files._read_at
    monkeypatch.setattr(files, "_read_at", lambda file, at, size: reads.append(got := real(file, at, size)) or got)
    with path.open("wb", buffering=0) as file:
        source = LineFile(path, "lines", make_log_reader("a.log"), follow=True)
        opened = path.open("rb")
        for _ in range(40):
            file.write(b"x" * (1 << 20))
            assert source._read_lines(opened, 0) == (None, False)
        file.write(b"end\nnext\n")
    lines, complete = source._read_lines(opened, 0)
    opened.close()
    assert (len(lines.data), lines.more, complete) == (LONGEST, (39 << 20) + 4, False)
    assert max(map(len, reads)) <= LONGEST, "the whole line was read at once"
    assert sum(map(len, reads)) < 3 * (41 << 20), "the line was read again for every piece that was added"


def test_a_line_longer_than_any_buffer_is_one_event_that_says_what_was_cut(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * ((1 << 20) + 7) + b"\nshort\n")

    async def run():
        return [e async for b in make_source(path, follow=False, chunk=1000).batches(None) for e in b.events]

    first, second = run_in_thread(run())
    assert len(first["attributes"]["message"]) == 1 << 20
    assert first["attributes"]["_cut_bytes"] == 7
    assert second["attributes"]["message"] == "short"


def test_a_line_that_is_no_event_is_refused_by_its_number_and_the_rest_is_taken(tmp_path):
    path = tmp_path / "a.jsonl"
    good = json.dumps({"source": "s", "action": "a.b"})
    path.write_text(f"{good}\n{{oops\n{good}\n[1]\n")

    async def run():
        return [b async for b in LineFile(path, "jsonl", parse_json_line, follow=False).batches(None)]

    (batch,) = run_in_thread(run())
    assert len(batch.events) == 2
    assert [where for where, _ in batch.refused] == [f"line 2 of {path}", f"line 4 of {path}"]
    assert batch.places == [f"line 1 of {path}", f"line 3 of {path}"]


def test_an_unreadable_file_is_an_error_before_the_start(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        make_source(tmp_path)
    with pytest.raises(InputError, match="no file"):
        make_source(tmp_path / "none", follow=False)
    assert os.path.isabs(make_source(tmp_path / "x").name.partition(":")[2])


@pytest.mark.parametrize("follows", [True, False])
def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path, follows):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file; use - for a pipe"):
        make_source(tmp_path / "pipe", follow=follows)
    out, into = os.pipe()
    with pytest.raises(InputError, match="is not a regular file"):
        make_source(Path(f"/dev/fd/{out}"), follow=follows)
    os.close(out)
    os.close(into)


def test_a_pipe_that_takes_the_name_later_is_not_waited_for(tmp_path):
    path = tmp_path / "a.log"
    late = make_source(path)
    path.write_text("one\n")

    async def swap_file():
        async for _ in make_source(path).batches(None):
            path.rename(tmp_path / "a.log.1")
            os.mkfifo(path)

    waited = []
    writer = threading.Timer(20, lambda: waited.append(os.open(path, os.O_RDWR)))  # ends a wait that there must not be
    writer.start()
    for run in (swap_file(), collect(late)):
        with pytest.raises(InputError, match="is not a regular file"):
            run_in_thread(run)
    writer.cancel()
    assert not waited
