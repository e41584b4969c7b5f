"""A collective as data: for each rank a list of steps over chunks.

The data of a collective is cut into `Schedule.chunks` chunks of equal length. A step moves one chunk or several
adjacent ones. The steps of a rank run in order; two ranks synchronize only where one sends and the other receives.

ridgeline fabric show ring --ranks 8
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as shorten
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
BLOCK_OPS = ("all_gather", "reduce_scatter")  # each rank owns one block of the chunks, in the order of the ranks
KINDS = (
    "send",
    "recv",
    "reduce",
    "copy",
)  # recv overwrites, reduce adds the received chunk; copy moves within one rank
MOST = 1 << 53  # whole numbers up to here are exact in every JSON reader
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

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._get_all(),)

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
    """The steps of every rank, in order; `fabric.prove` checks that they do what `op` says.

    Raises InputError for a field that no schedule can have: an unknown collective, 0 chunks, a peer that is a text.
    """

    op: str
    algorithm: str
    ranks: int
    chunks: int  # pieces of the data in total
    nodes: int
    root: int
    programs: Sequence[Program] = field(repr=False)
    channels: int = 1  # rings that share the data, for a ring

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise unknown("collective", str(self.op)[:40], OPS)
        if not isinstance(self.algorithm, str):
            raise InputError(f"algorithm is {shorten(self.algorithm)}; give a name in quotes.")
        for name, least in (("ranks", 1), ("chunks", 1), ("nodes", 1), ("root", 0), ("channels", 1)):
            object.__setattr__(self, name, _read_integer(name, getattr(self, name), least))
        if self.root >= self.ranks:
            raise InputError(f"root is {self.root}; it must be one of the ranks 0 to {self.ranks - 1}.")
        if self.ranks % self.nodes:
            raise InputError(f"{self.ranks} ranks cannot be spread evenly over {self.nodes} nodes; choose a divisor.")
        if self.op in BLOCK_OPS and self.chunks % self.ranks:
            raise InputError(
                f"chunks is {self.chunks}; {self.op} over {self.ranks} ranks needs a multiple of {self.ranks}."
            )
        if not isinstance(self.programs, Programs):
            object.__setattr__(self, "programs", _read_programs(self.programs))
        if len(self.programs) != self.ranks:
            raise InputError(f"{len(self.programs)} programs for {self.ranks} ranks; give one for each.")

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
        head = {name: getattr(self, name) for name in (*_HEAD, "channels")}
        return json.dumps({**head, "programs": [[list(step) for step in program] for program in self.programs]})

    @staticmethod
    def from_json(text: str) -> Schedule:
        """Read a schedule from JSON; raises InputError if the text is not one."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"this is not JSON ({error}); write a schedule with Schedule.to_json().") from None
        names = (*_HEAD, "programs")
        if not isinstance(document, dict) or set(document) - {"channels"} != set(names):
            given = f"fields {', '.join(document)}" if isinstance(document, dict) else shorten(document)
            raise InputError(f"this is no schedule ({given[:200]}); one in JSON has the fields {', '.join(names)}.")
        return Schedule(**document)

    def __str__(self) -> str:
        title = f"{self.op} {self.algorithm}: {self.ranks} ranks, {self.chunks} chunks"
        lines = (f"rank {rank}: {' · '.join(map(str, p)) or 'nothing'}" for rank, p in enumerate(self.programs))
        return "\n".join([title, *lines])


_HEAD = ("op", "algorithm", "ranks", "chunks", "nodes", "root")


def _read_integer(name: str, value: object, least: int = -MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} is {shorten(value)}; give a whole number.")
    if not least <= value <= MOST:
        limit = f"{least} or more" if value < least else f"at most {MOST}"
        raise InputError(f"{name} is {shorten(value)}; a schedule needs {limit}.")
    return int(value)


def _read_programs(programs: object) -> tuple[Program, ...]:
    if not isinstance(programs, list | tuple):
        raise InputError(f"programs is {shorten(programs)}; give a list of steps for each rank.")
    return tuple(_read_program(rank, program) for rank, program in enumerate(programs))


def _read_program(rank: int, program: object) -> Program:
    if not isinstance(program, list | tuple):
        raise InputError(f"the program of rank {rank} is {shorten(program)}; give a list of steps.")
    return tuple(_read_step(rank, number, step) for number, step in enumerate(program))


def _read_step(rank: int, number: int, step: object) -> Step:
    if not isinstance(step, list | tuple) or not 3 <= len(step) <= 4:
        example = "['send', 1, 0, 1]"
        raise InputError(f"rank {rank}, step {number} is {shorten(step)}; give kind, peer, chunk, width: {example}.")
    kind, *numbers = step
    if kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise InputError(f"rank {rank}, step {number}: there is no step of kind {shorten(kind)}; there are: {kinds}.")
    if all(type(n) is int and -MOST <= n <= MOST for n in numbers):
        return step if type(step) is Step else Step(*step)
    names = ("peer", "chunk", "width")
    return Step(
        kind, *(_read_integer(f"rank {rank}, step {number}: {k}", n) for k, n in zip(names, numbers, strict=False))
    )


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
