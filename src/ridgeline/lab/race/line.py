"""The lines to a contender's processes: start them one by one or by a launcher, speak, notice who dies or hangs.

A process that the lab starts has a pipe each way. The ranks that a launcher starts (mpirun hands no descriptors on)
open named pipes, found by their rank's number: …/orders.$PMI_RANK.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ridgeline.lab.workload import Launcher

LOOK_EVERY_S = 1.0  # a child can die while a process it forked holds its pipe open
LAST_WORDS = 64 << 10  # bytes of its output that are searched for them
LEAVING_S = 3.0  # for a launcher whose ranks were told to go, then once more after SIGTERM: it has things to clear up


class ContenderLost(Exception):
    """A contender crashed, hung or refused; the message says which and why."""


class Line:
    """Two descriptors to a rank: orders there, answers back, each a JSON object in a line."""

    def __init__(self, child: _Child, orders: int, answers: int) -> None:
        self._child, self._orders, self._answers = child, orders, answers
        self._pending = b""
        self._rank: int | None = None  # of a rank that is not the child itself

    def order(self, body: Mapping[str, Any]) -> None:
        try:
            os.write(self._orders, json.dumps(body).encode() + b"\n")
        except BrokenPipeError:
            raise ContenderLost(self._child.cause_of_death()) from None

    def answer(self, timeout_s: float, began: float | None = None) -> dict[str, Any]:
        """The next line it says, as an object; numbers that JSON has no word for (NaN, infinity) come as None."""
        deadline = (time.monotonic() if began is None else began) + timeout_s
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._answers], [], [], min(left, LOOK_EVERY_S))
            if ready:
                piece = os.read(self._answers, 1 << 20)
                if not piece:
                    raise ContenderLost(self._child.cause_of_death())
                self._pending += piece
            elif self._child.ended():
                raise ContenderLost(self._child.cause_of_death())
            elif not left:
                self.kill()
                raise ContenderLost(f"gave no answer within {timeout_s:.3g} s and was stopped; --timeout gives it more")
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            found = json.loads(line, parse_constant=lambda _: None)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ContenderLost(f"wrote into the lab's own pipe: {line[:80].decode(errors='replace')!r}")
        return found

    def met(self, pid: int) -> None:
        """Who is at the other end: a launcher that dies may leave its ranks behind."""
        if pid != self._child.pid and self._rank is None:
            with suppress(OSError):
                self._rank = os.pidfd_open(pid)

    def hang_up(self) -> None:
        if self._orders >= 0:
            _close(self._orders, self._answers)
        self._orders = self._answers = -1

    def kill(self) -> None:
        """End the child and whatever it started; safe to call twice."""
        self.hang_up()
        self._child.kill()
        if self._rank is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._rank, signal.SIGKILL)
            os.close(self._rank)
            self._rank = None


def started(command: Sequence[str], env: Mapping[str, str]) -> Line:
    """A process of its own for one rank; it is told its two descriptors."""
    orders_out, orders = os.pipe()
    answers, answers_in = os.pipe()
    try:
        child = _Child([*command, str(orders_out), str(answers_in)], env, (orders_out, answers_in))
    except ContenderLost:
        _close(orders, answers)
        raise
    finally:
        _close(orders_out, answers_in)
    return Line(child, orders, answers)


def launched(command: Sequence[str], ranks: int, launcher: Launcher) -> list[Line]:
    """All ranks at once, by a launcher; each is told where its two pipes lie."""
    folder = tempfile.TemporaryDirectory(prefix="ridgeline-ranks-")
    ends = [_ends(folder.name, rank) for rank in range(ranks)]
    mine = [f"{folder.name}/{name}.${launcher.rank}" for name in ("orders", "answers")]
    try:
        child = _LauncherChild([*launcher.command, *command, *mine], dict(launcher.environment), folder)
    except ContenderLost:
        _close(*(fd for pair in ends for fd in pair))
        folder.cleanup()
        raise
    return [Line(child, orders, answers) for orders, answers in ends]


def _ends(folder: str, rank: int) -> tuple[int, int]:
    """The lab's ends of a rank's two named pipes."""
    for name in ("orders", "answers"):
        os.mkfifo(f"{folder}/{name}.{rank}", 0o600)
    # Read and write: opening it waits for nobody, and what is written stays until the rank comes.
    orders = os.open(f"{folder}/orders.{rank}", os.O_RDWR | os.O_CLOEXEC)
    answers = os.open(f"{folder}/answers.{rank}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(answers, True)
    return orders, answers


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)


class _Child:
    """A process and what it says outside its line; that is read only when it dies."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=pass_fds,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:
            self._log.close()
            raise ContenderLost(f"could not start {command[0]}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Safe to call twice."""
        if self._process.returncode is None:  # its group goes by its number until someone has waited for it
            self._kill_group()
            self._process.wait()
        self._log.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def cause_of_death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._kill_group()  # what it forked is not left behind
        code = self._process.returncode
        if code is None:
            how = "closed its pipe"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_WORDS))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        said = [line for line in lines if any(c.isalnum() for c in line)]  # launchers draw lines around theirs
        return f"{how}: {said[-1][:300]}" if said else how


class _LauncherChild(_Child):
    """Its ranks are in sessions of their own: it is given time to end them and to clear up."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        super().__init__(command, env)
        self._folder = folder

    def kill(self) -> None:
        self._wait()  # its ranks have been hung up on, and go
        super().kill()
        self._folder.cleanup()

    def _kill_group(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._wait()
        super()._kill_group()

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING_S)
