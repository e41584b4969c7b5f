"""A helper process whose children are killed at random or at chosen moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import ridgeline

CRASH_WORKER = Path(__file__).with_name("crash_worker.py")


@dataclass(frozen=True)
class CrashWorker:
    """The helper process: it reads commands and writes lines; see crash_worker.py."""

    process: subprocess.Popen[str]

    def send(self, command: str) -> None:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def receive(self, word: str) -> int:
        line = self.process.stdout.readline().split()
        assert line, "the helper process ended"
        assert line[0] == word, line
        return int(line[1])

    def read_acks_until_exit(self) -> list[int]:
        acks = []
        while True:
            word, number = self.process.stdout.readline().split()
            if word == "dead":
                assert int(number) == signal.SIGKILL, "the child failed before it was killed"
                return acks
            acks.append(int(number))

    def stop_before_call(self, number: int) -> bool:
        """Kill a child before its N-th call; return False if it ran to its end instead."""
        self.send(f"stop {number}")
        end = self.receive("dead")
        assert end in (0, signal.SIGKILL), "the child failed by itself"
        return end == signal.SIGKILL


@contextmanager
def start_crash_worker(kind: str, folder: Path) -> Iterator[CrashWorker]:
    source = str(Path(ridgeline.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, CRASH_WORKER, kind, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        start_new_session=True,
    )
    with process:
        try:
            yield CrashWorker(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with the children that a failed test left alive


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in memory, if there is one: a kill has the same effect there, and fsync costs nothing."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else tmp_path_factory.mktemp("memory")


@pytest.fixture
def memory_path(memory: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def crash_worker() -> Iterator[Callable[[str, Path], CrashWorker]]:
    with ExitStack() as stack:
        yield lambda kind, folder: stack.enter_context(start_crash_worker(kind, folder))
