"""A full disk: a small filesystem in memory, mounted for the test if that is allowed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.errors import StoreError
from ridgeline.store import ChunkSet, append_lines, lock, publish, publish_dir, read_lines, verify

SIZE = 256 * 1024
TOO_MUCH = bytes(2 * SIZE)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def test_a_file_that_does_not_fit_leaves_the_old_one(small_disk):
    target = small_disk / "t"
    with publish(target) as tmp:
        tmp.write_text("old")
    with pytest.raises(StoreError, match="the disk is full") as caught, publish(target) as tmp:
        tmp.write_bytes(TOO_MUCH)
    assert str(target) in str(caught.value)
    assert target.read_text() == "old"
    assert os.listdir(small_disk) == ["t"]


def test_a_folder_that_does_not_fit_leaves_the_old_one(small_disk):
    target = small_disk / "t"
    with publish_dir(target, {"v": 1}) as tmp:
        (tmp / "part").write_text("old")
    with pytest.raises(StoreError, match="the disk is full"), publish_dir(target) as tmp:
        (tmp / "part").write_bytes(TOO_MUCH)
    assert verify(target).meta == {"v": 1}
    assert os.listdir(small_disk) == ["t"]


def test_a_manifest_that_does_not_fit_leaves_the_old_folder(small_disk):
    target = small_disk / "t"
    with publish_dir(target, {"v": 1}):
        pass
    with pytest.raises(StoreError, match="the disk is full"), publish_dir(target, {"v": 2}):
        filler = fill(small_disk)
    assert verify(target).meta == {"v": 1}
    filler.unlink()
    assert os.listdir(small_disk) == ["t"]


def test_a_chunk_that_does_not_fit_is_missing_and_the_others_stay(small_disk):
    with ChunkSet(small_disk / "job", key="k", total=2) as chunks:
        chunks.put(0, b"fits")
        with pytest.raises(StoreError, match="the disk is full"):
            chunks.put(1, TOO_MUCH)
        assert chunks.missing() == [1]
        assert chunks.read(0) == b"fits"


def test_an_append_that_does_not_fit_is_taken_back_whole(small_disk):
    journal = small_disk / "j.jsonl"
    append_lines(journal, [{"n": 0}])
    before = journal.read_bytes()
    with pytest.raises(StoreError, match="the disk is full"):
        append_lines(journal, [{"n": 1}, {"pad": "x" * len(TOO_MUCH)}])
    assert journal.read_bytes() == before
    append_lines(journal, [{"n": 2}])
    assert [item["n"] for item in read_lines(journal).objects] == [0, 2]


def test_a_full_disk_can_still_be_locked(small_disk):
    fill(small_disk)
    path = small_disk / "lock"
    with lock(path), pytest.raises(StoreError, match="locked by another process"), lock(path):
        pass
