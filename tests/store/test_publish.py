"""Publish files and folders without crashes: content, order of syncs, modes, other writers."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from ridgeline.errors import StoreError
from ridgeline.store import discard_dir, disk, publish, publish_dir, recover, verify


@contextmanager
def umask(bits: int):
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def publish_file(path: Path, text: str = "new") -> None:
    with publish(path) as tmp:
        tmp.write_text(text)


def publish_folder(path: Path, text: str = "new") -> None:
    with publish_dir(path) as tmp:
        (tmp / "part").write_text(text)


BOTH = pytest.mark.parametrize("put", [publish_file, publish_folder])


@pytest.fixture(params=["exchange", "two steps"])
def way(request, monkeypatch) -> str:
    if request.param == "two steps":
        monkeypatch.setattr(disk, "exchange", lambda one, other: False)
    return request.param


def test_a_file_appears_whole_and_leaves_nothing_beside_it(tmp_path):
    target = tmp_path / "a.txt"
    with publish(target) as tmp:
        tmp.write_text("one")
        assert not target.exists()
        assert tmp.name == target.name
    publish_file(target, "two")
    assert target.read_text() == "two"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_replaces_the_old_one_whole(tmp_path, way):
    target = tmp_path / "index"
    with publish_dir(target, {"v": 1}) as tmp:
        (tmp / "only-in-old").write_text("old")
    meta = {"v": 2}
    with publish_dir(target, meta) as tmp:
        assert not list(tmp.iterdir())
        (tmp / "only-in-new").write_text("new")
        meta["recall"] = 0.99
    assert verify(target).meta == {"v": 2, "recall": 0.99}
    assert sorted(os.listdir(target)) == ["manifest.json", "only-in-new"]
    assert os.listdir(tmp_path) == ["index"]


def test_this_kernel_exchanges_two_names_in_one_step(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.mkdir()
    if not disk.exchange(one, other):
        pytest.skip("kernel or filesystem has no RENAME_EXCHANGE")
    assert one.is_dir()
    assert other.read_text() == "1"
    with pytest.raises(FileNotFoundError):
        disk.exchange(one, tmp_path / "nothing")


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
@BOTH
def test_a_block_that_raises_changes_nothing_and_leaves_nothing(tmp_path, put, error):
    target = tmp_path / "t"
    put(target, "old")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def write_half_and_fail(tmp: Path) -> None:
        (tmp / "part" if tmp.is_dir() else tmp).write_text("half")
        raise error

    publisher = publish if put is publish_file else publish_dir
    with pytest.raises(type(error)), publisher(target) as tmp:
        write_half_and_fail(tmp)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert os.listdir(tmp_path) == ["t"]


def test_bytes_are_synced_before_the_name_and_the_name_before_publish_returns(tmp_path, monkeypatch, way):
    """What a power cut needs; no kill can show it, so the calls are watched."""
    calls: list[tuple[str, str]] = []
    fsync, rename, replace, exchange = os.fsync, os.rename, os.replace, disk.exchange

    def record_calls(verb, call):
        def run(one, other):
            if verb != "exchange" or way == "exchange":
                calls.append((verb, Path(one).name))
            return call(one, other)

        return run

    def watched_fsync(fd):
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{fd}")).name))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", record_calls("rename", rename))
    monkeypatch.setattr(os, "replace", record_calls("rename", replace))
    monkeypatch.setattr(disk, "exchange", record_calls("exchange", exchange))

    publish_file(tmp_path / "file")
    assert calls == [("fsync", "file"), ("rename", "file"), ("fsync", tmp_path.name)]

    publish_folder(tmp_path / "folder")
    calls.clear()
    publish_folder(tmp_path / "folder")
    swap = next(i for i, (verb, _) in enumerate(calls) if verb != "fsync")
    last = max(i for i, (verb, _) in enumerate(calls) if verb != "fsync")
    assert {name for _, name in calls[:swap]} >= {"part", "manifest.json", "folder"}
    if way == "two steps":
        assert tmp_path.name in {name for _, name in calls[:swap]}
    assert ("fsync", tmp_path.name) in calls[last:]


@BOTH
def test_the_umask_decides_the_mode_of_something_new(tmp_path, put):
    with umask(0o027):
        put(tmp_path / "t")
    assert read_mode(tmp_path / "t") == (0o640 if put is publish_file else 0o750)


def test_a_replaced_file_keeps_its_mode_and_a_given_mode_wins(tmp_path):
    target = tmp_path / "key"
    with umask(0o022):
        with publish(target, mode=0o600) as tmp:
            tmp.write_text("secret")
            assert read_mode(tmp.parents[1]) == 0o700
        assert read_mode(target) == 0o600
        publish_file(target)
        assert read_mode(target) == 0o600
        with publish(target, mode=0o444) as tmp:
            tmp.write_text("public")
        assert read_mode(target) == 0o444


def test_a_symbolic_link_still_points_at_what_was_published(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    publish_file(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"


def test_a_long_name_is_published_too(tmp_path):
    publish_file(tmp_path / ("n" * 255))
    with pytest.raises(StoreError, match="too long"):
        publish_file(tmp_path / ("n" * 256))
    assert os.listdir(tmp_path) == ["n" * 255]


def test_a_living_writers_workspace_is_left_alone(tmp_path):
    with publish(tmp_path / "t") as slow:
        slow.write_text("slow")
        publish_file(tmp_path / "t", "quick")
        assert slow.exists()
    assert (tmp_path / "t").read_text() == "slow"
    assert os.listdir(tmp_path) == ["t"]


def test_many_writers_and_readers_of_one_file_never_meet_half_of_it(tmp_path):
    target = tmp_path / "t"
    publish_file(target, "0" * 10_000)
    trouble: list[BaseException] = []

    def write(letter: str) -> None:
        try:
            for _ in range(15):
                publish_file(target, letter * 10_000)
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        text = target.read_text()
        assert len(text) == 10_000
        assert len(set(text)) == 1
    assert not trouble
    assert os.listdir(tmp_path) == ["t"]


def test_many_writers_of_one_folder_leave_one_complete_version(memory_path, way):
    target = memory_path / "t"
    trouble: list[BaseException] = []

    def write(letter: str) -> None:
        try:
            for _ in range(8):
                publish_folder(target, letter)
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble
    verify(target)
    assert os.listdir(memory_path) == ["t"]


def test_a_folder_that_vanishes_or_appears_in_the_last_moment_is_published_over(tmp_path, monkeypatch):
    exchange, rename = disk.exchange, os.rename

    def vanish_then_exchange(one: Path, other: Path) -> bool:
        shutil.rmtree(other)
        return exchange(one, other)

    def appear_then_rename(one: Path, other: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        publish_folder(Path(other), "the other one's")
        rename(one, other)

    publish_folder(tmp_path / "t", "old")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "exchange", vanish_then_exchange)
        publish_folder(tmp_path / "t", "first")
    assert (tmp_path / "t" / "part").read_text() == "first"

    monkeypatch.setattr(os, "rename", appear_then_rename)
    publish_folder(tmp_path / "u", "second")
    assert (tmp_path / "u" / "part").read_text() == "second"
    assert sorted(os.listdir(tmp_path)) == ["t", "u"]


def test_a_folder_replaced_during_the_check_is_not_taken_for_a_foreign_one(tmp_path, monkeypatch):
    is_file = Path.is_file

    def replace_then_look(path: Path) -> bool:
        monkeypatch.setattr(Path, "is_file", is_file)
        publish_folder(tmp_path / "t", "quick")
        return False  # as if asked in the moment between the two steps of the other writer

    publish_folder(tmp_path / "t", "old")
    monkeypatch.setattr(Path, "is_file", replace_then_look)
    publish_folder(tmp_path / "t", "new")
    assert (tmp_path / "t" / "part").read_text() == "new"


def test_a_folder_is_discarded_whole(tmp_path):
    publish_folder(tmp_path / "t")
    discard_dir(tmp_path / "t")
    assert os.listdir(tmp_path) == []
    with pytest.raises(StoreError, match="/t"):
        discard_dir(tmp_path / "t")


def test_there_is_nothing_to_recover_when_nothing_was_stopped(tmp_path):
    publish_folder(tmp_path / "t")
    assert not recover(tmp_path / "t")
    assert not recover(tmp_path / "nothing")
