"""Locks of living processes; test_kill.py has those of killed ones."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time

import pytest

from ridgeline.errors import StoreError
from ridgeline.store import get_owner, lock


def test_a_held_lock_is_refused_with_the_name_of_its_owner(tmp_path):
    path = tmp_path / "lock"
    with lock(path) as mine:
        assert mine.pid == os.getpid()
        assert get_owner(path) == mine
        with pytest.raises(StoreError) as caught, lock(path):
            pass
    sentence = str(caught.value)
    assert str(path) in sentence
    assert f"process {os.getpid()} on {socket.gethostname()}" in sentence
    assert mine.command in sentence


def test_a_lock_is_free_again_after_its_block_however_it_ends(tmp_path):
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), lock(path):
        raise ZeroDivisionError
    assert get_owner(path) is None
    assert path.read_bytes() == b""
    with lock(path):
        pass


def test_waiting_ends_with_the_owner_or_the_timeout(tmp_path):
    path = tmp_path / "lock"
    acquired, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock(path):
            acquired.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    acquired.wait(60)
    start = time.monotonic()
    with pytest.raises(StoreError), lock(path, timeout=0.2):
        pass
    assert time.monotonic() - start >= 0.2  # the owner still holds the lock, so only the timeout ended the wait
    threading.Timer(0.1, free.set).start()
    with lock(path, timeout=None):
        assert free.is_set()
    thread.join()


def test_only_one_of_many_is_inside(tmp_path):
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with lock(tmp_path / "lock", timeout=20):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 20


def test_looking_at_a_lock_never_makes_another_fail(tmp_path):
    path = tmp_path / "lock"
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            get_owner(path)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(50):
            with lock(path):
                pass
    finally:
        stop.set()
        thread.join()


def test_a_lock_file_that_was_replaced_is_a_new_lock(tmp_path):
    path = tmp_path / "lock"
    with lock(path):
        pass
    path.unlink()
    with lock(path):
        assert get_owner(path).pid == os.getpid()


def test_a_lock_file_removed_between_open_and_lock_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    flock = fcntl.flock
    calls: list[int] = []

    def remove_then_flock(fd: int, how: int) -> None:
        if not calls:
            path.unlink()
        calls.append(fd)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", remove_then_flock)
    with lock(path) as mine:
        assert get_owner(path) == mine


def test_no_lock_file_has_no_owner_and_a_missing_folder_is_a_sentence(tmp_path):
    assert get_owner(tmp_path / "lock") is None
    with pytest.raises(StoreError, match="its folder is not there"), lock(tmp_path / "no" / "lock"):
        pass


def test_an_owner_that_has_not_signed_yet_is_another_process(tmp_path):
    path = tmp_path / "lock"
    with lock(path):
        path.write_text('{"pid": ')
        with pytest.raises(StoreError, match="locked by another process"), lock(path):
            pass
