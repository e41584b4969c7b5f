"""Error messages of calls: rank, operation, sequence number and when the rank was last seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ridgeline.fabric.arrays import REDUCTIONS, TYPES
from ridgeline.fabric.config import NAMES
from ridgeline.native import FABRIC_OWN_SCHEDULE, FABRIC_REFUSED_CALL, RankEngine

OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "barrier", "send", "recv",
)  # fmt: skip  # in the order of the engine
CURE = "call shrink() to go on without it, or start the ranks again."
DEAD, LATE, MISMATCH, FAILED_BEFORE, INTERRUPTED, REFUSED, FORKED, BROKEN, NESTED, ABORTED, GARBLED = range(1, 12)


def describe_failure(
    engine: RankEngine,
    code: int,
    name: str,
    me: int,
    members: Sequence[int],
    describe_process: Callable[[int], str],
    timeout: float,
) -> str:
    """Return a sentence for the error `code` of a call and `engine.blamed`, a rank of the world."""
    if code == FORKED:
        return f"{name}: this process was forked from rank {me} and is no rank; make the call in the rank itself."
    if code == NESTED:
        return f"{name}: a signal handler cannot make this call while it interrupts another; let it set a flag instead."
    if code == FAILED_BEFORE:
        return f"{name}: this communicator has failed: {_describe_first_failure(engine, members)}; {CURE}"
    world_rank = engine.blamed
    rank = members.index(world_rank) if world_rank in members else world_rank
    call = f"{name} #{engine.call_number}"
    seen = _describe_last_call(engine, rank) if world_rank in members else ""
    if code == DEAD:
        return f"rank {rank} died: rank {me} waited for it in {call}{seen}; {CURE}"
    if code == LATE:
        state = describe_process(world_rank)
        return f"rank {rank} did not come to {call} of rank {me} within the timeout of {timeout:g} s; {state}{seen}."
    if code == MISMATCH and name == "recv":
        return f"{call}: rank {rank} sent another length or type than rank {me} receives; make both the same."
    if code == MISMATCH:
        own_call, other_call = (_describe_call(engine, r) for r in (me, rank))
        return f"rank {me} calls {own_call}, rank {rank} calls {other_call}: all ranks must make the same call."
    if code == GARBLED:
        return f"{call}: rank {rank} sent something that is no part of the protocol{seen}; {CURE}"
    if code == REFUSED:
        return f"{call}: the memory of rank {rank} may not be read any more; set RIDGELINE_FABRIC_FOREIGN=0."
    return f"{call}: rank {me} was interrupted."


def _describe_first_failure(engine: RankEngine, members: Sequence[int]) -> str:
    """What ended the communicator: rank, operation and sequence number (of a message: its number between the ranks)."""
    deadline = time.monotonic() + 0.1
    while (failure := engine.first_failure) is None:
        if time.monotonic() > deadline:  # the rank died while it wrote the failure
            return "a rank failed in an earlier call"
        time.sleep(0.001)
    fault, *world_ranks, op, number, timeout = failure
    rank, reporter = (members.index(r) if r in members else r for r in world_ranks)
    call = f"{OPS[op]} #{number}"
    if fault == DEAD:
        return f"rank {rank} died, and rank {reporter} waited for it in {call}"
    if fault == LATE:
        return f"rank {reporter} gave up waiting for rank {rank} in {call} after {timeout:g} s"
    if fault == REFUSED:
        return f"rank {reporter} may not read the memory of rank {rank} in {call}"
    if fault == GARBLED:
        return f"rank {rank} sent something to rank {reporter} in {call} that is no part of the protocol"
    if fault == ABORTED:
        return f"rank {reporter} aborted it; its last call was {call}"
    return f"rank {reporter} {'was interrupted' if fault == INTERRUPTED else 'had an error'} in {call}"


def _describe_call(engine: RankEngine, rank: int) -> str:
    sequence, op, kind, reduction, count, root, algorithm, _, type_name = engine.header(rank, True)
    name = OPS[op]
    text = f"{name} #{sequence}"
    if algorithm == FABRIC_REFUSED_CALL:
        return f"{text} with arguments that it refuses"
    if name == "barrier":
        return text
    text += f" of {count:,} {TYPES[kind]}" + (f" ({type_name})" if type_name else "")
    if "reduce" in name:
        text += f" ({REDUCTIONS[reduction]})"
    if name in ("broadcast", "reduce"):
        text += f" with root {root}"
    if algorithm == FABRIC_OWN_SCHEDULE:
        return f"{text} by a schedule of its own"
    return text + (f" by {NAMES[algorithm - 1]}" if algorithm else "")


def _describe_last_call(engine: RankEngine, rank: int) -> str:
    sequence, op, *_, stamp, _ = engine.header(rank, False)
    if not stamp:
        return ", it was never seen"
    ago = time.monotonic() - stamp / 1e9
    return f", it was last seen {ago:.1f} s ago in {OPS[op]} #{sequence}"
