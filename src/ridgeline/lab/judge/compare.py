"""Two sets of records, case by case: did B get slower than A?

    ridgeline compare before/ after/

Runs made at different times were made in different weather. Where both raced the same peers, times are taken
relative to those peers in the same race, which takes the weather out; else they are compared as they are, and
that is said. `ridgeline bench --against COMMIT` races two versions directly and sees smaller changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import Exit, NotComparable
from ridgeline.lab.judge import stats, verdict
from ridgeline.lab.judge.findings import latest
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import Comparison
from ridgeline.lab.record.record import Lane, Record
from ridgeline.lab.workload import OURS


@dataclass(frozen=True)
class Change:
    """One case in both sets; the word is said of B relative to A."""

    before: Record
    after: Record
    ratio: Estimate | None  # time of B / time of A; None where one of them has no valid time
    comparison: Comparison | None
    basis: str  # how the two were made comparable, or why they are not

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.after.workload,
            "case": dict(self.after.case),
            "verdict": self.comparison,
            "ratio": self.ratio.value if self.ratio else None,
            "ratio_interval": [self.ratio.low, self.ratio.high] if self.ratio else None,
            "basis": self.basis,
            "records": [self.before.id, self.after.id],
        }


def changes(a: Iterable[Record], b: Iterable[Record], margin: float = verdict.MARGIN) -> list[Change]:
    """Every case both sets have on one kind of machine (the latest record of each, by its time, then by its line).

    NotComparable when there is none, or none with a valid time on both sides.
    """
    old, new = ({_place(r): r for r in latest(records)} for records in (a, b))
    shared = [place for place in new if place in old]
    if not shared:
        if {subject for subject, _ in old} & {subject for subject, _ in new}:
            raise NotComparable("the records come from different kinds of machine; compare runs of one kind.")
        raise NotComparable("the two have no case in common; record the same workloads and cases in both.")
    found = [_change(old[place], new[place], margin) for place in shared]
    if not any(change.comparison for change in found):
        raise NotComparable(f"no case in common has a valid time of ours on both sides: {found[0].basis}.")
    return found


def unmatched(a: Iterable[Record], b: Iterable[Record]) -> tuple[int, int]:
    """How many cases only A has, and only B."""
    old, new = ({_place(r) for r in records} for records in (a, b))
    return len(old - new), len(new - old)


def exit_code(found: Iterable[Change]) -> Exit:
    """SLOWER outweighs a case that lost its time, which outweighs UNCLEAR, which outweighs the rest."""
    words = {change.comparison for change in found}
    if Comparison.SLOWER in words:
        return Exit.SLOWER
    if None in words:
        return Exit.NOT_COMPARABLE
    return Exit.UNCLEAR if Comparison.UNCLEAR in words else Exit.OK


def _place(record: Record) -> tuple[str, str]:
    return record.subject, record.machine["fingerprint"]


def _change(before: Record, after: Record, margin: float) -> Change:
    ours = [_lane(r, OURS) for r in (before, after)]
    for side, record, lane in zip("AB", (before, after), ours, strict=True):
        if lane is None:
            return Change(before, after, None, None, f"{side} has no contender '{OURS}'")
        judged = verdict.judge(record, lane)
        if judged.time is None:
            return Change(before, after, None, None, f"{side} is {judged.validity}: {judged.advice}")
    own_before, own_after = (lane for lane in ours if lane is not None)
    if before.id == after.id:
        return Change(before, after, *verdict.in_race(own_after, own_before, margin), "one and the same record")
    peers = shared_peers(before, after)
    old, new = relative(own_before, [p for p, _ in peers]), relative(own_after, [p for _, p in peers])
    ratio, sure = (stats.unpaired_ratio(new, old, c) for c in (stats.CONFIDENCE, stats.SURE))
    names = ", ".join(lane.contender for lane, _ in peers)
    basis = f"relative to {names} in the same race" if peers else "separate runs, no shared peer: weather included"
    if any(stats.median(side).relative > verdict.NOISY for side in (old, new)):
        # Seen between equal codes: in six rounds the peers were preempted and ours was not, "five times faster".
        return Change(before, after, ratio, Comparison.UNCLEAR, f"{basis}; too noisy to tell")
    return Change(before, after, ratio, verdict.compare(ratio, sure, margin), basis)


def shared_peers(before: Record, after: Record) -> list[tuple[Lane, Lane]]:
    """Peers with valid times on both sides and the same settings and libraries."""
    if before.code["libraries"] != after.code["libraries"]:
        return []
    shared = []
    for lane in after.contenders:
        other = _lane(before, lane.contender)
        if lane.contender == OURS or other is None or other.settings != lane.settings:
            continue
        if verdict.judge(before, other).time and verdict.judge(after, lane).time:
            shared.append((other, lane))
    return shared


def relative(lane: Lane, peers: list[Lane]) -> list[float]:
    """Our time over the peers' (their geometric mean), round by round; our time itself if there are none."""
    own, *others = (stats.turns(x.samples_ns, x.samples_per_turn) for x in (lane, *peers))
    if not others:
        return own
    return [o / statistics.geometric_mean(p) for o, p in zip(own, zip(*others, strict=False), strict=False)]


def _lane(record: Record, name: str) -> Lane | None:
    return next((lane for lane in record.contenders if lane.contender == name), None)
