"""The parent's end of a contender: start it, hand it the baton, notice when it dies or hangs.

One warm process per contender and rank. Only the one that holds the baton runs; the others sleep on a pipe.
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
from types import TracebackType
from typing import Any

from ridgeline.lab.contender import PROTOCOL

START_TIMEOUT_S = 120.0
LOOK_EVERY_S = 1.0  # a child can die while a process it forked holds its pipe open
LAST_WORDS = 64 << 10  # bytes of its output that are searched for them

OUSTING = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path.insert(0, {tree!r})
from ridgeline.lab.contender import main
main()
"""


class ContenderLost(Exception):
    """A contender crashed, hung or refused; the message says which and why."""


@dataclass(frozen=True)
class Entrant:
    """Who takes part: a contender of the workload, and where its process comes from.

    `name` is what the record shows, `contender` what the workload calls it: they differ when another version of
    the same code takes part (`ridgeline@1a2b3c4`).
    """

    name: str
    contender: str
    interpreter: str = sys.executable
    tree: str | None = None  # the `src` folder its ridgeline comes from; None: as the interpreter finds it


class Team:
    """The processes of one entrant: one per rank, spoken to together."""

    def __init__(self, entrant: Entrant, ranks: int = 1) -> None:
        self.entrant = entrant
        port = str(_free_port()) if ranks > 1 else ""
        self._processes: list[_Process] = []
        try:
            for rank in range(ranks):
                env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ranks > 1 else {}
                extra = {**{k: str(v) for k, v in env.items()}, **rendezvous} if ranks > 1 else {}
                self._processes.append(_Process(entrant, extra))
            self._met = False
        except BaseException:
            self.kill()
            raise

    @property
    def ranks(self) -> int:
        return len(self._processes)

    @property
    def fresh(self) -> bool:
        """Whether it has not been heard of yet."""
        return not self._met

    def do(
        self, what: str, timeout_s: float, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Give all ranks one order and gather their answers; one deadline for all."""
        self.order(what, per_rank, **order)
        return self.answers(timeout_s)

    def order(self, what: str, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any) -> None:
        """Give all ranks one order; `answers` must be called for each, in turn."""
        own = per_rank or [{}] * len(self._processes)
        for process, special in zip(self._processes, own, strict=True):
            process.order({"do": what, **order, **special})

    def answers(self, timeout_s: float, *, forgiving: bool = False) -> list[dict[str, Any]]:
        """What the ranks say to the earliest order without an answer.

        A rank in which it failed loses the contender, unless one is forgiving: what an older version does not know.
        """
        self._meet()
        began = time.monotonic()
        answers = [p.answer(timeout_s, began) for p in self._processes]
        for rank, answer in enumerate(answers):
            if "failed" in answer and not forgiving:
                where = f"in rank {rank} " if len(answers) > 1 else ""
                raise ContenderLost(f"{where}raised {answer['failed']}")
        return answers

    def _meet(self) -> None:
        """Hear who they are, once: the right protocol, from the right tree."""
        if self._met:
            return
        tree = self.entrant.tree
        for process in self._processes:
            hello = process.answer(START_TIMEOUT_S)
            if hello.get("protocol") != PROTOCOL:
                raise ContenderLost(f"speaks protocol {hello.get('protocol')}, this lab speaks {PROTOCOL}")
            if tree and not str(hello.get("home")).startswith(tree):
                raise ContenderLost(f"runs the code of {hello['home']}, not of {tree}")
        self._met = True

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def __enter__(self) -> Team:
        try:
            self._meet()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class Paddock:
    """Keeps the contenders' processes warm from one case to the next."""

    def __init__(self) -> None:
        self._teams: dict[tuple[Entrant, int], Team] = {}

    def team(self, entrant: Entrant, ranks: int) -> Team:
        key = (entrant, ranks)
        if key not in self._teams:
            self._teams[key] = Team(entrant, ranks)
        return self._teams[key]

    def drop(self, team: Team) -> None:
        team.kill()
        self._teams = {k: t for k, t in self._teams.items() if t is not team}

    def __enter__(self) -> Paddock:
        return self

    def __exit__(self, *_: object) -> None:
        for team in self._teams.values():
            team.kill()
        self._teams = {}


class _Process:
    """One child with a pipe each way; stderr goes to a file that is read only when it dies."""

    def __init__(self, entrant: Entrant, env: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        orders_out, self._orders = os.pipe()
        self._answers, answers_in = os.pipe()
        try:
            self._child = subprocess.Popen(
                [entrant.interpreter, *_entry(entrant), str(orders_out), str(answers_in)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(orders_out, answers_in),
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:
            raise ContenderLost(f"could not start {entrant.interpreter}: {error.strerror}") from None
        finally:
            os.close(orders_out)
            os.close(answers_in)
        self._pending = b""

    def order(self, body: Mapping[str, Any]) -> None:
        try:
            os.write(self._orders, json.dumps(body).encode() + b"\n")
        except BrokenPipeError:
            raise ContenderLost(self._cause_of_death()) from None

    def answer(self, timeout_s: float, began: float | None = None) -> dict[str, Any]:
        """The next line it says, as an object; numbers that JSON has no word for (NaN, infinity) come as None."""
        deadline = (time.monotonic() if began is None else began) + timeout_s
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._answers], [], [], min(left, LOOK_EVERY_S))
            if ready:
                piece = os.read(self._answers, 1 << 20)
                if not piece:
                    raise ContenderLost(self._cause_of_death())
                self._pending += piece
            elif self._child.poll() is not None:
                raise ContenderLost(self._cause_of_death())
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

    def kill(self) -> None:
        """End the child and whatever it started; safe to call twice."""
        if self._child.returncode is None:  # its group goes by its number until someone has waited for it
            self._kill_group()
            self._child.wait()
        for fd in (self._orders, self._answers):
            with suppress(OSError):
                os.close(fd)
        self._orders = self._answers = -1
        self._log.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _cause_of_death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        self._kill_group()  # what it forked is not left behind
        code = self._child.returncode
        if code is None:
            how = "closed its pipe"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_WORDS))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{how}: {lines[-1][:300]}" if lines else how


def _entry(entrant: Entrant) -> list[str]:
    """How the child comes to its main: an editable install outranks PYTHONPATH, so another tree must oust it."""
    if entrant.tree is None:
        return ["-m", "ridgeline.lab.contender"]
    return ["-c", OUSTING.format(tree=entrant.tree)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
