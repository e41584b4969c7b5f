"""`prove`: run a schedule with symbols instead of numbers, and say what is wrong with it.

Every chunk of every rank holds the set of ranks whose data is in it. Links hold a bounded number of messages. Who runs
first does not matter: each link has one sender, one receiver and an order, so every run ends the same way, and one
run proves all of them.

ridgeline fabric prove ring --ranks 12
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.steps import Schedule, Step

Held = int | None  # the ranks in a chunk, one bit each; None: never written
Message = tuple[Step, int, list[Held]]  # the send, its number in the sender's program, what it carries


class Refuted(FabricError):
    """A schedule that does not do what it says; `rank` and `step` (from 0) are where it shows."""

    def __init__(self, schedule: Schedule, rank: int, step: int | None, what: str) -> None:
        where = f"rank {rank}" + ("" if step is None else f", step {step}")
        program = schedule.programs[rank] if 0 <= rank < len(schedule.programs) else ()
        doing = f" ({program[step]})" if step is not None and step < len(program) else ""
        super().__init__(f"{schedule.op} {schedule.algorithm} over {schedule.ranks} ranks: {where}{doing}: {what}.")
        self.rank, self.step = rank, step


@dataclass(frozen=True)
class Proof:
    """What was proved, and how much it was."""

    op: str
    algorithm: str
    ranks: int
    chunks: int
    steps: int
    messages: int
    buffers: int  # messages a link may hold; with as many no rank waits for ever


def prove(schedule: Schedule, *, buffers: int = 1) -> Proof:
    """Every rank ends with exactly the right contributions, nobody waits for ever, nothing unwritten is read.

    >>> from ridgeline import fabric
    >>> fabric.prove(fabric.schedule("all_reduce", "ring", ranks=4)).messages
    24
    """
    if buffers < 1:
        raise InputError(f"buffers is {buffers}; a link must hold 1 message or more.")
    if len(schedule.programs) != schedule.ranks:
        raise InputError(f"{len(schedule.programs)} programs for {schedule.ranks} ranks; give one for each.")
    run = _Run(schedule, buffers)
    run.to_the_end()
    run.check_links()
    run.check_result()
    steps = sum(map(len, schedule.programs))
    return Proof(schedule.op, schedule.algorithm, schedule.ranks, schedule.chunks, steps, run.messages, buffers)


class _Run:
    def __init__(self, schedule: Schedule, buffers: int) -> None:
        self.of, self.buffers, self.messages = schedule, buffers, 0
        self.at = [0] * schedule.ranks
        self.links: dict[tuple[int, int], deque[Message]] = {}
        self.held = [
            [_first(schedule, rank, chunk) for chunk in range(schedule.chunks)] for rank in range(schedule.ranks)
        ]

    def to_the_end(self) -> None:
        ready = deque(range(self.of.ranks))
        queued = [True] * self.of.ranks
        while ready:
            rank = ready.popleft()
            queued[rank] = False
            program = self.of.programs[rank]
            while self.at[rank] < len(program):
                woken = self._do(rank, program[self.at[rank]])
                if woken is None:
                    break
                self.at[rank] += 1
                if woken >= 0 and not queued[woken]:
                    queued[woken] = True
                    ready.append(woken)
        stuck = [r for r in range(self.of.ranks) if self.at[r] < len(self.of.programs[r])]
        if stuck:
            self._say_who_waits(stuck)

    def _do(self, rank: int, step: Step) -> int | None:
        """Do a step; the rank it may wake (−1: none), or None where it must wait."""
        self._within(rank, step)
        span = slice(step.chunk, step.chunk + step.width)
        held = self.held[rank]
        if step.kind == "copy":
            held[span] = self._readable(rank, step.peer, step.width)
            return -1
        if step.kind == "send":
            link = self.links.setdefault((rank, step.peer), deque())
            if len(link) >= self.buffers:
                return None
            link.append((step, self.at[rank], self._readable(rank, step.chunk, step.width)))
            self.messages += 1
            return step.peer
        link = self.links.get((step.peer, rank), deque())
        if not link:
            return None
        sent, number, values = link.popleft()
        if (sent.chunk, sent.width) != (step.chunk, step.width):
            self._refute(rank, f"what comes is step {number} of rank {step.peer} ({sent}), other chunks")
        if step.kind == "recv":
            held[span] = values
        else:
            held[span] = [self._added(rank, step, mine, come) for mine, come in zip(held[span], values, strict=True)]
        return step.peer

    def _within(self, rank: int, step: Step) -> None:
        if step.kind not in ("send", "recv", "reduce", "copy"):
            self._refute(rank, f"there is no step of kind '{step.kind}'")
        if step.width < 1 or step.chunk < 0 or step.chunk + step.width > self.of.chunks:
            self._refute(rank, f"there are only the chunks 0 to {self.of.chunks - 1}")
        if step.kind != "copy" and (not 0 <= step.peer < self.of.ranks or step.peer == rank):
            self._refute(rank, f"there is no other rank {step.peer}")
        if step.kind == "copy" and not 0 <= step.peer <= self.of.chunks - step.width:
            self._refute(rank, f"there is no chunk {step.peer} to copy")

    def _readable(self, rank: int, chunk: int, count: int) -> list[Held]:
        values = self.held[rank][chunk : chunk + count]
        if None in values:
            self._refute(rank, f"chunk {chunk + values.index(None)} is read before anything was written to it")
        return values

    def _added(self, rank: int, step: Step, mine: Held, come: Held) -> Held:
        if mine is None or come is None:
            self._refute(rank, "a chunk is added to before anything was written to it")
        if mine & come:
            self._refute(rank, f"what rank {_lowest(mine & come)} contributes is added twice")
        return mine | come

    def check_links(self) -> None:
        for (source, target), link in self.links.items():
            if link:
                step, number, _ = link[0]
                raise Refuted(self.of, source, number, f"rank {target} never receives this ({step})")

    def check_result(self) -> None:
        for rank, held in enumerate(self.held):
            for chunk, (got, wanted) in enumerate(
                zip(held, map(self._wanted(rank), range(self.of.chunks)), strict=True)
            ):
                if wanted is None or got == wanted:
                    continue
                lacks, more = wanted & ~(got or 0), (got or 0) & ~wanted
                what = (
                    f"lacks the data of rank {_lowest(lacks)}" if lacks else f"holds data of rank {_lowest(more)} too"
                )
                last = len(self.of.programs[rank]) - 1
                raise Refuted(self.of, rank, last if last >= 0 else None, f"at the end chunk {chunk} {what}")

    def _wanted(self, rank: int) -> Callable[[int], int | None]:
        of = self.of
        everyone = (1 << of.ranks) - 1
        block = max(1, of.chunks // of.ranks)
        return {
            "all_reduce": lambda chunk: everyone,
            "all_gather": lambda chunk: 1 << (chunk // block),
            "reduce_scatter": lambda chunk: everyone if chunk // block == rank else None,
            "broadcast": lambda chunk: 1 << of.root,
            "reduce": lambda chunk: everyone if rank == of.root else None,
        }[of.op]

    def _say_who_waits(self, stuck: list[int]) -> None:
        """Name a rank, and whom it waits for: follow the waiting until someone who will never come, or a circle."""
        rank, seen = stuck[0], []
        while rank not in seen:
            seen.append(rank)
            peer = self.of.programs[rank][self.at[rank]].peer
            if self.at[peer] >= len(self.of.programs[peer]):
                self._refute(rank, f"it waits for ever: rank {peer} has no step left that would answer")
            rank = peer
        circle = seen[seen.index(rank) :]
        self._refute(rank, f"ranks {' → '.join(map(str, [*circle, rank]))} wait for each other for ever (deadlock)")

    def _refute(self, rank: int, what: str) -> NoReturn:
        raise Refuted(self.of, rank, self.at[rank], what)


def _first(schedule: Schedule, rank: int, chunk: int) -> Held:
    """What a chunk holds before the first step."""
    if schedule.op == "all_gather":
        return 1 << rank if chunk // max(1, schedule.chunks // schedule.ranks) == rank else None
    if schedule.op == "broadcast":
        return 1 << rank if rank == schedule.root else None
    return 1 << rank


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
