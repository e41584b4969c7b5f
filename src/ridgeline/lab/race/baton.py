"""The parent's end of a contender: start it, hand it the baton, notice when it dies or hangs.

One warm process per contender and rank. Only the one that holds the baton runs; the others sleep on a pipe.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ridgeline.lab.race.contender import PROTOCOL
from ridgeline.lab.race.line import ContenderLost, Line, launched, started
from ridgeline.lab.workload import Launcher

START_TIMEOUT_S = 120.0

OUSTING = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path.insert(0, {tree!r})
from ridgeline.lab.race.contender import main
main()
"""


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
    launcher: Launcher | None = None  # None: the lab starts its ranks itself


class Team:
    """The processes of one entrant: one per rank, spoken to together."""

    def __init__(self, entrant: Entrant, ranks: int = 1) -> None:
        self.entrant = entrant
        self.pids: list[int] = []  # of the ranks, when they have been heard of
        self._met = False
        self._lines: list[Line] = []
        words = [entrant.interpreter, *_entry(entrant)]
        if entrant.launcher is not None:
            self._lines = launched(words, ranks, entrant.launcher)
            return
        port = str(_free_port()) if ranks > 1 else ""
        try:
            for rank in range(ranks):
                env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ranks > 1 else {}
                extra = {**{k: str(v) for k, v in env.items()}, **rendezvous} if ranks > 1 else {}
                self._lines.append(started(words, extra))
        except BaseException:
            self.kill()
            raise

    @property
    def ranks(self) -> int:
        return len(self._lines)

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
        own = per_rank or [{}] * len(self._lines)
        for line, special in zip(self._lines, own, strict=True):
            line.order({"do": what, **order, **special})

    def answers(self, timeout_s: float, *, forgiving: bool = False) -> list[dict[str, Any]]:
        """What the ranks say to the earliest order without an answer.

        A rank in which it failed loses the contender, unless one is forgiving: what an older version does not know.
        """
        self._meet()
        began = time.monotonic()
        answers = [line.answer(timeout_s, began) for line in self._lines]
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
        for line in self._lines:
            hello = line.answer(START_TIMEOUT_S)
            if hello.get("protocol") != PROTOCOL:
                raise ContenderLost(f"speaks protocol {hello.get('protocol')}, this lab speaks {PROTOCOL}")
            if tree and not str(hello.get("home")).startswith(tree):
                raise ContenderLost(f"runs the code of {hello['home']}, not of {tree}")
            line.met(hello["pid"])
            self.pids.append(hello["pid"])
        self._met = True

    def kill(self) -> None:
        for line in self._lines:  # all at once: a rank that goes alone waits for the others
            line.hang_up()
        for line in self._lines:
            line.kill()

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


def _entry(entrant: Entrant) -> list[str]:
    """How the child comes to its main: an editable install outranks PYTHONPATH, so another tree must oust it."""
    if entrant.tree is None:
        return ["-m", "ridgeline.lab.race.contender"]
    return ["-c", OUSTING.format(tree=entrant.tree)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
