"""The parent's side of a worker: its device, its placement, and the process that runs there now."""

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
from ridgeline.pipeline.shared_memory import Payload, make_connection, pack, receive, send

QUEUE = 2  # chunks of a worker: the one it computes, and one so that it does not wait for the caller
EXIT_S = 5.0  # from the end of its connection to the end of the process

START = "import sys; sys.path[:] = {path!r}; from ridgeline.pipeline.worker import main; main({fd}, {life}, {parent})"


@dataclass(eq=False)
class Task:
    """A chunk in progress."""

    index: int
    payload: Payload
    deaths: int = 0  # workers that died or hung while they computed it
    holders: int = 0  # workers that have it
    over: bool = False  # computed, given up, or no longer needed

    def finish(self) -> None:
        """Mark the task as over and release its payload."""
        self.over = True
        self.payload.close()

    def __lt__(self, other: Task) -> bool:
        return self.index < other.index


@dataclass
class Assignment:
    """A task that was sent to one worker."""

    ticket: int
    task: Task
    sent: float
    recalled: bool = False


@dataclass(frozen=True)
class WorkerStats:
    """What one worker has done since the pool started; a restart of its process does not reset it."""

    worker: int
    device: str
    pid: int
    cpus: tuple[int, ...]  # the CPUs that the kernel reports; empty: it was not placed
    chunks: int
    busy_s: float
    restarts: int


@dataclass(eq=False)
class WorkerProcess:
    """One worker of a pool, or one rank of a group: starts, feeds, watches and ends its process."""

    number: int
    device: str
    placement: Placement | None
    factory: bytes
    ready: bool = False
    assignments: deque[Assignment] = field(default_factory=deque)
    failed_starts: int = 0  # consecutive deaths before the process was ready
    restarts: int = 0  # of a dead process; the first start of each `with` does not count
    chunks: int = 0
    busy_s: float = 0.0
    since: float = 0.0  # time of its start, or of its last result
    where: Placed | None = None
    full: bool = False
    _ticket: int = 0

    @property
    def name(self) -> str:
        return f"worker {self.number} ({self.device})"

    def start(self) -> None:
        """Start the process and send it its placement, device and factory."""
        self.connection, child = make_connection()
        life, self._life = os.pipe()
        try:
            code = START.format(path=sys.path, fd=child.fileno(), life=life, parent=os.getpid())
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=2,  # text that libraries print is not part of the caller's output
                pass_fds=(child.fileno(), life),
                start_new_session=True,  # only the parent gets Ctrl-C
            )
        except BaseException:
            self.connection.close()
            os.close(self._life)
            raise
        finally:
            child.close()
            os.close(life)
        self.ready, self.full, self.since = False, False, time.monotonic()
        payload = pack((self.placement, self.device, _describe_script(), self.factory))
        with suppress(ConnectionError):  # it is dead already: the next check notices it
            send(self.connection, ("start",), payload)
        payload.close()
        self.connection.setblocking(False)

    def assign(self, task: Task) -> bool:
        """Send it a chunk; False if its connection is full."""
        self._ticket += 1
        try:
            send(self.connection, ("chunk", self._ticket), task.payload)
        except BlockingIOError:
            self.full = True
            return False
        except ConnectionError:
            return False
        self.assignments.append(Assignment(self._ticket, task, time.monotonic()))
        task.holders += 1
        return True

    def recall(self, assignment: Assignment) -> None:
        """Request a waiting chunk back. It may be too late: then its result comes all the same."""
        assignment.recalled = True
        with suppress(BlockingIOError, ConnectionError):
            send(self.connection, ("drop", assignment.ticket))

    def read(self) -> tuple[tuple[Any, ...], Payload] | None:
        """Return its next message, or None if there is no message yet; raises EOFError if no more will come."""
        try:
            header, payload = receive(self.connection)
        except BlockingIOError:
            return None
        self.full = False
        return header, payload

    def take(self, ticket: int) -> Task:
        """Remove and return the task of an answered assignment."""
        assignment = next(a for a in self.assignments if a.ticket == ticket)
        self.assignments.remove(assignment)
        assignment.task.holders -= 1
        return assignment.task

    def busy_since(self) -> float | None:
        """When its current chunk, or its start, began; None if it is idle."""
        if not self.ready:
            return self.since
        return max(self.since, self.assignments[0].sent) if self.assignments else None

    def died(self) -> bool:
        """Whether the process has ended."""
        return self._get_exit() is not None

    def clean_up(self) -> str:
        """End a worker whose connection is closed or whose process is dead; return how it ended."""
        deadline = time.monotonic() + EXIT_S
        while (ended := self._get_exit()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        self.kill()
        if ended is None:
            return "closed its connection"
        kind, number = ended
        return f"exited with code {number}" if kind == os.CLD_EXITED else f"was killed by {_name_signal(number)}"

    def kill(self) -> None:
        """End the process and all that it started; safe to call twice."""
        if self.process.returncode is None:  # the group keeps its number until the process is waited for
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.connection.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        self.ready = False

    def _get_exit(self) -> tuple[int, int] | None:
        """(kind, code or signal) of an ended process, which is not waited for here."""
        if self.process.returncode is not None:
            code = self.process.returncode
            return (os.CLD_EXITED, code) if code >= 0 else (os.CLD_KILLED, -code)
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return (ended.si_code, ended.si_status) if ended else None

    def close(self) -> None:
        """Close its connection, so that an idle worker exits by itself."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def stats(self) -> WorkerStats:
        """Return the work of this worker since the pool started."""
        cpus = self.where.cpus if self.where else ()
        return WorkerStats(self.number, self.device, self.process.pid, cpus, self.chunks, self.busy_s, self.restarts)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _describe_script() -> dict[str, Any]:
    """The caller's script, for functions that are defined in it (`multiprocessing.spawn.prepare` reads it)."""
    script = sys.modules["__main__"]
    settings: dict[str, Any] = {"sys_argv": sys.argv, "sys_path": sys.path, "dir": os.getcwd()}
    spec, path = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:
        settings["init_main_from_name"] = spec.name
    elif path is not None:
        settings["init_main_from_path"] = os.path.abspath(path)
    return settings
