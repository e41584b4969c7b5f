"""Pictures for the report that need an engine: the schedule of a collective.

ridgeline fabric show ring --ranks 4 -o ring.svg
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.errors import RidgelineError
from ridgeline.lab import OURS
from ridgeline.lab.record import Record

OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "broadcast": "broadcast"}  # workload -> operation
MAX_RANKS = 16  # a picture with more is not readable


def draw_pictures(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the title and the SVG of each picture; nothing if the record does not name a schedule."""
    ours = next((x for x in record.contenders if x.contender == OURS), None)
    op, ranks = OPS.get(record.workload), record.case["ranks"]
    algorithm = str(ours.settings.get("schedule", "")) if ours else ""
    if op is None or not algorithm or not isinstance(ranks, int) or not 2 <= ranks <= MAX_RANKS:
        return
    from ridgeline.fabric import draw_svg, schedule

    try:
        svg = draw_svg(schedule(op, algorithm, ranks=ranks))
    except RidgelineError:  # this version does not have the algorithm any more
        return
    yield f"{op} by {algorithm}, {ranks} ranks: which rank sends which chunk to which rank, round by round", svg
