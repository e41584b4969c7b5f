"""The parent's end of a contender: start its processes, send orders, read answers, detect crashes and hangs.

One warm process runs per contender and rank. Only the contender whose turn it is runs; the others sleep on a pipe.
A process that the lab starts has one pipe in each direction. Ranks that a launcher starts (mpirun passes no file
descriptors on) open named pipes that carry the number of their rank: …/orders.$PMI_RANK.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ridgeline.lab.race.checkout import Checkout
from ridgeline.lab.race.contender import PROTOCOL
from ridgeline.lab.workload import Launcher, is_path

START_TIMEOUT_S = 120.0
POLL_S = 1.0  # a child can die while a process that it forked keeps its pipe open
LOG_TAIL_BYTES = 64 << 10  # searched for the last message of a dead process
LAUNCHER_EXIT_S = 3.0  # a launcher gets this time to clean up when its ranks end, and again after SIGTERM
# Where the contender process is in versions of this package, newest first.
CONTENDER_MODULES = ("ridgeline.lab.race.contender", "ridgeline.lab.contender")
# An editable install has priority over PYTHONPATH, so the process removes it before it imports another tree.
ENTRY_SCRIPT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path.insert(0, {tree!r})
from {module} import main
main()
"""


# The modules of a user's repository come from another folder, ridgeline from where it is.
CHECKOUT_SCRIPT = """
from ridgeline.lab.race.checkout import use_checkout
use_checkout({repository!r}, {folder!r}, {environment!r})
from ridgeline.lab.race.contender import main
main()
"""


class ContenderFailure(Exception):
    """A contender crashed, hung or refused; the message says which and why."""


@dataclass(frozen=True)
class ContenderSpec:
    """A contender of a race and where its process comes from.

    `name`: its name in the record. `contender`: its name in the workload. The two differ for another version of our
    code (`ridgeline@1a2b3c4`).
    """

    name: str
    contender: str
    interpreter: str = sys.executable
    tree: str | None = None  # the `src` folder of its ridgeline; None: the one that the interpreter imports
    launcher: Launcher | None = None  # None: the lab starts its ranks itself
    checkout: Checkout | None = None  # the version of a user's repository; None: its working tree

    def locate(self, reference: str) -> str:
        """Return the workload as this contender loads it: the module, or the file of its version."""
        return self.checkout.locate(reference) if self.checkout and is_path(reference) else reference


class Group(Protocol):
    """What carries out the orders of a race for one contender, on all of its ranks."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    @property
    def fresh(self) -> bool:
        """Whether it must load its libraries first."""

    def do(
        self, what: str, timeout_s: float, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Carry out one order and return the answers of all ranks."""

    def send(self, what: str, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any) -> None:
        """Send one order."""

    def receive(self, timeout_s: float, *, allow_failure: bool = False) -> list[dict[str, Any]]:
        """Return the answers of all ranks to the oldest order."""

    def kill(self) -> None:
        """End all processes; safe to call twice."""


class Pool(Protocol):
    """Where a race gets its groups from."""

    def get(self, spec: ContenderSpec, ranks: int) -> Group:
        """Return the group of a contender."""

    def drop(self, group: Any) -> None:
        """End a group."""


