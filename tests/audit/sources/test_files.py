"""Files of lines: whole lines once each, in order, through growth, rotation, cuts and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.aside import aside

from ridgeline.audit.sources.files import LineFile
from ridgeline.audit.sources.text import json_line, log_line
from ridgeline.errors import InputError


def lines_of(path, **more):
    return LineFile(path, "lines", log_line(str(path)), **more)


def messages(batch) -> list[str]:
    return [e["attributes"].get("_prefix", "") + e["attributes"]["message"] for e in batch.events]


async def collect(source, position=None):
    found, last, gaps = [], position, []
    async for batch in source.batches(position):
        found += messages(batch)
        gaps += batch.gaps
        last = batch.position or last
    return found, last, gaps


def read(path, position=None, **more):
    return aside(collect(lines_of(path, follow=False, **more), position))


def test_every_line_is_an_event_and_can_be_put_together_again(tmp_path):
    path = tmp_path / "a.log"
    line = "Jun 14 15:16:01 combo sshd(pam_unix)[19939]: authentication failure; user=x"
    path.write_bytes(line.encode() + b"\r\n\nplain words\nno newline at the end \xff")
    found, _, _ = read(path)
    assert found == [line, "plain words", "no newline at the end \\xff"]


@pytest.mark.parametrize(
    ("stamp", "zone"), [("%b %e %H:%M:%S", None), ("%Y-%m-%dT%H:%M:%S+00:00", UTC), ("%Y-%m-%dT%H:%M:%SZ", UTC)]
)
@given(ago=st.integers(0, 300 * 86_400))
@settings(max_examples=30, deadline=None)
def test_a_line_that_says_when_it_was_is_of_that_time(stamp, zone, ago):
    then = int(time.time()) - ago
    words = datetime.fromtimestamp(then, zone).strftime(stamp)
    event = log_line("x")(f"{words} host sshd[12]: Accepted".encode(), "")
    assert abs(event["time"] - then * 10**9) in (0, 3600 * 10**9)  # an hour that comes twice when clocks are put back
    assert event["subject"] == "sshd"


@pytest.mark.parametrize("stamp", ["Feb 30 10:00:00", "Xyz 11 10:00:00", "Jun 11 25:00:00", "2026-13-45T99:00:00"])
def test_a_line_that_says_no_time_there_is_was_now(stamp):
    before = time.time_ns()
    assert before <= log_line("x")(f"{stamp} host sshd: hi".encode(), "")["time"] <= time.time_ns()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=40), max_size=30),
    st.integers(1, 64),
    st.integers(0, 400),
)
def test_a_reader_stopped_anywhere_goes_on_where_it_was(tmp_path_factory, texts, chunk, cut):
    path = tmp_path_factory.mktemp("f") / "a.log"
    path.write_bytes("".join(t + "\n" for t in texts).encode())
    wanted = [t for t in texts if t.encode().strip()]

    async def two_parts():
        first, position = [], None
        async for batch in lines_of(path, follow=False, chunk=chunk).batches(None):
            first += messages(batch)
            position = batch.position
            if len(first) >= cut:
                break
        rest, _, gaps = await collect(lines_of(path, follow=False, chunk=chunk), position)
        return first + rest, gaps

    assert aside(two_parts()) == (wanted, [])


def follow(path, act):
    """What a follower sees while `act` changes the file; each step waits for what is expected so far."""

    async def run():
        source, seen, gaps = lines_of(path), [], []

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

    return aside(run())


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


def test_what_was_rotated_away_meanwhile_is_found_and_finished(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("one\n")
    _, position, _ = read(path)
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / "a.log.1")
    path.write_text("three\n")
    assert read(path, position)[0] == ["two", "three"]
    assert follow_from(path, position) == ["two", "three"]
    (tmp_path / "a.log.1").unlink()
    found, _, gaps = read(path, position)
    assert found == ["three"]
    assert "is another file" in gaps[0]


def follow_from(path, position):
    async def run():
        source, seen = lines_of(path), []
        async for batch in source.batches(position):
            seen += messages(batch)
            if len(seen) == 2:
                source.stop()
        return seen

    return aside(asyncio.wait_for(run(), 30))


def test_a_line_longer_than_any_buffer_is_one_event_that_says_what_was_cut(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * ((1 << 20) + 7) + b"\nshort\n")

    async def run():
        return [e async for b in lines_of(path, follow=False, chunk=1000).batches(None) for e in b.events]

    first, second = aside(run())
    assert len(first["attributes"]["message"]) == 1 << 20
    assert first["attributes"]["_cut_bytes"] == 7
    assert second["attributes"]["message"] == "short"


def test_a_line_that_is_no_event_is_refused_by_its_number_and_the_rest_is_taken(tmp_path):
    path = tmp_path / "a.jsonl"
    good = json.dumps({"source": "s", "action": "a.b"})
    path.write_text(f"{good}\n{{oops\n{good}\n[1]\n")

    async def run():
        return [b async for b in LineFile(path, "jsonl", json_line, follow=False).batches(None)]

    (batch,) = aside(run())
    assert len(batch.events) == 2
    assert [where for where, _ in batch.refused] == [f"line 2 of {path}", f"line 4 of {path}"]


def test_what_cannot_be_read_is_said_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        lines_of(tmp_path)
    with pytest.raises(InputError, match="no file"):
        lines_of(tmp_path / "none", follow=False)
    assert os.path.isabs(lines_of(tmp_path / "x").name.partition(":")[2])
