"""Compare two sets of records case by case: is B slower than A?

    ridgeline compare before/ after/

The load of the machine differs between two runs. If both runs raced the same peers, this module takes times relative
to those peers in the same race, which cancels the load; else it compares the times as they are and says so.
`ridgeline bench --against COMMIT` races two versions directly and detects smaller changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import Exit, NotComparable
from ridgeline.lab.judge import stats, verdict
from ridgeline.lab.judge.findings import select_latest
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import Comparison
from ridgeline.lab.record import ContenderResult, Record


@dataclass(frozen=True)
class Change:
    """One case of both sets; `comparison` describes B relative to A."""

    before: Record
    after: Record
    ratio: Estimate | None  # time of B / time of A; None if one side has no valid time
    comparison: Comparison | None
    basis: str  # how the two are compared, or why they cannot be

    def to_json(self) -> dict[str, Any]:
        """Return the change as a dict for JSON."""
        return {
            "workload": self.after.workload,
            "case": dict(self.after.case),
            "verdict": self.comparison,
            "ratio": self.ratio.value if self.ratio else None,
            "ratio_interval": [self.ratio.low, self.ratio.high] if self.ratio else None,
            "basis": self.basis,
            "records": [self.before.id, self.after.id],
        }


def compare_records(a: Iterable[Record], b: Iterable[Record], margin: float = verdict.MARGIN) -> list[Change]:
    """Compare every case that both sets have on one kind of machine: the latest record of each, by time, then by line.

    Raises NotComparable if there is no such case, or none with a valid time on both sides.
    """
    old, new = ({_match_key(r): r for r in select_latest(records)} for records in (a, b))
    shared = [key for key in new if key in old]
    if not shared:
        if {subject for subject, _ in old} & {subject for subject, _ in new}:
            raise NotComparable("the records come from different kinds of machine; compare runs of one kind.")
        raise NotComparable("the two have no case in common; record the same workloads and cases in both.")
    changes = [_compare_pair(old[key], new[key], margin) for key in shared]
    if not any(change.comparison for change in changes):
        raise NotComparable(f"no case in common has a valid time of ours on both sides: {changes[0].basis}.")
    return changes


def count_unmatched(a: Iterable[Record], b: Iterable[Record]) -> tuple[int, int]:
    """Return the number of cases that only A has, and that only B has."""
    old, new = ({_match_key(r) for r in records} for records in (a, b))
    return len(old - new), len(new - old)


def choose_exit_code(changes: Iterable[Change]) -> Exit:
    """Return the worst result: SLOWER, then a case that lost its valid time, then UNCLEAR, then OK."""
    comparisons = {change.comparison for change in changes}
    if Comparison.SLOWER in comparisons:
        return Exit.SLOWER
    if None in comparisons:
        return Exit.NOT_COMPARABLE
    return Exit.UNCLEAR if Comparison.UNCLEAR in comparisons else Exit.OK


def find_shared_peers(before: Record, after: Record) -> list[tuple[ContenderResult, ContenderResult]]:
    """Return the peers that have valid times on both sides, with the same settings and libraries."""
    if before.code["libraries"] != after.code["libraries"]:
        return []
    shared = []
    for result in after.contenders:
        other = _find_contender(before, result.contender)
        if (
            result.contender in (before.reference, after.reference)
            or other is None
            or other.settings != result.settings
        ):
            continue
        if verdict.assess(before, other).time and verdict.assess(after, result).time:
            shared.append((other, result))
    return shared


def relative_times(ours: ContenderResult, peers: list[ContenderResult]) -> list[float]:
    """Return our time / the geometric mean of the peers' times, round by round; our time itself without peers."""
    times, *others = (stats.turn_medians(x.samples_ns, x.samples_per_turn) for x in (ours, *peers))
    if not others:
        return times
    return [o / statistics.geometric_mean(p) for o, p in zip(times, zip(*others, strict=False), strict=False)]


def _match_key(record: Record) -> tuple[str, str]:
    return record.subject, record.machine["fingerprint"]


def _compare_pair(before: Record, after: Record, margin: float) -> Change:
    ours = [_find_contender(r, after.reference) for r in (before, after)]
    for side, record, result in zip("AB", (before, after), ours, strict=True):
        if result is None:
            return Change(before, after, None, None, f"{side} has no contender '{after.reference}'")
        assessment = verdict.assess(record, result)
        if assessment.time is None:
            return Change(before, after, None, None, f"{side} is {assessment.validity}: {assessment.advice}")
    ours_before, ours_after = (result for result in ours if result is not None)
    if before.id == after.id:
        comparison = verdict.compare_in_race(ours_after, ours_before, margin)
        return Change(before, after, *comparison, "one and the same record")
    peers = find_shared_peers(before, after)
    old = relative_times(ours_before, [p for p, _ in peers])
    new = relative_times(ours_after, [p for _, p in peers])
    ratio, confident = (stats.unpaired_ratio(new, old, c) for c in (stats.CONFIDENCE, stats.HIGH_CONFIDENCE))
    names = ", ".join(result.contender for result, _ in peers)
    basis = f"relative to {names} in the same race" if peers else "separate runs, no shared peer: load included"
    if any(stats.median(side).relative > verdict.NOISY for side in (old, new)):
        # Observed between equal codes: in six rounds the peers were preempted and ours was not, "five times faster".
        return Change(before, after, ratio, Comparison.UNCLEAR, f"{basis}; too noisy to tell")
    return Change(before, after, ratio, verdict.classify_ratio(ratio, confident, margin), basis)


def _find_contender(record: Record, name: str) -> ContenderResult | None:
    return next((result for result in record.contenders if result.contender == name), None)
