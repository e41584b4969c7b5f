"""`prove`: run a schedule with symbols instead of numbers, and report what is wrong with it.

Every chunk of every rank holds the set of ranks that contributed to it. A link holds a bounded number of messages. The
order in which ranks run does not matter: each link has one sender, one receiver and an order, so every run ends the
same way, and one run proves all of them.

ridgeline fabric prove ring --ranks 12
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.schedule_types import Schedule, Step

Contributors = int | None  # the ranks in a chunk, one bit each; None: never written
Message = tuple[Step, int, list[Contributors]]  # the send, its number in the sender's program, the chunks


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

    Raises ProofError with the rank and the step of the first problem, InputError for wrong arguments.

    >>> from ridgeline import fabric
    >>> fabric.prove(fabric.schedule("all_reduce", "ring", ranks=4)).messages
    24
    """
    if buffers < 1:
        raise InputError(f"buffers is {buffers}; a link must hold 1 message or more.")
    if len(schedule.programs) != schedule.ranks:
        raise InputError(f"{len(schedule.programs)} programs for {schedule.ranks} ranks; give one for each.")
    run = _Run(schedule, buffers)
    run.execute()
    run.check_links()
    run.check_result()
    steps = sum(map(len, schedule.programs))
    return Proof(schedule.op, schedule.algorithm, schedule.ranks, schedule.chunks, steps, run.messages, buffers)


class _Run:
    def __init__(self, schedule: Schedule, buffers: int) -> None:
        self.schedule, self.buffers, self.messages = schedule, buffers, 0
        self.position = [0] * schedule.ranks
        self.links: dict[tuple[int, int], deque[Message]] = {}
        self.contents = [
            [_get_initial(schedule, rank, chunk) for chunk in range(schedule.chunks)] for rank in range(schedule.ranks)
        ]

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
        self._check_step(rank, step)
        span = slice(step.chunk, step.chunk + step.width)
        chunks = self.contents[rank]
        if step.kind == "copy":
            chunks[span] = self._read_chunks(rank, step.peer, step.width)
            return -1
        if step.kind == "send":
            link = self.links.setdefault((rank, step.peer), deque())
            if len(link) >= self.buffers:
                return None
            link.append((step, self.position[rank], self._read_chunks(rank, step.chunk, step.width)))
            self.messages += 1
            return step.peer
        link = self.links.get((step.peer, rank), deque())
        if not link:
            return None
        sent, number, values = link.popleft()
        if (sent.chunk, sent.width) != (step.chunk, step.width):
            self._refute(rank, f"the next message is step {number} of rank {step.peer} ({sent}), with other chunks")
        if step.kind == "recv":
            chunks[span] = values
        else:
            pairs = zip(chunks[span], values, strict=True)
            chunks[span] = [self._add(rank, local, received) for local, received in pairs]
        return step.peer

    def _check_step(self, rank: int, step: Step) -> None:
        if step.kind not in ("send", "recv", "reduce", "copy"):
            self._refute(rank, f"there is no step of kind '{step.kind}'")
        if step.width < 1 or step.chunk < 0 or step.chunk + step.width > self.schedule.chunks:
            self._refute(rank, f"there are only the chunks 0 to {self.schedule.chunks - 1}")
        if step.kind != "copy" and (not 0 <= step.peer < self.schedule.ranks or step.peer == rank):
            self._refute(rank, f"there is no other rank {step.peer}")
        if step.kind == "copy" and not 0 <= step.peer <= self.schedule.chunks - step.width:
            self._refute(rank, f"there is no chunk {step.peer} to copy")

    def _read_chunks(self, rank: int, chunk: int, count: int) -> list[Contributors]:
        values = self.contents[rank][chunk : chunk + count]
        if None in values:
            self._refute(rank, f"chunk {chunk + values.index(None)} is read before anything was written to it")
        return values

    def _add(self, rank: int, local: Contributors, received: Contributors) -> Contributors:
        if local is None or received is None:
            self._refute(rank, "a chunk is added to before anything was written to it")
        if local & received:
            self._refute(rank, f"the data of rank {_find_lowest(local & received)} is added twice")
        return local | received

    def check_links(self) -> None:
        for (source, target), link in self.links.items():
            if link:
                step, number, _ = link[0]
                raise ProofError(self.schedule, source, number, f"rank {target} never receives this ({step})")

    def check_result(self) -> None:
        for rank, chunks in enumerate(self.contents):
            get_expected = self._make_expected(rank)
            for chunk, actual in enumerate(chunks):
                expected = get_expected(chunk)
                if expected is None or actual == expected:
                    continue
                missing, extra = expected & ~(actual or 0), (actual or 0) & ~expected
                if missing:
                    problem = f"lacks the data of rank {_find_lowest(missing)}"
                else:
                    problem = f"holds data of rank {_find_lowest(extra)} too"
                last = len(self.schedule.programs[rank]) - 1
                step = last if last >= 0 else None
                raise ProofError(self.schedule, rank, step, f"at the end chunk {chunk} {problem}")

    def _make_expected(self, rank: int) -> Callable[[int], int | None]:
        """A function: chunk → the ranks that it must hold at the end; None: any."""
        plan = self.schedule
        all_ranks = (1 << plan.ranks) - 1
        block = max(1, plan.chunks // plan.ranks)
        return {
            "all_reduce": lambda chunk: all_ranks,
            "all_gather": lambda chunk: 1 << (chunk // block),
            "reduce_scatter": lambda chunk: all_ranks if chunk // block == rank else None,
            "broadcast": lambda chunk: 1 << plan.root,
            "reduce": lambda chunk: all_ranks if rank == plan.root else None,
        }[plan.op]

    def _report_deadlock(self, stuck: list[int]) -> None:
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


def _get_initial(schedule: Schedule, rank: int, chunk: int) -> Contributors:
    """The contributors of a chunk before the first step."""
    if schedule.op == "all_gather":
        return 1 << rank if chunk // max(1, schedule.chunks // schedule.ranks) == rank else None
    if schedule.op == "broadcast":
        return 1 << rank if rank == schedule.root else None
    return 1 << rank


def _find_lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
