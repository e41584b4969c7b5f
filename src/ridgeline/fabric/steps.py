"""A collective as data: for each rank a list of steps over chunks.

The data of a collective is cut into `Schedule.chunks` chunks of equal length. A step moves one or several that lie
side by side. Steps of a rank run in their order; two ranks meet only where one sends and the other receives.

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

KINDS = ("send", "recv", "reduce", "copy")  # recv writes over, reduce adds what comes; copy moves within one rank
Ints = NDArray[np.int64]


class Step(NamedTuple):
    """One step of one rank. `peer` is the other rank; of a copy it is the chunk that is read."""

    kind: str
    peer: int
    chunk: int
    width: int = 1

    def __str__(self) -> str:
        what = f"{self.chunk}" if self.width == 1 else f"{self.chunk}..{self.chunk + self.width - 1}"
        if self.kind == "copy":
            return f"copy chunk {self.peer} to {what}"
        return f"{self.kind} {what} {'to' if self.kind == 'send' else 'from'} {self.peer}"


class Round(NamedTuple):
    """Transfers that may run side by side, one per row: what an algorithm writes, and a prediction reads."""

    source: Ints
    target: Ints
    chunk: Ints
    width: Ints
    reduce: NDArray[np.bool_]
    as_before: bool = False  # same ranks and amounts as the round before: only the chunks are others


def transfers(
    source: Any, target: Any, chunk: Any, count: Any = 1, reduce: Any = False, as_before: bool = False
) -> Round:
    """A round from arrays that broadcast against each other."""
    *numbers, reduces = np.broadcast_arrays(source, target, chunk, count, reduce)
    a, b, c, d = (np.ravel(n).astype(np.int64, copy=False) for n in numbers)
    return Round(a, b, c, d, np.ravel(reduces).astype(bool, copy=False), as_before)


def side_by_side(rounds: Iterable[Round]) -> Round:
    """Several rounds as one."""
    all_of = list(rounds)
    columns = (np.concatenate([r[k] for r in all_of]) if all_of else np.zeros(0, np.int64) for k in range(5))
    a, b, c, d, reduces = columns
    return Round(a, b, c, d, reduces.astype(bool))


Program = tuple[Step, ...]
Writer = Callable[[], Iterator[Round]]


class Programs(Sequence[Program]):
    """The programs of all ranks, written out when first looked at: a prediction for 16,384 ranks never does."""

    def __init__(self, ranks: int, writer: Writer) -> None:
        self._ranks, self.writer = ranks, writer
        self._written: tuple[Program, ...] | None = None

    def __len__(self) -> int:
        return self._ranks

    def __getitem__(self, rank: Any) -> Any:
        return self._all()[rank]

    def __eq__(self, other: object) -> bool:
        return self._all() == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def _all(self) -> tuple[Program, ...]:
        if self._written is None:
            self._written = _written(self._ranks, self.writer())
        return self._written


def _written(ranks: int, rounds: Iterable[Round]) -> tuple[Program, ...]:
    """Each rank's steps, round by round; in a round first what each link carries first, sends before receives.

    So a link needs room for one message only: all that is sent in a turn is received in that turn, whoever is late.
    """
    programs: list[list[Step]] = [[] for _ in range(ranks)]
    for one in rounds:
        turn_of: dict[tuple[int, int], int] = {}
        turns: list[tuple[list[tuple[int, Step]], list[tuple[int, Step]]]] = []
        rows = zip(*(column.tolist() for column in one[:5]), strict=True)
        for source, target, chunk, count, reduces in rows:
            turn = turn_of[source, target] = turn_of.get((source, target), -1) + 1
            if turn == len(turns):
                turns.append(([], []))
            turns[turn][0].append((source, Step("send", target, chunk, count)))
            turns[turn][1].append((target, Step("reduce" if reduces else "recv", source, chunk, count)))
        for sends, takes in turns:
            for rank, step in (*sends, *takes):
                programs[rank].append(step)
    return tuple(map(tuple, programs))


@dataclass(frozen=True)
class Schedule:
    """What every rank does, in order; see `fabric.prove` for what makes it right."""

    op: str
    algorithm: str
    ranks: int
    chunks: int  # the data's pieces in all
    nodes: int
    root: int
    programs: Sequence[Program] = field(repr=False)

    def rounds(self) -> Iterator[Round]:
        """The transfers in an order in which they can happen."""
        if isinstance(self.programs, Programs):
            return self.programs.writer()
        return _replayed(self.programs)

    def with_programs(self, programs: Iterable[Iterable[Step]]) -> Schedule:
        """The same collective by other steps, as a schedule of one's own."""
        return replace(self, programs=tuple(tuple(p) for p in programs))

    def to_json(self) -> str:
        head = {name: getattr(self, name) for name in _HEAD}
        return json.dumps({**head, "programs": [[list(step) for step in program] for program in self.programs]})

    @staticmethod
    def from_json(text: str) -> Schedule:
        try:
            found = json.loads(text)
            programs = tuple(tuple(Step(*step) for step in program) for program in found["programs"])
            made = Schedule(**{name: found[name] for name in _HEAD}, programs=programs)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"this is no schedule in JSON ({error!r}); write one with Schedule.to_json().") from error
        for program in programs:
            for step in program:
                if step.kind not in KINDS:
                    raise InputError(f"a step of kind '{step.kind}' is unknown; there are: {', '.join(KINDS)}.")
        return made

    def __str__(self) -> str:
        title = f"{self.op} {self.algorithm}: {self.ranks} ranks, {self.chunks} chunks"
        lines = (f"rank {rank}: {' · '.join(map(str, p)) or 'nothing'}" for rank, p in enumerate(self.programs))
        return "\n".join([title, *lines])


_HEAD = ("op", "algorithm", "ranks", "chunks", "nodes", "root")


def _replayed(programs: Sequence[Program]) -> Iterator[Round]:
    """Rounds of programs that stand alone: again and again, whatever every rank can do next."""
    at = [0] * len(programs)
    sent: dict[tuple[int, int], list[Step]] = {}
    while True:
        rows: list[tuple[int, int, int, int, bool]] = []
        moved = False
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                step = program[at[rank]]
                if step.kind == "send":
                    sent.setdefault((rank, step.peer), []).append(step)
                elif step.kind != "copy":
                    queue = sent.get((step.peer, rank), [])
                    if not queue:
                        break
                    queue.pop(0)
                    rows.append((step.peer, rank, step.chunk, step.width, step.kind == "reduce"))
                at[rank] += 1
                moved = True
                if rows and rows[-1][1] == rank:
                    break  # one receive per rank and round
        if rows:
            source, target, chunk, width, reduces = (np.array(column) for column in zip(*rows, strict=True))
            yield transfers(source, target, chunk, width, reduces)
        if not moved:
            return
