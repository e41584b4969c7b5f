"""`prove`: run a schedule with symbols instead of numbers, and report what is wrong with it.

Each slot (the place of one chunk in one rank) holds the ranks that contributed to its chunk. All other data is a fault:
data of another chunk, or a sum with one rank in it twice. A fault stays one when it is sent, copied or added, and is
harmless if something overwrites it; the proof fails where a fault is part of the result. Data that was copied into the
slot of another chunk remains a fault on its way back: chunks differ in length by one element, so that slot may cut it.

A link holds a bounded number of messages. The order in which ranks run does not matter: each link has one sender, one
receiver and an order, so every run ends the same way, and one run proves all of them.

ridgeline fabric prove ring --ranks 12
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.schedule_types import Schedule, Step

MOST_SLOTS = 1 << 26  # ranks × chunks; half a gigabyte


class ProofError(FabricError):
    """A schedule that is wrong; `rank` and `step` (from 0) are where the error appears."""

    def __init__(self, schedule: Schedule, rank: int, step: int | None, problem: str) -> None:
        where = f"rank {rank}" + ("" if step is None else f", step {step}")
        program = schedule.programs[rank] if 0 <= rank < len(schedule.programs) else ()
        action = f" ({program[step]})" if step is not None and step < len(program) else ""
        super().__init__(f"{schedule.op} {schedule.algorithm} over {schedule.ranks} ranks: {where}{action}: {problem}.")
        self.rank, self.step = rank, step


@dataclass(frozen=True)
class Proof:
    """The schedule that was proved, and the size of the proof."""

    op: str
    algorithm: str
    ranks: int
    chunks: int
    steps: int
    messages: int
    buffers: int  # messages that a link may hold; with this many no rank waits for ever


def prove(schedule: Schedule, *, buffers: int = 1) -> Proof:
    """Prove that each rank gets exactly the right contributions, no rank waits for ever, no unwritten chunk is read.

    buffers  messages that a link may hold (default: 1)

    The proof holds for any length of the data. The schedule caches it, so a second call costs nothing.
    Raises ProofError with the rank and the step of the first problem, InputError for wrong arguments.

    >>> from ridgeline import fabric
    >>> fabric.prove(fabric.schedule("all_reduce", "ring", ranks=4)).messages
    24
    """
    if buffers < 1:
        raise InputError(f"buffers is {buffers}; a link must hold 1 message or more.")
    if schedule.ranks * schedule.chunks > MOST_SLOTS:
        raise InputError(
            f"{schedule.ranks} ranks × {schedule.chunks} chunks are too many for a proof; the most is {MOST_SLOTS}."
        )
    proofs: dict[int, Proof] = vars(schedule).setdefault("_proofs", {})  # not a field: `replace` does not copy it
    if buffers not in proofs:
        run = _Run(schedule, buffers)
        run.execute()
        run.check_links()
        run.check_result()
        steps = sum(map(len, schedule.programs))
        proofs[buffers] = Proof(
            schedule.op, schedule.algorithm, schedule.ranks, schedule.chunks, steps, run.messages, buffers
        )
    return proofs[buffers]


class _Fault(NamedTuple):
    """Data that no right result contains: the step that made it, and why."""

    rank: int
    step: int
    problem: str
    is_partial: bool = False  # copied into a slot never written: the last element is missing if that chunk is longer


# A slot: the ranks that contributed to its chunk, one bit each; or a fault; or None, never written.
_Slot = int | _Fault | None


class _Message(NamedTuple):
    step: int  # its number in the program of the sender
    chunk: int
    width: int
    values: list[_Slot]


class _Run:
    def __init__(self, schedule: Schedule, buffers: int) -> None:
        self.schedule, self.buffers, self.messages = schedule, buffers, 0
        self.position = [0] * schedule.ranks
        self.has_copies = False
        self.links: dict[tuple[int, int], deque[_Message]] = {}
        self.slots = [_make_slots(schedule, rank) for rank in range(schedule.ranks)]

    def execute(self) -> None:
        ready = deque(range(self.schedule.ranks))
        queued = [True] * self.schedule.ranks
        while ready:
            rank = ready.popleft()
            queued[rank] = False
            program = self.schedule.programs[rank]
            while self.position[rank] < len(program):
                woken = self._run_step(rank, program[self.position[rank]])
                if woken is None:
                    break
                self.position[rank] += 1
                if woken >= 0 and not queued[woken]:
                    queued[woken] = True
                    ready.append(woken)
        stuck = [r for r in range(self.schedule.ranks) if self.position[r] < len(self.schedule.programs[r])]
        if stuck:
            self._report_deadlock(stuck)

    def _run_step(self, rank: int, step: Step) -> int | None:
        """Run a step; return the rank that it may wake (−1: no rank), or None if it must wait."""
        kind, peer, chunk, width = step
        end = chunk + width
        if width < 1 or chunk < 0 or end > self.schedule.chunks:
            self._refute(rank, f"there are only the chunks 0 to {self.schedule.chunks - 1}")
        slots = self.slots[rank]
        if kind == "copy":
            self._copy(rank, peer, chunk, width)
            return -1
        if peer == rank or not 0 <= peer < self.schedule.ranks:
            self._refute(rank, f"there is no other rank {peer}")
        if kind == "send":
            link = self.links.get((rank, peer))
            if link is None:
                link = self.links[rank, peer] = deque()
            if len(link) >= self.buffers:
                return None
            link.append(_Message(self.position[rank], chunk, width, self._read(rank, chunk, width)))
            self.messages += 1
            return peer
        link = self.links.get((peer, rank))
        if not link:
            return None
        number, sent_chunk, sent_width, values = link.popleft()
        if sent_chunk != chunk or sent_width != width:
            sent = self.schedule.programs[peer][number]
            self._refute(rank, f"the next message is step {number} of rank {peer} ({sent}), with other chunks")
        if kind == "recv":
            slots[chunk:end] = values
        else:
            slots[chunk:end] = self._add(rank, slots[chunk:end], values)
        return peer

    def _copy(self, rank: int, source: int, chunk: int, width: int) -> None:
        if not 0 <= source <= self.schedule.chunks - width:
            self._refute(rank, f"there is no chunk {source} to copy")
        values = self._read(rank, source, width)
        if source != chunk:
            self.has_copies = True
            step, before = self.position[rank], self.slots[rank][chunk : chunk + width]
            self.slots[rank][chunk : chunk + width] = [
                (
                    value if isinstance(value, _Fault) else _Fault(rank, step, _describe_copy(source + k, chunk + k))
                )._replace(is_partial=_is_incomplete(was))
                for k, (value, was) in enumerate(zip(values, before, strict=True))
            ]

    def _read(self, rank: int, chunk: int, width: int) -> list[_Slot]:
        values = self.slots[rank][chunk : chunk + width]
        if None in values or self.has_copies:  # most schedules have none: the fast test is enough
            for k, value in enumerate(values):
                if _is_incomplete(value):
                    what = "anything" if value is None else "all of it"
                    self._refute(rank, f"chunk {chunk + k} is read before {what} was written to it")
        return values

    def _add(self, rank: int, local: list[_Slot], received: list[_Slot]) -> list[_Slot]:
        sums: list[_Slot] = []
        for a, b in zip(local, received, strict=True):
            if type(a) is int and type(b) is int:
                twice = a & b
                problem = f"the data of rank {_find_lowest(twice)} is added twice" if twice else ""
                sums.append(_Fault(rank, self.position[rank], problem) if twice else a | b)
            elif _is_incomplete(a):
                what = "anything" if a is None else "all of it"
                self._refute(rank, f"a chunk is added to before {what} was written to it")
            else:
                sums.append(a if isinstance(a, _Fault) else b)
        return sums

    def check_links(self) -> None:
        for (source, target), link in self.links.items():
            if link:
                raise ProofError(self.schedule, source, link[0].step, f"rank {target} never receives this")

    def check_result(self) -> None:
        for rank, slots in enumerate(self.slots):
            for first, end, expected in self._list_expected(rank):
                if slots[first:end].count(expected) == end - first:
                    continue
                chunk = next(c for c in range(first, end) if slots[c] != expected)
                self._report_result(rank, chunk, slots[chunk], expected)

    def _list_expected(self, rank: int) -> list[tuple[int, int, int]]:
        """Ranges of chunks (first, end) and the ranks that each must hold at the end."""
        plan = self.schedule
        all_ranks = (1 << plan.ranks) - 1
        block = plan.chunks // plan.ranks
        if plan.op == "all_gather":
            return [(r * block, (r + 1) * block, 1 << r) for r in range(plan.ranks)]
        if plan.op == "reduce_scatter":
            return [(rank * block, (rank + 1) * block, all_ranks)]
        if plan.op == "reduce" and rank != plan.root:
            return []
        return [(0, plan.chunks, 1 << plan.root if plan.op == "broadcast" else all_ranks)]

    def _report_result(self, rank: int, chunk: int, actual: _Slot, expected: int) -> NoReturn:
        if isinstance(actual, _Fault):
            problem = f"{actual.problem}, and rank {rank} has it in chunk {chunk} at the end"
            raise ProofError(self.schedule, actual.rank, actual.step, problem)
        missing, extra = expected & ~(actual or 0), (actual or 0) & ~expected
        if missing:
            problem = f"lacks the data of rank {_find_lowest(missing)}"
        else:
            problem = f"holds data of rank {_find_lowest(extra)} too"
        last = len(self.schedule.programs[rank]) - 1
        step = last if last >= 0 else None
        raise ProofError(self.schedule, rank, step, f"at the end chunk {chunk} {problem}")

    def _report_deadlock(self, stuck: list[int]) -> NoReturn:
        """Follow the waiting ranks to a rank that has no step left, or to a circle."""
        rank, path = stuck[0], []
        while rank not in path:
            path.append(rank)
            peer = self.schedule.programs[rank][self.position[rank]].peer
            if self.position[peer] >= len(self.schedule.programs[peer]):
                self._refute(rank, f"it waits for ever: rank {peer} has no step left that would answer")
            rank = peer
        circle = path[path.index(rank) :]
        self._refute(rank, f"ranks {' → '.join(map(str, [*circle, rank]))} wait for each other for ever (deadlock)")

    def _refute(self, rank: int, problem: str) -> NoReturn:
        raise ProofError(self.schedule, rank, self.position[rank], problem)


def _is_incomplete(slot: _Slot) -> bool:
    return slot is None or (isinstance(slot, _Fault) and slot.is_partial)


def _describe_copy(source: int, target: int) -> str:
    return f"the data of chunk {source} is put into chunk {target}"


def _make_slots(schedule: Schedule, rank: int) -> list[_Slot]:
    """The slots of a rank before the first step."""
    first, end = 0, schedule.chunks
    if schedule.op == "broadcast" and rank != schedule.root:
        end = 0
    elif schedule.op == "all_gather":
        first, end = (r * schedule.chunks // schedule.ranks for r in (rank, rank + 1))
    slots: list[_Slot] = [None] * schedule.chunks
    slots[first:end] = [1 << rank] * (end - first)
    return slots


def _find_lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
