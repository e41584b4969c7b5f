"""The nursery: a helper process whose children are killed at random or at chosen moments."""

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

VICTIM = Path(__file__).with_name("victim.py")


@dataclass(frozen=True)
class Nursery:
    """Commands go in, lines come out; see victim.py."""

    process: subprocess.Popen[str]

    def tell(self, command: str) -> None:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self, word: str) -> int:
        line = self.process.stdout.readline().split()
        assert line, "the nursery died"
        assert line[0] == word, line
        return int(line[1])

    def acks_until_death(self) -> list[int]:
        acks = []
        while True:
            word, number = self.process.stdout.readline().split()
            if word == "dead":
                assert int(number) == signal.SIGKILL, "the victim failed before it was killed"
                return acks
            acks.append(int(number))

    def stop_before_call(self, number: int) -> bool:
        """Kill a child before its given call; False once it ran to its end instead."""
        self.tell(f"stop {number}")
        end = self.hear("dead")
        assert end in (0, signal.SIGKILL), "the victim failed by itself"
        return end == signal.SIGKILL


@contextmanager
def nursery_of(kind: str, folder: Path) -> Iterator[Nursery]:
    source = str(Path(ridgeline.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, VICTIM, kind, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        start_new_session=True,
    )
    with process:
        try:
            yield Nursery(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with the victims that a failed test left alive


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place in memory where there is one: a kill tears no differently there, and fsync is free."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else tmp_path_factory.mktemp("memory")


@pytest.fixture
def memory_path(memory: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def nursery() -> Iterator[Callable[[str, Path], Nursery]]:
    with ExitStack() as stack:
        yield lambda kind, folder: stack.enter_context(nursery_of(kind, folder))