class RankGroup:
    """The processes of one contender, one per rank; they get the same orders."""

    def __init__(self, spec: ContenderSpec, ranks: int = 1) -> None:
        self.spec = spec
        self.pids: list[int] = []  # of the ranks, once they have answered
        self._connected = False
        self._channels: list[_Channel] = []
        command = [spec.interpreter, *_entry_arguments(spec)]
        if spec.launcher is not None:
            self._channels = _launch_ranks(command, ranks, spec.launcher)
            return
        port = str(_find_free_port()) if ranks > 1 else ""
        try:
            for rank in range(ranks):
                variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                env = {**{k: str(v) for k, v in variables.items()}, **rendezvous} if ranks > 1 else {}
                self._channels.append(_start_process(command, env))
        except BaseException:
            self.kill()
            raise

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self._channels)

    @property
    def fresh(self) -> bool:
        """Whether the processes have not answered yet."""
        return not self._connected

    def do(
        self, what: str, timeout_s: float, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Send one order to all ranks and return their answers; all ranks share one deadline."""
        self.send(what, per_rank, **order)
        return self.receive(timeout_s)

    def send(self, what: str, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any) -> None:
        """Send one order to all ranks; each order needs one call of `receive`."""
        rank_orders = per_rank or [{}] * len(self._channels)
        for channel, rank_order in zip(self._channels, rank_orders, strict=True):
            channel.send({"do": what, **order, **rank_order})

    def receive(self, timeout_s: float, *, allow_failure: bool = False) -> list[dict[str, Any]]:
        """Return the answers of all ranks to the oldest order without an answer.

        Raises ContenderFailure if the order failed in a rank, unless `allow_failure`: an older version may not know
        the order.
        """
        self._connect()
        start = time.monotonic()
        answers = [channel.receive(timeout_s, start) for channel in self._channels]
        for rank, answer in enumerate(answers):
            if "failed" in answer and not allow_failure:
                place = f"in rank {rank} " if len(answers) > 1 else ""
                raise ContenderFailure(f"{place}raised {answer['failed']}")
        return answers

    def kill(self) -> None:
        """End all processes; safe to call twice."""
        for channel in self._channels:  # all at once: a rank that ends alone waits for the others
            channel.close()
        for channel in self._channels:
            channel.kill()

    def _connect(self) -> None:
        """Read the first message of each rank once, and check its protocol and its source tree."""
        if self._connected:
            return
        tree = self.spec.tree
        for channel in self._channels:
            hello = channel.receive(START_TIMEOUT_S)
            if hello.get("protocol") != PROTOCOL:
                raise ContenderFailure(f"speaks protocol {hello.get('protocol')}, this lab speaks {PROTOCOL}")
            if tree and not str(hello.get("home")).startswith(tree):
                raise ContenderFailure(f"runs the code of {hello['home']}, not of {tree}")
            channel.set_rank_pid(hello["pid"])
            self.pids.append(hello["pid"])
        self._connected = True

    def __enter__(self) -> RankGroup:
        try:
            self._connect()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class ProcessPool:
    """Keeps the processes of contenders warm from one case to the next."""

    def __init__(self) -> None:
        self._groups: dict[tuple[ContenderSpec, int], RankGroup] = {}

    def get(self, spec: ContenderSpec, ranks: int) -> RankGroup:
        """Return the processes of a contender; start them if they do not run."""
        key = (spec, ranks)
        if key not in self._groups:
            self._groups[key] = RankGroup(spec, ranks)
        return self._groups[key]

    def drop(self, group: RankGroup) -> None:
        """End the processes of a contender."""
        group.kill()
        self._groups = {k: g for k, g in self._groups.items() if g is not group}

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups.values():
            group.kill()
        self._groups = {}


def module_path(module: str) -> str:
    """Return the path of a module's file below `src`."""
    return f"{module.replace('.', '/')}.py"


def _entry_arguments(spec: ContenderSpec) -> list[str]:
    """Return the arguments with which an interpreter starts the contender process."""
    if spec.checkout is not None:
        where = spec.checkout
        return [
            "-c",
            CHECKOUT_SCRIPT.format(repository=where.repository, folder=where.folder, environment=sys.prefix),
        ]
    if spec.tree is None:
        return ["-m", CONTENDER_MODULES[0]]
    files = {module: Path(spec.tree, module_path(module)) for module in CONTENDER_MODULES}
    module = next((module for module, file in files.items() if file.is_file()), CONTENDER_MODULES[0])
    return ["-c", ENTRY_SCRIPT.format(tree=spec.tree, module=module)]


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Channel:
    """Two descriptors to a rank: one for orders, one for answers, each a JSON object per line."""

    def __init__(self, child: _Child, orders: int, answers: int) -> None:
        self._child, self._orders, self._answers = child, orders, answers
        self._pending = b""
        self._rank_pidfd: int | None = None  # of a rank that is not the child itself

    def send(self, body: Mapping[str, Any]) -> None:
        try:
            os.write(self._orders, json.dumps(body).encode() + b"\n")
        except BrokenPipeError:
            raise ContenderFailure(self._child.describe_death()) from None

    def receive(self, timeout_s: float, start: float | None = None) -> dict[str, Any]:
        """Return the next line as an object; NaN and infinity become None. The timeout counts from `start`."""
        deadline = (time.monotonic() if start is None else start) + timeout_s
        while b"\n" not in self._pending:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._answers], [], [], min(left_s, POLL_S))
            if ready:
                chunk = os.read(self._answers, 1 << 20)
                if not chunk:
                    raise ContenderFailure(self._child.describe_death())
                self._pending += chunk
            elif self._child.ended():
                raise ContenderFailure(self._child.describe_death())
            elif not left_s:
                self.kill()
                raise ContenderFailure(
                    f"gave no answer within {timeout_s:.3g} s and was stopped; --timeout gives it more"
                )
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            answer = json.loads(line, parse_constant=lambda _: None)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ContenderFailure(f"wrote into the lab's own pipe: {line[:80].decode(errors='replace')!r}")
        return answer

    def set_rank_pid(self, pid: int) -> None:
        """Remember the process at the other end: a launcher that dies may leave its ranks behind."""
        if pid != self._child.pid and self._rank_pidfd is None:
            with suppress(OSError):
                self._rank_pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        if self._orders >= 0:
            _close(self._orders, self._answers)
        self._orders = self._answers = -1

    def kill(self) -> None:
        """End the child and all processes that it started; safe to call twice."""
        self.close()
        self._child.kill()
        if self._rank_pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._rank_pidfd, signal.SIGKILL)
            os.close(self._rank_pidfd)
            self._rank_pidfd = None


