"""A collective as data: for each rank a list of steps over chunks.

The data of a collective is cut into `Schedule.chunks` chunks of equal length. A step moves one chunk or several
adjacent ones. The steps of a rank run in order; two ranks synchronize only where one sends and the other receives.

ridgeline fabric show ring --ranks 8
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError

KINDS = (
    "send",
    "recv",
    "reduce",
    "copy",
)  # recv overwrites, reduce adds the received chunk; copy moves within one rank
Ints = NDArray[np.int64]


class Step(NamedTuple):
    """One step of one rank. `peer` is the other rank; for a copy it is the chunk that is read."""

    kind: str
    peer: int
    chunk: int
    width: int = 1

    def __str__(self) -> str:
        chunks = f"{self.chunk}" if self.width == 1 else f"{self.chunk}..{self.chunk + self.width - 1}"
        if self.kind == "copy":
            return f"copy chunk {self.peer} to {chunks}"
        return f"{self.kind} {chunks} {'to' if self.kind == 'send' else 'from'} {self.peer}"


class Round(NamedTuple):
    """Transfers that may run at the same time, one per row: an algorithm writes them, a prediction reads them."""

    source: Ints
    target: Ints
    chunk: Ints
    width: Ints
    reduce: NDArray[np.bool_]
    as_before: bool = False  # same ranks and amounts as in the round before, with other chunks


def make_round(
    source: Any, target: Any, chunk: Any, count: Any = 1, reduce: Any = False, as_before: bool = False
) -> Round:
    """Return a round from arrays that broadcast against each other."""
    *numbers, reduces = np.broadcast_arrays(source, target, chunk, count, reduce)
    a, b, c, d = (np.ravel(n).astype(np.int64, copy=False) for n in numbers)
    return Round(a, b, c, d, np.ravel(reduces).astype(bool, copy=False), as_before)


def merge_rounds(rounds: Iterable[Round]) -> Round:
    """Merge several rounds into one."""
    parts = list(rounds)
    columns = (np.concatenate([r[k] for r in parts]) if parts else np.zeros(0, np.int64) for k in range(5))
    a, b, c, d, reduces = columns
    return Round(a, b, c, d, reduces.astype(bool))


Program = tuple[Step, ...]
WriteRounds = Callable[[], Iterator[Round]]


class Programs(Sequence[Program]):
    """The programs of all ranks, written at the first access: a prediction for 16,384 ranks never needs them."""

    def __init__(self, ranks: int, write_rounds: WriteRounds) -> None:
        self._ranks, self.write_rounds = ranks, write_rounds
        self._programs: tuple[Program, ...] | None = None

    def __len__(self) -> int:
        return self._ranks

    def __getitem__(self, rank: Any) -> Any:
        return self._get_all()[rank]

    def __eq__(self, other: object) -> bool:
        return self._get_all() == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._get_all())

    def _get_all(self) -> tuple[Program, ...]:
        if self._programs is None:
            self._programs = _write_programs(self._ranks, self.write_rounds())
        return self._programs


def _write_programs(ranks: int, rounds: Iterable[Round]) -> tuple[Program, ...]:
    """The steps of each rank, round by round; in a round first the first message of each link, sends before receives.

    So a link needs to hold one message only: a message that is sent in a turn is received in that turn.
    """
    programs: list[list[Step]] = [[] for _ in range(ranks)]
    for transfers in rounds:
        turn_by_link: dict[tuple[int, int], int] = {}
        turns: list[tuple[list[tuple[int, Step]], list[tuple[int, Step]]]] = []
        rows = zip(*(column.tolist() for column in transfers[:5]), strict=True)
        for source, target, chunk, count, reduces in rows:
            turn = turn_by_link[source, target] = turn_by_link.get((source, target), -1) + 1
            if turn == len(turns):
                turns.append(([], []))
            turns[turn][0].append((source, Step("send", target, chunk, count)))
            turns[turn][1].append((target, Step("reduce" if reduces else "recv", source, chunk, count)))
        for sends, receives in turns:
            for rank, step in (*sends, *receives):
                programs[rank].append(step)
    return tuple(map(tuple, programs))


@dataclass(frozen=True)
class Schedule:
    """The steps of every rank, in order; `fabric.prove` checks it."""

    op: str
    algorithm: str
    ranks: int
    chunks: int  # pieces of the data in total
    nodes: int
    root: int
    programs: Sequence[Program] = field(repr=False)

    def rounds(self) -> Iterator[Round]:
        """Yield the transfers in an order in which they can happen."""
        if isinstance(self.programs, Programs):
            return self.programs.write_rounds()
        return _replay_programs(self.programs)

    def with_programs(self, programs: Iterable[Iterable[Step]]) -> Schedule:
        """Return the same collective with other steps, as a custom schedule."""
        return replace(self, programs=tuple(tuple(p) for p in programs))

    def to_json(self) -> str:
        """Return the schedule as JSON; `from_json` reads it."""
        head = {name: getattr(self, name) for name in _HEAD}
        return json.dumps({**head, "programs": [[list(step) for step in program] for program in self.programs]})

    @staticmethod
    def from_json(text: str) -> Schedule:
        """Read a schedule from JSON; raises InputError if the text is not one."""
        try:
            document = json.loads(text)
            programs = tuple(tuple(Step(*step) for step in program) for program in document["programs"])
            result = Schedule(**{name: document[name] for name in _HEAD}, programs=programs)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"this is not a schedule in JSON ({error!r}); write one with Schedule.to_json()."
            ) from error
        for program in programs:
            for step in program:
                if step.kind not in KINDS:
                    raise InputError(f"a step of kind '{step.kind}' is unknown; there are: {', '.join(KINDS)}.")
        return result

    def __str__(self) -> str:
        title = f"{self.op} {self.algorithm}: {self.ranks} ranks, {self.chunks} chunks"
        lines = (f"rank {rank}: {' · '.join(map(str, p)) or 'nothing'}" for rank, p in enumerate(self.programs))
        return "\n".join([title, *lines])


_HEAD = ("op", "algorithm", "ranks", "chunks", "nodes", "root")


def _replay_programs(programs: Sequence[Program]) -> Iterator[Round]:
    """Rounds of custom programs: in each round, every rank runs all steps that it can."""
    position = [0] * len(programs)
    sent: dict[tuple[int, int], list[Step]] = {}
    while True:
        rows: list[tuple[int, int, int, int, bool]] = []
        progress = False
        for rank, program in enumerate(programs):
            while position[rank] < len(program):
                step = program[position[rank]]
                if step.kind == "send":
                    sent.setdefault((rank, step.peer), []).append(step)
                elif step.kind != "copy":
                    queue = sent.get((step.peer, rank), [])
                    if not queue:
                        break
                    queue.pop(0)
                    rows.append((step.peer, rank, step.chunk, step.width, step.kind == "reduce"))
                position[rank] += 1
                progress = True
                if rows and rows[-1][1] == rank:
                    break  # one receive per rank and round
        if rows:
            source, target, chunk, width, reduces = (np.array(column) for column in zip(*rows, strict=True))
            yield make_round(source, target, chunk, width, reduces)
        if not progress:
            return
