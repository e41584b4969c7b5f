"""Pictures that only an engine can draw, for the report: the schedule a collective took.

ridgeline fabric show ring --ranks 4 -o ring.svg
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.errors import RidgelineError
from ridgeline.lab import OURS
from ridgeline.lab.record import Record

OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "broadcast": "broadcast"}  # workload -> operation
MOST = 16  # ranks; more are no picture


def pictures(record: Record) -> Iterator[tuple[str, str]]:
    """Title and SVG of each; none where the record does not say which schedule it took."""
    lane = next((x for x in record.contenders if x.contender == OURS), None)
    op, ranks = OPS.get(record.workload), record.case["ranks"]
    took = str(lane.settings.get("schedule", "")) if lane else ""
    if op is None or not took or not isinstance(ranks, int) or not 2 <= ranks <= MOST:
        return
    from ridgeline.fabric import picture, schedule

    try:
        drawn = picture.svg(schedule(op, took, ranks=ranks))
    except RidgelineError:  # a schedule that this version does not write any more
        return
    yield f"{op} by {took}, {ranks} ranks: who sends which chunk to whom, round by round", drawn