def _start_process(command: Sequence[str], env: Mapping[str, str]) -> _Channel:
    """Start the process of one rank; its command line names its two descriptors."""
    orders_read, orders_write = os.pipe()
    answers_read, answers_write = os.pipe()
    try:
        child = _Child([*command, str(orders_read), str(answers_write)], env, (orders_read, answers_write))
    except ContenderFailure:
        _close(orders_write, answers_read)
        raise
    finally:
        _close(orders_read, answers_write)
    return _Channel(child, orders_write, answers_read)


def _launch_ranks(command: Sequence[str], ranks: int, launcher: Launcher) -> list[_Channel]:
    """Start all ranks at once by a launcher; the command line names their two named pipes."""
    folder = tempfile.TemporaryDirectory(prefix="ridgeline-ranks-")
    pipes = [_open_pipes(folder.name, rank) for rank in range(ranks)]
    paths = [f"{folder.name}/{name}.${launcher.rank}" for name in ("orders", "answers")]
    try:
        child = _LauncherChild([*launcher.command, *command, *paths], dict(launcher.environment), folder)
    except ContenderFailure:
        _close(*(fd for pair in pipes for fd in pair))
        folder.cleanup()
        raise
    return [_Channel(child, orders, answers) for orders, answers in pipes]


def _open_pipes(folder: str, rank: int) -> tuple[int, int]:
    """Create the two named pipes of a rank and open the lab's ends."""
    for name in ("orders", "answers"):
        os.mkfifo(f"{folder}/{name}.{rank}", 0o600)
    # O_RDWR: opening does not wait for the rank, and written orders stay in the pipe until the rank reads them.
    orders = os.open(f"{folder}/orders.{rank}", os.O_RDWR | os.O_CLOEXEC)
    answers = os.open(f"{folder}/answers.{rank}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(answers, True)
    return orders, answers


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)


class _Child:
    """A process and its output (stdout and stderr), which is read only if the process dies."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the child runs
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=pass_fds,
                env={**os.environ, **env},
                start_new_session=True,  # only the parent handles Ctrl-C
            )
        except OSError as error:
            self._log.close()
            raise ContenderFailure(f"could not start {command[0]}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process; safe to call twice."""
        if self._process.returncode is None:  # the number of its group is valid until wait() is called
            self._kill_group()
            self._process.wait()
        self._log.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def describe_death(self) -> str:
        """Say how the process ended, with the last line of its output."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._kill_group()  # ends the processes that it forked
        code = self._process.returncode
        if code is None:
            cause = "closed its pipe"
        else:
            cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        messages = [line for line in lines if any(c.isalnum() for c in line)]  # launchers draw lines around theirs
        return f"{cause}: {messages[-1][:300]}" if messages else cause


class _LauncherChild(_Child):
    """A launcher. Its ranks are in other sessions, so it gets time to end them and to clean up."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        super().__init__(command, env)
        self._folder = folder

    def kill(self) -> None:
        self._wait()  # its ranks end because their pipes are closed
        super().kill()
        self._folder.cleanup()

    def _kill_group(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._wait()
        super()._kill_group()

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAUNCHER_EXIT_S)
