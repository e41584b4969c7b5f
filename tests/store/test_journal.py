"""The journal keeps complete lines after a cut at any byte, and names the line of any other damage."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, StoreError
from ridgeline.store import AppendResult, append_lines, journal, read_lines

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), VALUES | st.lists(VALUES, max_size=2), max_size=3), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(OBJECTS, max_size=3))
def test_appended_objects_are_read(memory, batches):
    with TemporaryDirectory(dir=memory) as folder:
        path = Path(folder, "j.jsonl")
        for batch in batches:
            assert append_lines(path, batch) == AppendResult(len(batch), 0)
        if batches:
            content = read_lines(path)
            assert list(content.objects) == [item for batch in batches for item in batch]
            assert not content.torn


@settings(max_examples=25, deadline=None)
@given(OBJECTS.filter(bool), st.integers(1, 40))
def test_after_a_cut_at_any_byte_complete_lines_stay_and_append_repairs_the_end(memory, objects, block):
    with TemporaryDirectory(dir=memory) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_BLOCK", block)  # so that short lines, too, span several blocks
        path = Path(folder, "j.jsonl")
        append_lines(path, objects)
        data = path.read_bytes()
        ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
        for cut in range(len(data) + 1):
            path.write_bytes(data[:cut])
            # an object that lacks only its newline is complete
            complete = sum(end - 1 <= cut for end in ends)
            complete_size = max([0, *(end for end in ends if end - 1 <= cut)])
            torn = cut > complete_size
            content = read_lines(path)
            assert list(content.objects) == objects[:complete]
            assert content.torn == torn
            assert content.torn_at == (complete_size if torn else None)
            done = append_lines(path, [{"after": cut}])
            assert done == AppendResult(1, cut - complete_size if torn else 0)
            after = read_lines(path)
            assert list(after.objects) == [*objects[:complete], {"after": cut}]
            assert not after.torn


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.binary(max_size=30).filter(lambda b: b"\n" not in b))
def test_damage_before_the_end_is_named_by_its_line(memory, at, junk):
    if journal._parse(junk) is not None:
        return
    with TemporaryDirectory(dir=memory) as folder:
        path = Path(folder, "j.jsonl")
        append_lines(path, [{"n": n} for n in range(4)])
        lines = path.read_bytes().split(b"\n")
        lines[at] = junk
        path.write_bytes(b"\n".join(lines))
        with pytest.raises(StoreError, match=rf"j\.jsonl, line {at + 1}, is damaged"):
            read_lines(path)


@pytest.mark.parametrize("line", [b"[1]", b"1", b"", b'{"x":NaN}', b"\xff{}", b"\0\0", b"[" * 100_000])
def test_a_finished_line_that_is_not_one_object_is_damage(tmp_path, line):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"n":0}\n' + line + b"\n")
    with pytest.raises(StoreError, match="line 2"):
        read_lines(path)


def test_a_torn_end_is_cut_even_if_nothing_is_appended(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"n":0}\n{"n"')
    assert append_lines(path, []) == AppendResult(0, 4)
    assert path.read_bytes() == b'{"n":0}\n'


def test_a_last_line_without_newline_is_retained(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"n":0}')
    assert append_lines(path, [{"n": 1}]) == AppendResult(1, 0)
    assert path.read_bytes() == b'{"n":0}\n{"n":1}\n'


def test_all_lines_go_in_one_write_and_one_sync(tmp_path, monkeypatch):
    calls: list[str] = []
    write, fsync = os.write, os.fsync
    path = tmp_path / "j.jsonl"
    append_lines(path, [{"n": 0}])
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append("write") or write(fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync") or fsync(fd))
    append_lines(path, [{"n": n} for n in range(100)])
    assert calls == ["write", "fsync"]


def test_a_new_journals_name_is_synced_before_its_first_line(tmp_path, monkeypatch):
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file") or fsync(fd),
    )
    append_lines(tmp_path / "j.jsonl", [{}])
    assert synced == ["folder", "file"]


def test_a_short_write_goes_on_and_a_failing_one_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "j.jsonl"
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    append_lines(path, [{"n": 0}, {"n": 1}])
    assert len(read_lines(path).objects) == 2

    def fail_later(fd, data):
        if data.startswith(b'{"n":2'):
            return write(fd, data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail_later)
    with pytest.raises(StoreError, match="the disk is full"):
        append_lines(path, [{"n": 2}])
    assert len(read_lines(path).objects) == 2
    assert not read_lines(path).torn


def test_many_writers_at_once_lose_and_mix_nothing(tmp_path):
    path = tmp_path / "j.jsonl"

    def write(writer: int) -> None:
        for n in range(20):
            append_lines(path, [{"who": writer, "n": n, "part": part, "pad": "x" * 3000} for part in (0, 1)])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    objects = read_lines(path).objects
    for writer in range(4):
        mine = [(item["n"], item["part"]) for item in objects if item["who"] == writer]
        assert mine == [(n, part) for n in range(20) for part in (0, 1)]
    pairs = [(item["who"], item["n"]) for item in objects]
    assert pairs[::2] == pairs[1::2]


@pytest.mark.parametrize("value", [float("nan"), {1}, object()])
def test_an_object_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path, value):
    with pytest.raises(InputError, match="object 2 for "):
        append_lines(tmp_path / "j.jsonl", [{}, {"x": value}])
    assert os.listdir(tmp_path) == []


def test_a_missing_journal_and_a_folder_are_sentences(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        read_lines(tmp_path / "no")
    with pytest.raises(StoreError, match="is a folder"):
        read_lines(tmp_path)
    with pytest.raises(StoreError, match="its folder is not there"):
        append_lines(tmp_path / "no" / "j", [{}])
