"""Fork children that are killed while they write: `python crash_worker.py KIND FOLDER`.

It reads one command per line and forks a child for each: `loop` writes versions until it is killed, `stop N` writes one
version and kills itself before its N-th call that changes the disk. It prints the pid of the child, every acknowledged
version ("ack N") and the end of the child ("dead SIGNAL"). A fork is much cheaper than a new interpreter, so a test can
kill hundreds of children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from ridgeline import store
from ridgeline.store import disk

LINES = 3000
# A kill before a call that only reads equals a kill before the next call that changes something.
CHANGES = {
    *("open", "write", "pwrite", "fsync", "close", "ftruncate", "chmod", "flock"),
    *("mkdir", "rename", "replace", "unlink", "rmdir", "remove"),
}
PARTS = ("a.txt", "b.txt", "deep/c.txt")


def print_line(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def make_text(version: int) -> str:
    return f"{version}\n" * LINES


def write_file(folder: Path, version: int) -> None:
    with store.publish(folder / "target") as tmp:
        tmp.write_text(make_text(version))


def write_dir(folder: Path, version: int) -> None:
    with store.publish_dir(folder / "target", {"version": version}) as tmp:
        (tmp / "deep").mkdir()
        for part in PARTS:
            (tmp / part).write_text(make_text(version))


def write_dir_in_two_steps(folder: Path, version: int) -> None:
    disk.exchange = lambda one, other: False
    write_dir(folder, version)


def write_chunk(folder: Path, version: int) -> None:
    with store.ChunkSet(folder / "job", key="kill", total=10_000_000) as chunks:
        chunks.put(version, make_text(version).encode())


def finish_chunks(folder: Path, version: int) -> None:
    with store.ChunkSet(folder / "job", key="kill", total=3) as chunks:
        for number in chunks.missing():
            chunks.put(number, make_text(number).encode())
        chunks.finish(folder / "target")


def write_journal(folder: Path, version: int) -> None:
    store.append_lines(folder / "journal.jsonl", [{"version": version, "pad": "x" * 5000}])


def take_lock(folder: Path, version: int) -> None:
    with store.lock(folder / "lock", timeout=60):
        pass


def hold_lock(folder: Path, version: int) -> None:
    with store.lock(folder / "lock"):
        print_line("ack 0")
        time.sleep(60)


def hold_lock_with_workers(folder: Path, version: int) -> None:
    """Hold a lock with a forked worker and a started program that both outlive the owner."""
    with store.lock(folder / "lock"):
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
        program = subprocess.Popen(["sleep", "60"], close_fds=False)
        print_line(f"ack {worker}")
        print_line(f"ack {program.pid}")
        time.sleep(60)


def hold_lock_while_a_fork_leaves(folder: Path, version: int) -> None:
    pid = os.getpid()
    try:
        with store.lock(folder / "lock"):
            if os.fork() == 0:
                # probably gets the descriptor number of the lock: leaving the block must not touch it
                bystander = os.open(folder / "bystander", os.O_RDWR | os.O_CREAT)
                os.write(bystander, b"keep")
                sys.exit()
            os.wait()
            print_line("ack 0")
            time.sleep(60)
    finally:
        if os.getpid() != pid:
            os._exit(0)


def publish_while_a_fork_leaves(folder: Path, version: int) -> None:
    pid = os.getpid()
    with store.publish(folder / "target") as tmp, store.publish_dir(folder / "folder") as tmp_dir:
        tmp.write_text("by the parent")
        (tmp_dir / "part").write_text("by the parent")
        if os.fork() != 0:
            os.wait()
            assert tmp.exists()
            assert tmp_dir.exists()
            assert not (folder / "target").exists()
            assert not (folder / "folder").exists()
    if os.getpid() != pid:
        os._exit(0)


def main(kind: str, folder: Path) -> None:
    write: Callable[[Path, int], None] = globals()[kind]
    version = 1
    for line in sys.stdin:
        command, *numbers = line.split()
        child = os.fork()
        if child == 0:
            if command == "loop":
                print_line(f"pid {os.getpid()}")
                for number in count(version):
                    write(folder, number)
                    print_line(f"ack {number}")
            else:
                die_before_call(int(numbers[0]))
                write(folder, 2)
                sys.setprofile(None)
                os._exit(0)
        _, status = os.waitpid(child, 0)
        version += 100_000
        print_line(f"dead {os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)}")


def count(start: int) -> Iterator[int]:
    while True:
        yield start
        start += 1


def die_before_call(number: int) -> None:
    seen = 0

    def watch(frame: FrameType, event: str, called: object) -> None:
        nonlocal seen
        if event == "c_call" and getattr(called, "__name__", "") in CHANGES:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
