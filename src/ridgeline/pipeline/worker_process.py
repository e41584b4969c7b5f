"""The parent's end of a worker: a device, a place, and the process that stands there now."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ridgeline.machine import Placed, Placement
from ridgeline.pipeline.shared import Parcel, line, pack, receive, send

QUEUE = 2  # chunks a worker has: the one it computes, and one so that it need not wait for the caller
EXIT_S = 5.0  # from the end of its line to the end of the process

START = "import sys; sys.path[:] = {path!r}; from ridgeline.pipeline.worker import main; main({line}, {life}, {parent})"


@dataclass(eq=False)
class Task:
    """A chunk under way."""

    index: int
    parcel: Parcel
    deaths: int = 0  # workers that died or hung over it
    holders: int = 0  # posts that have it
    over: bool = False  # answered, given up, or no longer wanted

    def finish(self) -> None:
        self.over = True
        self.parcel.close()

    def __lt__(self, other: Task) -> bool:
        return self.index < other.index


@dataclass
class Turn:
    """A task in the hands of one worker."""

    ticket: int
    task: Task
    sent: float
    recalled: bool = False


@dataclass(frozen=True)
class WorkerStats:
    """What one worker has done since the pool began; restarts of its process do not reset it."""

    worker: int
    device: str
    pid: int
    cpus: tuple[int, ...]  # where the kernel says it stands; empty: it was not placed
    chunks: int
    busy_s: float
    restarts: int


@dataclass(eq=False)
class Post:
    number: int
    device: str
    placement: Placement | None
    factory: bytes
    ready: bool = False
    turns: deque[Turn] = field(default_factory=deque)
    stillborn: int = 0  # times in a row that it died before it was ready
    restarts: int = 0  # for a process that died; the first of each `with` is none
    chunks: int = 0
    busy_s: float = 0.0
    since: float = 0.0  # when it was started, or when it answered last
    where: Placed | None = None
    full: bool = False
    _ticket: int = 0

    @property
    def name(self) -> str:
        return f"worker {self.number} ({self.device})"

    def start(self) -> None:
        self.line, theirs = line()
        life, self._life = os.pipe()
        try:
            code = START.format(path=sys.path, line=theirs.fileno(), life=life, parent=os.getpid())
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what libraries print is no part of the caller's output
                pass_fds=(theirs.fileno(), life),
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except BaseException:
            self.line.close()
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life)
        self.ready, self.full, self.since = False, False, time.monotonic()
        parcel = pack((self.placement, self.device, _home(), self.factory))
        with suppress(ConnectionError):  # it is dead already: the next look at it says so
            send(self.line, ("start",), parcel)
        parcel.close()
        self.line.setblocking(False)

    def give(self, task: Task) -> bool:
        """Send it a chunk; False if its line is full."""
        self._ticket += 1
        try:
            send(self.line, ("chunk", self._ticket), task.parcel)
        except BlockingIOError:
            self.full = True
            return False
        except ConnectionError:
            return False
        self.turns.append(Turn(self._ticket, task, time.monotonic()))
        task.holders += 1
        return True

    def recall(self, turn: Turn) -> None:
        """Ask for a waiting chunk back. It may be too late: then it is answered all the same."""
        turn.recalled = True
        with suppress(BlockingIOError, ConnectionError):
            send(self.line, ("drop", turn.ticket))

    def read(self) -> tuple[tuple[Any, ...], Parcel] | None:
        """What it said next; None if it has said no more, EOFError if it never will."""
        try:
            words, parcel = receive(self.line)
        except BlockingIOError:
            return None
        self.full = False
        return words, parcel

    def take(self, ticket: int) -> Task:
        """The chunk it has answered."""
        turn = next(t for t in self.turns if t.ticket == ticket)
        self.turns.remove(turn)
        turn.task.holders -= 1
        return turn.task

    def busy_since(self) -> float | None:
        """When it began what it has in hand (or began to start); None if it has nothing to do."""
        if not self.ready:
            return self.since
        return max(self.since, self.turns[0].sent) if self.turns else None

    def died(self) -> bool:
        return self._exit() is not None

    def lost(self) -> str:
        """Its line is closed or it is dead: clear up, and say how it ended."""
        until = time.monotonic() + EXIT_S
        while (left := self._exit()) is None and time.monotonic() < until:
            time.sleep(0.001)
        self.kill()
        if left is None:
            return "closed its line"
        how, number = left
        return f"exited with code {number}" if how == os.CLD_EXITED else f"was killed by {_signal(number)}"

    def kill(self) -> None:
        """End the process and whatever it started; safe to call twice."""
        if self.process.returncode is None:  # its group goes by its number until someone has waited for it
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.line.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        self.ready = False

    def _exit(self) -> tuple[int, int] | None:
        """(how, code or signal) of a process that has ended, which stays to be waited for."""
        if self.process.returncode is not None:
            code = self.process.returncode
            return (os.CLD_EXITED, code) if code >= 0 else (os.CLD_KILLED, -code)
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return (found.si_code, found.si_status) if found else None

    def leave(self) -> None:
        """Let it go by itself: its line ends."""
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def stats(self) -> WorkerStats:
        cpus = self.where.cpus if self.where else ()
        return WorkerStats(self.number, self.device, self.process.pid, cpus, self.chunks, self.busy_s, self.restarts)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _home() -> dict[str, Any]:
    """Where the caller's script is, for functions that are defined in it (`multiprocessing.spawn.prepare` reads it)."""
    script = sys.modules["__main__"]
    home: dict[str, Any] = {"sys_argv": sys.argv, "sys_path": sys.path, "dir": os.getcwd()}
    spec, path = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:
        home["init_main_from_name"] = spec.name
    elif path is not None:
        home["init_main_from_path"] = os.path.abspath(path)
    return home
